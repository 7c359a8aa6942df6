"""A reference becomes a spec without loading a tensor, or an error that says what was wrong with which file."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from octavo.config import ModelConfig
from octavo.errors import ConfigError, ModelError
from octavo.loader import resolve
from octavo.loader.resolve import locate
from octavo.loader.weights import iterate_weights
from tests.loader.gguf_files import write_gguf
from tests.loader.specs import spec_of


@pytest.fixture
def folder(checkpoint, tmp_path) -> Path:
    return shutil.copytree(checkpoint("llama"), tmp_path / "model")


def test_folder_is_read(folder):
    settings = {"eos_token_id": [2, 5], "temperature": 0.6, "top_p": 0.9, "top_k": None, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    spec = spec_of(folder)
    assert (spec.name, spec.path, spec.tokenizer_path) == (str(folder), str(folder), str(folder))
    assert (spec.format, spec.architecture, spec.checkpoint_dtype) == ("safetensors", "LlamaForCausalLM", "float32")
    assert (spec.context_length, spec.vocab_size, spec.eos_token_ids) == (512, 96, (2, 5))
    assert spec.generation_config == {"temperature": 0.6, "top_p": 0.9}


def test_gguf_file_is_read(folder, tmp_path):
    path = write_gguf(folder, tmp_path / "m.gguf", "Q8_0")
    spec, from_folder = spec_of(path), spec_of(folder)
    assert (spec.format, spec.path, spec.tokenizer_path) == ("gguf", str(path), str(path))
    assert spec.checkpoint_dtype == "Q8_0"
    for field in ("architecture", "context_length", "vocab_size", "eos_token_ids"):
        assert getattr(spec, field) == getattr(from_folder, field)


def test_folder_with_one_gguf_file_means_that_file(folder, tmp_path):
    (tmp_path / "hub").mkdir()
    path = write_gguf(folder, tmp_path / "hub" / "m.gguf")
    assert spec_of(tmp_path / "hub").path == str(path)


def test_tokenizer_may_come_from_elsewhere(folder, tmp_path):
    path = write_gguf(folder, tmp_path / "m.gguf")
    assert spec_of(path, tokenizer=str(folder)).tokenizer_path == str(folder)


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_overrides_replace_the_models_config(folder, tmp_path, kind):
    path = folder if kind == "folder" else write_gguf(folder, tmp_path / "m.gguf")
    overrides = {"rope_parameters": {"rope_type": "linear", "factor": 2.0}, "rms_norm_eps": 0.5}
    spec = spec_of(path, hf_overrides=json.dumps(overrides))
    assert spec.hf_config["rope_parameters"] == {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
    assert spec.hf_config["rms_norm_eps"] == 0.5
    assert spec.context_length == 1024
    old_spelling = {"rope_scaling": {"type": "linear", "factor": 2.0}, "rms_norm_eps": 0.5}
    assert spec_of(path, hf_overrides=json.dumps(old_spelling)).hf_config == spec.hf_config


@pytest.mark.parametrize("overrides", ["{", "[1]"])
def test_overrides_that_are_no_json_object_are_refused(folder, overrides):
    with pytest.raises(ConfigError, match="--hf-overrides"):
        spec_of(folder, hf_overrides=overrides)


def test_load_format_must_fit_the_files(folder, tmp_path):
    path = write_gguf(folder, tmp_path / "m.gguf")
    assert spec_of(path, load_format="gguf").format == "gguf"
    assert spec_of(folder, load_format="safetensors").format == "safetensors"
    for wrong, load_format in ((path, "safetensors"), (folder, "gguf")):
        with pytest.raises(ConfigError, match=f"--load-format {load_format} does not fit"):
            spec_of(wrong, load_format=load_format)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_dummy_weights_are_random_equal_each_time_and_need_no_files(checkpoint, tmp_path, family):
    original = spec_of(checkpoint(family))
    shutil.copy(checkpoint(family) / "config.json", tmp_path)
    spec = spec_of(tmp_path, load_format="dummy")
    assert spec.format == "dummy"
    first, second = (dict(iterate_weights(spec, torch.float32)) for _ in range(2))
    shapes = {name: weight.shape for name, weight in iterate_weights(original, torch.float32)}
    assert {name: weight.shape for name, weight in first.items()} == shapes
    assert all(torch.equal(first[name], second[name]) for name in shapes)
    assert first["model.embed_tokens.weight"].std() == pytest.approx(0.02, rel=0.1)


def test_missing_weights_are_never_made_up(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no safetensors weights"):
        spec_of(folder)


@pytest.mark.parametrize(
    "reference",
    [
        "no-such-model",
        "./absent",
        "../absent",
        "~/absent",
        "./absent/model.gguf",
        "absent/model.gguf",
        "a/b/c",
        "org/name:file.bin",
        "",
    ],
)
def test_reference_that_names_nothing_lists_what_can_be_named(reference):
    with pytest.raises(ModelError, match=r"(?s)no folder, .*smollm2-135m-instruct"):
        locate(ModelConfig(model=reference), reference)


def test_catalogue_and_hub_names_are_told_apart(monkeypatch, tmp_path):
    asked = []

    def fake_pull(name, progress):
        asked.append(("catalogue", name))
        return tmp_path

    def fake_fetch(reference, **options):
        asked.append(("hub", *reference, options["revision"], options["weights"]))
        return str(tmp_path)

    monkeypatch.setattr(resolve, "pull", fake_pull)
    monkeypatch.setattr(resolve, "fetch", fake_fetch)
    for reference in ("gemma-3-270m", "org/na.me-1", "org/name:sub/Q4_K_M.gguf"):
        assert locate(ModelConfig(model=reference, revision="v1"), reference) == tmp_path
    locate(ModelConfig(), "org/tokenizer", weights=False)
    assert asked == [
        ("catalogue", "gemma-3-270m"),
        ("hub", "org/na.me-1", None, "v1", True),
        ("hub", "org/name", "sub/Q4_K_M.gguf", "v1", True),
        ("hub", "org/tokenizer", None, None, False),
    ]


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "has no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "config.json is not valid JSON"),
        (lambda f: (f / "config.json").write_text("[]"), "config.json is not a JSON object"),
        (lambda f: (f / "config.json").write_text('{"model_type": "foo"}'), "config.json.*'foo'"),
        (lambda f: (f / "generation_config.json").write_text("nope"), "generation_config.json is not valid JSON"),
        (lambda f: (f / "config.json").write_text('{"quantization_config": {"quant_method": "awq"}}'), "'awq'"),
        (lambda f: (f / "model.safetensors").write_text("<html>404</html>"), "model.safetensors: .*HTML page"),
        (lambda f: cut(f / "model.safetensors", 1024), "model.safetensors: truncated.*tensor 'model"),
        (lambda f: cut(f / "model.safetensors", None), "model.safetensors: truncated.*tensor 'model"),
    ],
)
def test_damaged_folder_is_refused_by_name(folder, prepare, message):
    prepare(folder)
    with pytest.raises(ModelError, match=re.escape(str(folder)) + ".*" + message):
        spec_of(folder)


def cut(path: Path, num_bytes: int | None) -> None:
    """Take `num_bytes`, or half of the file, off its end."""
    content = path.read_bytes()
    path.write_bytes(content[: -(num_bytes or len(content) // 2)])


def test_gguf_cut_by_half_names_file_and_tensor(folder, tmp_path):
    path = write_gguf(folder, tmp_path / "m.gguf")
    cut(path, None)
    with pytest.raises(ModelError, match=re.escape(str(path)) + r": truncated.*tensor 'blk\."):
        spec_of(path)


def test_gguf_in_parts_is_refused(folder, tmp_path):
    path = write_gguf(folder, tmp_path / "m-00001-of-00002.gguf", extra=lambda w: w.add_uint16("split.count", 2))
    with pytest.raises(ModelError, match=re.escape(str(path)) + ".*merge"):
        spec_of(path)


def test_folder_of_several_gguf_files_lists_them(folder, tmp_path):
    (tmp_path / "hub").mkdir()
    for name in ("a.gguf", "b.gguf"):
        write_gguf(folder, tmp_path / "hub" / name)
    with pytest.raises(ModelError, match=r"give one of its files: a\.gguf, b\.gguf"):
        spec_of(tmp_path / "hub")


def test_file_that_is_no_gguf_is_refused(folder):
    with pytest.raises(ModelError, match=r"model\.safetensors is a file, but not a \.gguf one"):
        spec_of(folder / "model.safetensors")


def test_resolving_a_gguf_file_needs_neither_torch_nor_transformers(folder, tmp_path):
    path = write_gguf(folder, tmp_path / "m.gguf")
    program = (
        "import sys; from octavo.config import ModelConfig; from octavo.loader.resolve import resolve_reference;"
        "early = [m for m in ('torch', 'transformers', 'numpy', 'gguf', 'huggingface_hub') if m in sys.modules];"
        "resolve_reference(ModelConfig(model=sys.argv[1]));"
        "late = [m for m in ('torch', 'transformers', 'numpy', 'gguf', 'huggingface_hub') if m in sys.modules];"
        "sys.exit(f'imported {early} {late}' if early or late else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
