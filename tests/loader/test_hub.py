"""Hub references against a hub on loopback, through the real client in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.loader.hub import parse_hub_reference
from tests.loader.fake_hub import FakeHub
from tests.loader.gguf_files import write_gguf

PROGRAM = """
import json, sys
from octavo.config import ModelConfig
from octavo.errors import OctavoError
from octavo.loader.resolve import locate
reports = []
config, weights = ModelConfig(**json.loads(sys.argv[1])), json.loads(sys.argv[2])
try:
    path = locate(config, config.model, lambda *report: reports.append(report), weights=weights)
    answer = {"path": str(path), "reports": reports}
except OctavoError as err:
    answer = {"error": str(err)}
print(json.dumps(answer))
"""
UNREACHABLE = {"HF_ENDPOINT": "http://127.0.0.1:9"}


@pytest.fixture
def hub(checkpoint, tmp_path):
    folder = checkpoint("llama")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files |= {"tokenizer.json": b"{}", "README.md": b"read me", "pytorch_model.bin": b"0" * 1000}
    files |= {"consolidated.safetensors": b"0" * 1000, "onnx/config.json": b"{}"}
    gguf_bytes = write_gguf(folder, tmp_path / "m.gguf").read_bytes()
    with FakeHub().serving() as served:
        served.repos["org/tiny"] = files
        served.repos["org/tiny-GGUF"] = {
            "tiny-Q8_0.gguf": gguf_bytes,
            "sub/tiny-F32.gguf": gguf_bytes,
            "other.gguf": b"",
        }
        yield served


def locate(
    hub: FakeHub,
    cache: Path,
    model: str,
    environment: dict[str, str] | None = None,
    *,
    weights: bool = True,
    **options: str,
) -> dict:
    """What a fresh process finds for a reference."""
    env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache), "HF_HUB_DISABLE_XET": "1"}
    env.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps({"model": model, **options}), json.dumps(weights)],
        env={**env, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_folder_model_fetches_only_what_is_needed(hub, tmp_path):
    found = locate(hub, tmp_path / "cache", "org/tiny")
    names = sorted(path.name for path in Path(found["path"]).iterdir())
    assert names == ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"]
    assert sorted(hub.downloads) == [f"org/tiny/{name}" for name in names]
    stage, done, total = found["reports"][-1]
    assert stage == "downloading org/tiny" and done == total == sum(len(hub.repos["org/tiny"][name]) for name in names)


def test_cached_model_is_found_offline(hub, tmp_path):
    first = locate(hub, tmp_path / "cache", "org/tiny")
    asked = len(hub.downloads)
    for environment in ({"HF_HUB_OFFLINE": "1"}, UNREACHABLE):
        assert locate(hub, tmp_path / "cache", "org/tiny", environment)["path"] == first["path"]
    assert len(hub.downloads) == asked


@pytest.mark.parametrize(
    ("model", "environment"),
    [
        ("org/tiny", {"HF_HUB_OFFLINE": "1"}),
        ("org/tiny", UNREACHABLE),
        ("org/tiny-GGUF:tiny-Q8_0.gguf", {"HF_HUB_OFFLINE": "1"}),
    ],
)
def test_model_that_is_not_cached_is_refused_offline(hub, tmp_path, model, environment):
    error = locate(hub, tmp_path / "cache", model, environment)["error"]
    assert error.startswith(f"{model} is not in the hub cache") and "offline" in error


@pytest.mark.parametrize("name", ["tiny-Q8_0.gguf", "sub/tiny-F32.gguf"])
def test_one_gguf_file_is_fetched(hub, tmp_path, name):
    found = locate(hub, tmp_path / "cache", f"org/tiny-GGUF:{name}")
    assert found["path"].endswith(name)
    assert hub.downloads == [f"org/tiny-GGUF/{name}"]
    assert found["reports"][-1][1] == len(hub.repos["org/tiny-GGUF"][name])


def test_download_dir_is_used(hub, tmp_path):
    found = locate(hub, tmp_path / "cache", "org/tiny", download_dir=str(tmp_path / "mine"))
    assert found["path"].startswith(str(tmp_path / "mine")) and not (tmp_path / "cache").exists()


def test_tokenizer_repository_fetches_no_weights(hub, tmp_path):
    found = locate(hub, tmp_path / "cache", "org/tiny", weights=False)
    assert (Path(found["path"]) / "tokenizer.json").is_file()
    assert "org/tiny/model.safetensors" not in hub.downloads


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "org/absent"}, "'org/absent' is neither a local path nor a repository"),
        ({"model": "org/tiny", "revision": "v9"}, "org/tiny has no revision 'v9'"),
        ({"model": "org/tiny-GGUF:absent.gguf"}, "org/tiny-GGUF has no file 'absent.gguf'"),
        ({"model": "org/gated"}, "org/gated is gated: accept its terms"),
        ({"model": "org/a..b"}, "org/a..b could not be fetched"),
    ],
)
def test_refusal_says_what_is_wrong(hub, tmp_path, options, message):
    hub.gated.add("org/gated")
    assert message in locate(hub, tmp_path / "cache", **options)["error"]


@pytest.mark.parametrize(
    "text", ["name", "a/b/c", "org/name:", "org/name:file.bin", "/abs/path", "./rel/path.gguf:x", "", "org/"]
)
def test_other_texts_are_no_hub_references(text):
    assert parse_hub_reference(text) is None


def test_hub_references_have_a_repository_and_perhaps_a_file():
    assert parse_hub_reference("org/na-me_1.5") == ("org/na-me_1.5", None)
    assert parse_hub_reference("org/name:sub dir/a.Q4_K_M.gguf") == ("org/name", "sub dir/a.Q4_K_M.gguf")
