"""WGT-01 on the command line: a server of damaged files ends by itself, soon and small, and says what is wrong where.
No client could connect meanwhile.
"""

import contextlib
import json
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from safetensors.torch import load_file, save_file

from tests.files.raw_gguf import ARRAY, STRING, RawGGUF, array, key, tensor
from tests.loader.gguf_files import write_gguf
from tests.script_model import write_random_model
from tests.server.test_process_ends import OCTAVO, free_port
from tests.tiny import tiny_checkpoint

pytestmark = pytest.mark.slow

TENSOR = "model.layers.1.mlp.up_proj.weight"
HTML = b"<!DOCTYPE html><html><body>Sign in to download this model</body></html>\n" * 100
MAX_RSS_KB = 1 << 20

MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], timeout=60).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


class Ended(NamedTuple):
    """How a start ended."""

    code: int
    max_rss_kb: int
    elapsed_s: float
    log: str
    answered: bool


class Knocking(threading.Thread):
    """Tries to connect to a port all the time, until it is stopped."""

    def __init__(self, port: int) -> None:
        super().__init__(name="knocking", daemon=True)
        self.answered = False
        self._port = port
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(0.002):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 5):
                self.answered = True

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def start(reference: Path) -> Ended:
    """Serve a model that cannot be."""
    begin = time.monotonic()
    port = free_port()
    command = [*OCTAVO, "serve", str(reference), "--port", str(port), "--num-gpu-blocks-override", "64"]
    knocking = Knocking(port)
    knocking.start()
    done = subprocess.run([sys.executable, "-c", MEASURED, *command], capture_output=True, text=True, timeout=90)
    knocking.stop()
    code, max_rss_kb = map(int, done.stdout.split())
    return Ended(code, max_rss_kb, time.monotonic() - begin, done.stderr, knocking.answered)


def assert_refused(reference: Path, *named: str) -> None:
    """It ended with an error that names the file and what else is given, and was never ready."""
    ended = start(reference)
    assert ended.code > 0, f"exit code {ended.code}: {ended.log}"  # below 0 is a signal
    assert ended.elapsed_s < 30 and ended.max_rss_kb < MAX_RSS_KB
    assert not ended.answered
    assert "Octavo serves" not in ended.log and "Traceback" not in ended.log
    for name in named:
        assert re.search(name, ended.log), ended.log


def cut(size: Callable[[int], int]) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        with file.open("r+b") as opened:
            opened.truncate(size(file.stat().st_size))

    return damage


def with_header(change: Callable[[dict], None]) -> Callable[[Path], None]:  # type: ignore[type-arg]
    def damage(file: Path) -> None:
        raw = file.read_bytes()
        (size,) = struct.unpack("<Q", raw[:8])
        header = json.loads(raw[8 : 8 + size])
        change(header[TENSOR])
        new = json.dumps(header).encode()
        file.write_bytes(struct.pack("<Q", len(new)) + new + raw[8 + size :])

    return damage


SAFETENSORS_FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut by 1 kB": (cut(lambda size: size - 1000), r"tensor 'model\.[a-z0-9_.]+'"),
    "cut by half": (cut(lambda size: size // 2), r"tensor 'model\.[a-z0-9_.]+'"),
    "header of 2^60 bytes": (lambda file: file.write_bytes(struct.pack("<Q", 2**60) + bytes(100)), "header"),
    "another shape": (with_header(lambda entry: entry.update(shape=[7, 7])), re.escape(TENSOR)),
    "another dtype": (with_header(lambda entry: entry.update(dtype="F64")), re.escape(TENSOR)),
    "a page of HTML": (lambda file: file.write_bytes(HTML), "HTML|header"),
}


@pytest.mark.parametrize("fault", SAFETENSORS_FAULTS)
def test_wgt_01_damaged_safetensors_end_the_start(fault: str, tmp_path: Path) -> None:
    damage, message = SAFETENSORS_FAULTS[fault]
    file = write_random_model(tmp_path) / "model.safetensors"
    damage(file)
    assert_refused(tmp_path, "model.safetensors", message)


@pytest.mark.parametrize("fault", ["an absent shard", "a tensor left out"])
def test_wgt_01_an_index_that_does_not_fit_ends_the_start(fault: str, tmp_path: Path) -> None:
    tensors = load_file(write_random_model(tmp_path) / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for shard, part in shards.items():
        save_file({name: tensors[name] for name in part}, tmp_path / shard, {"format": "pt"})
    weight_map = {name: shard for shard, part in shards.items() for name in part}
    if fault == "an absent shard":
        weight_map[TENSOR] = "model-00003-of-00002.safetensors"
    else:
        del weight_map[TENSOR]
        for shard, part in shards.items():  # nor is it in a shard
            kept = {name: tensors[name] for name in part if name != TENSOR}
            save_file(kept, tmp_path / shard, {"format": "pt"})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert_refused(tmp_path, re.escape(TENSOR))


GGUF_FAULTS: dict[str, tuple[bytes, str]] = {
    "an offset past the end": (RawGGUF(tensors=[tensor("far", (8,), 1 << 50)]).bytes(), "far"),
    "a dimension of 0": (RawGGUF(tensors=[tensor("empty", (8, 0), 0)]).bytes(), "empty"),
    "an array of 2^40 strings": (RawGGUF(keys=[key("k", ARRAY, array(STRING, 1 << 40))]).bytes(), "'k'"),
    "a page of HTML": (HTML, "HTML|GGUF"),
}


@pytest.mark.parametrize("fault", GGUF_FAULTS)
def test_wgt_01_a_damaged_gguf_file_ends_the_start(fault: str, tmp_path: Path) -> None:
    content, message = GGUF_FAULTS[fault]
    (tmp_path / "model.gguf").write_bytes(content)
    assert_refused(tmp_path / "model.gguf", r"model\.gguf", message)


def test_wgt_01_half_a_gguf_file_ends_the_start(tmp_path: Path) -> None:
    whole = write_gguf(tiny_checkpoint("llama", tmp_path / "llama"), tmp_path / "model.gguf", tokenizer=True)
    cut(lambda size: size // 2)(whole)
    assert_refused(whole, r"model\.gguf", r"blk\.\d|token_embd|output")
