"""What the reader returns agrees with the safetensors package; what is damaged is a ModelError that says where."""

import json
import os
import re
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from octavo.errors import ModelError
from octavo.files.safetensors_header import read_safetensors_header

SOUND = {
    "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
    "b": {"dtype": "BF16", "shape": [4], "data_offsets": [16, 24]},
}


def file_bytes(entries: Any, data_bytes: int = 24, header_bytes: int | None = None) -> bytes:
    head = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(head) if header_bytes is None else header_bytes) + head + bytes(data_bytes)


def error_of(tmp_path: Path, content: bytes) -> str:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=re.escape(str(path))) as caught:
        read_safetensors_header(path)
    return str(caught.value)


def test_header_agrees_with_the_safetensors_package(tmp_path):
    path = tmp_path / "model.safetensors"
    arrays = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "y": np.ones(3, dtype=np.float16), "z": np.array(1.5)}
    save_file(arrays, path, metadata={"format": "pt"})

    header = read_safetensors_header(path)

    assert header.metadata == {"format": "pt"}
    content = path.read_bytes()
    with safe_open(path, "numpy") as reference:
        assert set(header.tensors) == set(reference.keys())
        for name, info in header.tensors.items():
            stored = content[info.offset : info.offset + info.num_bytes]
            assert stored == reference.get_tensor(name).tobytes()
            assert info.shape == tuple(reference.get_slice(name).get_shape())


def test_file_cut_anywhere_is_an_error(tmp_path):
    whole = file_bytes(SOUND)
    for length in range(len(whole)):
        error_of(tmp_path, whole[:length])


def test_data_cut_short_names_the_tensor(tmp_path):
    message = error_of(tmp_path, file_bytes(SOUND, data_bytes=20))
    assert "truncated" in message and "'b'" in message


def one(**changes: Any) -> dict[str, Any]:
    return {"a": SOUND["a"], "b": {**SOUND["b"], **changes}}


FAULTS = {
    "shape against offsets": (
        file_bytes(one(shape=[5])),
        r"tensor 'b' of type BF16 and shape \[5\] needs 10 bytes.*span 8",
    ),
    "dtype against offsets": (file_bytes(one(dtype="F32")), r"tensor 'b'.*needs 16 bytes"),
    "dimension 0": (file_bytes(one(shape=[4, 0])), r"tensor 'b' has a dimension of size 0"),
    "negative dimension": (file_bytes(one(shape=[-4])), r"tensor 'b' has the impossible shape"),
    "fractional dimension": (file_bytes(one(shape=[4.0])), r"tensor 'b' has the impossible shape"),
    "huge dimensions": (file_bytes(one(shape=[1 << 62, 1 << 62])), r"tensor 'b'.*needs"),
    "unknown dtype": (file_bytes(one(dtype="F4")), r"tensor 'b' has the unknown dtype 'F4'"),
    "offset past the end": (file_bytes(one(data_offsets=[1 << 50, (1 << 50) + 8])), r"truncated.*'b'"),
    "offsets reversed": (file_bytes(one(data_offsets=[24, 16])), r"'b' has the impossible shape \[4\] or offsets"),
    "overlap": (file_bytes(one(data_offsets=[8, 16]), data_bytes=16), r"tensor 'b' .*overlaps"),
    "gap": (file_bytes(one(data_offsets=[20, 28]), data_bytes=28), r"tensor 'b' .*gap"),
    "bytes left over": (file_bytes(SOUND, data_bytes=30), r"6 bytes follow the last tensor"),
    "entry is a list": (file_bytes({"a": []}), r"tensor 'a' has a malformed header entry"),
    "entry lacks a field": (file_bytes({"a": {"dtype": "F32", "shape": []}}), r"tensor 'a' has a malformed"),
    "three offsets": (file_bytes(one(data_offsets=[16, 20, 24])), r"tensor 'b' has a malformed"),
    "header is a list": (file_bytes([1]), r"not a JSON object"),
    "header is not JSON": (file_bytes(b'{"a": '), r"not valid JSON"),
    "header is not UTF-8": (file_bytes(b'{"\xff": 1}'), r"not valid JSON"),
    "header nests without end": (file_bytes(b"[" * 100_000), r"not valid JSON"),
    "metadata is a number": (file_bytes({"__metadata__": 1}, data_bytes=0), r"__metadata__"),
    "tensor twice": (file_bytes(b'{"a": 1, "a": 2}'), r"tensor 'a' appears twice"),
    "header of 2^60 bytes": (file_bytes(SOUND, header_bytes=1 << 60), r"claims 1152921504606846976 bytes"),
    "header past the end": (file_bytes(SOUND, header_bytes=1 << 20), r"truncated.*claims 1048576 bytes"),
    "HTML": (b"<!doctype html><html>404</html>", r"HTML page"),
    "LFS pointer": (b"version https://git-lfs.github.com/spec/v1\n", r"Git LFS pointer"),
    "empty": (b"", r"empty"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_named_without_cost(tmp_path, fault):
    content, pattern = FAULTS[fault]
    tracemalloc.start()
    message = error_of(tmp_path, content)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert re.search(pattern, message)
    assert peak_bytes < 4 << 20


def test_missing_file_and_folder_are_named(tmp_path):
    for path in (tmp_path / "absent.safetensors", tmp_path):
        with pytest.raises(ModelError, match=re.escape(str(path))):
            read_safetensors_header(path)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_never_ends_is_not_read(kind, tmp_path):
    path = tmp_path / "model.safetensors"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    with pytest.raises(ModelError, match="is a device or pipe"):
        read_safetensors_header(path)
