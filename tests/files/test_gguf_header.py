"""The header reader believes nothing: what it returns agrees with the gguf package, what is damaged is a ModelError."""

import random
import re
import struct
import time
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest

from octavo.errors import ModelError
from octavo.files.gguf_header import MAX_ARRAY_ITEMS, read_gguf_header
from tests.files.raw_gguf import ARRAY, STRING, U32, U64, RawGGUF, array, key, tensor, text


def written(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    return path


def error_of(tmp_path: Path, content: bytes) -> str:
    """The message for a damaged file, which must name it."""
    path = written(tmp_path, content)
    with pytest.raises(ModelError, match=re.escape(str(path))) as caught:
        read_gguf_header(path)
    return str(caught.value)


def test_header_agrees_with_the_gguf_package(tmp_path):
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -3)
    writer.add_uint16("a.u16", 60000)
    writer.add_int16("a.i16", -300)
    writer.add_int32("a.i32", -70000)
    writer.add_uint64("a.u64", 2**60)
    writer.add_int64("a.i64", -(2**60))
    writer.add_float32("a.f32", 0.5)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.flag", True)
    writer.add_string("a.text", "é😀\n")
    writer.add_array("a.words", ["", "Ġthe", "😀"])
    writer.add_array("a.scores", [0.5, -1.0])
    writer.add_array("a.flags", [True, False])
    writer.add_tensor("plain", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor("small", np.ones(5, dtype=np.float16))
    quantized = gguf.quantize(np.ones((2, 64), dtype=np.float32), gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("blocks", quantized, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    header, reference = read_gguf_header(path), gguf.GGUFReader(path)

    expected = {name: f.contents() for name, f in reference.fields.items() if not name.startswith("GGUF.")}
    assert header.metadata == expected
    assert list(header.tensors) == [t.name for t in reference.tensors]
    for t in reference.tensors:
        ours = header.tensors[t.name]
        assert (ours.type_name, ours.offset, ours.num_bytes) == (t.tensor_type.name, t.data_offset, t.n_bytes)
        assert list(ours.shape) == [int(n) for n in t.shape[::-1]]


def test_large_vocabulary_is_read_in_a_moment(tmp_path):
    words = b"".join(text(f"word{i}") for i in range(100_000))
    path = written(tmp_path, RawGGUF(keys=[key("tokenizer.ggml.tokens", ARRAY, array(STRING, 100_000, words))]).bytes())
    read_gguf_header(path)  # the gguf package's types are imported once

    def seconds() -> float:
        start = time.perf_counter()
        assert len(read_gguf_header(path).metadata["tokenizer.ggml.tokens"]) == 100_000
        return time.perf_counter() - start

    assert min(seconds() for _ in range(5)) < 0.15


def test_file_cut_anywhere_is_an_error_that_names_it(tmp_path):
    whole = RawGGUF().bytes()
    read_gguf_header(written(tmp_path, whole))
    for length in range(len(whole)):
        error_of(tmp_path, whole[:length])


def test_data_cut_short_names_the_tensor(tmp_path):
    message = error_of(tmp_path, RawGGUF().bytes()[:-1])
    assert "truncated" in message and "'second'" in message


def test_random_damage_is_a_model_error_or_harmless(tmp_path):
    sound = RawGGUF(
        keys=[key("a", U32, struct.pack("<I", 1)), key("b", ARRAY, array(STRING, 2, text("x") * 2))]
    ).bytes()
    rng = random.Random(0)
    outcomes = set()
    for _ in range(600):
        damaged = bytearray(sound)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.choice([0, 1, 127, 255, rng.randrange(256)])
        try:
            read_gguf_header(written(tmp_path, bytes(damaged)))
            outcomes.add("read")
        except ModelError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


FAULTS = {
    "offset past the end": (
        RawGGUF(tensors=[tensor("far", (8,), 1 << 50)]),
        r"tensor 'far'.*truncated|truncated.*'far'",
    ),
    "dimension 0": (RawGGUF(tensors=[tensor("empty", (8, 0), 0)]), r"tensor 'empty'.*size 0"),
    "huge dimensions": (RawGGUF(tensors=[tensor("vast", (1 << 63, 1 << 63), 0)]), r"'vast'"),
    "five dimensions": (RawGGUF(tensors=[tensor("deep", (1, 1, 1, 1, 1), 0)]), r"tensor 'deep' has 5 dimensions"),
    "no dimension": (RawGGUF(tensors=[tensor("flat", (), 0)]), r"tensor 'flat' has 0 dimensions"),
    "unknown type id": (
        RawGGUF(tensors=[tensor("odd", (8,), 0, type_id=99)]),
        r"tensor 'odd' has the unknown type id 99",
    ),
    "removed type id": (
        RawGGUF(tensors=[tensor("old", (32,), 0, type_id=4)]),
        r"tensor 'old' has the unknown type id 4",
    ),
    "part of a block": (RawGGUF(tensors=[tensor("ragged", (33,), 0, type_id=2)]), r"tensor 'ragged'.*33.*Q4_0"),
    "overlap": (RawGGUF(tensors=[tensor("a", (16,), 0), tensor("b", (8,), 32)]), r"'a' and 'b' overlap"),
    "unaligned": (RawGGUF(tensors=[tensor("a", (4,), 4)]), r"tensor 'a' starts at 4"),
    "tensor twice": (RawGGUF(tensors=[tensor("a", (8,), 0), tensor("a", (8,), 32)]), r"tensor 'a' appears twice"),
    "key twice": (RawGGUF(keys=[key("k", U32, bytes(4))] * 2), r"metadata key 'k' appears twice"),
    "tensor count": (RawGGUF(num_tensors=1 << 60), r"1152921504606846976 tensors claimed"),
    "key count": (RawGGUF(num_keys=1 << 60), r"1152921504606846976 metadata keys claimed"),
    "strings of 2^40": (RawGGUF(keys=[key("k", ARRAY, array(STRING, 1 << 40))]), r"'k' claims 1099511627776 items"),
    "numbers of 2^40": (RawGGUF(keys=[key("k", ARRAY, array(U64, 1 << 40))]), r"'k' claims 1099511627776 items"),
    "numbers past the end": (RawGGUF(keys=[key("k", ARRAY, array(U64, 1 << 20))]), r"truncated.*'k'"),
    "strings past the end": (
        RawGGUF(keys=[key("k", ARRAY, array(STRING, 1 << 20))]),
        r"1048576 strings in 'k' claimed",
    ),
    "string of 2^60 bytes": (RawGGUF(keys=[key("k", STRING, struct.pack("<Q", 1 << 60))]), r"'k' claims 11529215"),
    "not UTF-8": (RawGGUF(keys=[key("k", STRING, struct.pack("<Q", 1) + b"\xff")]), r"'k' is not UTF-8"),
    "value type": (RawGGUF(keys=[key("k", 77, bytes(8))]), r"'k' has the unknown value type 77"),
    "item type": (RawGGUF(keys=[key("k", ARRAY, array(78, 1))]), r"'k' is an array of the unknown value type 78"),
    "alignment": (RawGGUF(keys=[key("general.alignment", U32, struct.pack("<I", 0))]), r"general.alignment is 0"),
    "version 1": (RawGGUF(version=1), r"version 1; versions 2 and 3"),
    "big-endian": (RawGGUF(version=3 << 24), r"big-endian"),
    "magic": (RawGGUF(magic=b"GGML"), r"not a GGUF file.*b'GGML'"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_named(tmp_path, fault):
    raw, pattern = FAULTS[fault]
    assert re.search(pattern, error_of(tmp_path, raw.bytes()))


def test_lengths_that_lie_cost_no_memory(tmp_path):
    claims = [
        RawGGUF(keys=[key("k", ARRAY, array(U64, MAX_ARRAY_ITEMS))]),
        RawGGUF(keys=[key("k", ARRAY, array(STRING, MAX_ARRAY_ITEMS))]),
        RawGGUF(keys=[key("k", STRING, struct.pack("<Q", 1 << 25))]),
        RawGGUF(num_keys=1 << 40),
        RawGGUF(tensors=[tensor("vast", (1 << 40,), 0)]),
    ]
    for raw in claims:
        path = written(tmp_path, raw.bytes())
        tracemalloc.start()
        with pytest.raises(ModelError):
            read_gguf_header(path)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak_bytes < 1 << 20


def test_arrays_nested_without_end_are_refused(tmp_path):
    bottomless = array(ARRAY, 1) * 1000
    assert "nests arrays" in error_of(tmp_path, RawGGUF(keys=[key("k", ARRAY, bottomless)]).bytes())


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"<!DOCTYPE html><html>Not found</html>", "HTML page"),
        (b"\n<html><head>", "HTML page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
        (b"", "empty"),
        (b"PK\x03\x04", "not a GGUF file"),
    ],
)
def test_other_files_under_this_name_are_recognized(tmp_path, content, what):
    assert what in error_of(tmp_path, content)


def test_missing_file_and_folder_are_named(tmp_path):
    for path in (tmp_path / "absent.gguf", tmp_path):
        with pytest.raises(ModelError, match=re.escape(str(path))):
            read_gguf_header(path)
