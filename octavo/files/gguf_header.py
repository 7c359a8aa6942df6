"""Header of a GGUF file: metadata and the table of tensors, checked against the file before anything trusts it.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. No torch, no tensor data, no meaning of keys.
Every length is compared with the bytes that are left before it is used, so a damaged file costs an error, not memory.
"""

import itertools
import math
import mmap
import os
import struct
from typing import Any, NamedTuple

from octavo.errors import ModelError
from octavo.files.ggml_types import BLOCK_TYPES
from octavo.files.opening import describe_intruder, map_file

MAGIC = b"GGUF"
MAX_ARRAY_ITEMS = 1 << 24
"""Most items of one metadata array; the largest vocabularies have a million."""
MAX_STRING_BYTES = 1 << 26
MAX_DIMENSIONS = 4
MAX_ARRAY_DEPTH = 4

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_SMALLEST_KEY_BYTES = 8 + 1 + 4 + 1  # length, one character, type, one byte
_SMALLEST_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8  # length, one character, dimensions, one of them, type, offset


class GGUFTensorInfo(NamedTuple):
    """Where one tensor lies.

    Attributes:
        type_name: storage type as the gguf package names it, "Q4_1".
        shape: outermost dimension first, as torch has it (the file stores the reverse); in elements, not blocks.
        offset: byte of the file at which the data starts.
    """

    name: str
    type_name: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


class GGUFHeader(NamedTuple):
    """All of a GGUF file but the data. Strings are str, arrays are lists, numbers are int, float or bool."""

    path: str
    version: int
    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensorInfo]
    data_offset: int


def read_gguf_header(path: str | os.PathLike[str], *, vocabulary: bool = True) -> GGUFHeader:
    """Read and check the header of a GGUF file (version 2 or 3, little-endian).

    Args:
        vocabulary: without it all arrays of strings are empty, which saves most of the time.

    Raises:
        ModelError: the file is not GGUF, is cut short, or contradicts itself; names the file and the key or tensor.
    """
    buffer = map_file(path)
    try:
        return _Parser(os.fspath(path), buffer, vocabulary).header()
    finally:
        buffer.close()


class _Parser:
    """A cursor over the header bytes; `pos` is the next byte to read."""

    def __init__(self, path: str, buffer: mmap.mmap, vocabulary: bool) -> None:
        self.path = path
        self.buffer = buffer
        self.vocabulary = vocabulary
        self.size = len(buffer)
        self.pos = 0

    def header(self) -> GGUFHeader:
        version = self._version()
        num_tensors, num_keys = self._u64("the tensor count"), self._u64("the key count")
        self._check_count(num_keys, _SMALLEST_KEY_BYTES, "metadata keys")
        self._check_count(num_tensors, _SMALLEST_TENSOR_BYTES, "tensors")
        metadata = self._metadata(num_keys)
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment % 8 or alignment > 1 << 24:
            raise self._error(f"general.alignment is {alignment!r} but must be a multiple of 8")
        entries = [self._tensor() for _ in range(num_tensors)]
        data_offset = -(-self.pos // alignment) * alignment
        tensors = self._placed(entries, data_offset, alignment)
        return GGUFHeader(self.path, version, metadata, tensors, data_offset)

    def _version(self) -> int:
        head = self.buffer[:512]
        if head[:4] != MAGIC:
            what = describe_intruder(head)
            raise self._error(f"not a GGUF file but {what or f'one that starts with {head[:4]!r}'}")
        self.pos = 4
        version = self._u32("the version")
        if version not in (2, 3):
            endian = " (big-endian?)" if version & 0xFFFF == 0 else ""
            raise self._error(f"GGUF version {version}{endian}; versions 2 and 3, little-endian, can be read")
        return version

    def _metadata(self, num_keys: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for index in range(num_keys):
            key = self._string(f"metadata key {index}")
            if key in metadata:
                raise self._error(f"metadata key {key!r} appears twice")
            metadata[key] = self._value(key, self._u32(f"the type of {key}"), depth=0)
        return metadata

    def _value(self, key: str, kind: int, depth: int) -> Any:
        if kind == _STRING:
            return self._string(key)
        if kind == _ARRAY:
            return self._array(key, depth)
        if kind not in _SCALARS:
            raise self._error(f"metadata key {key!r} has the unknown value type {kind}")
        return self._scalars(key, kind, 1)[0]

    def _array(self, key: str, depth: int) -> list[Any]:
        kind, count = self._u32(key), self._u64(key)
        if depth >= MAX_ARRAY_DEPTH:
            raise self._error(f"metadata key {key!r} nests arrays more than {MAX_ARRAY_DEPTH} deep")
        if count > MAX_ARRAY_ITEMS:
            raise self._error(f"metadata key {key!r} claims {count} items; the limit is {MAX_ARRAY_ITEMS}")
        if kind == _STRING:
            return self._strings(key, count, wanted=self.vocabulary)
        if kind == _ARRAY:
            self._check_count(count, 12, f"arrays in metadata key {key!r}")
            return [self._array(key, depth + 1) for _ in range(count)]
        if kind not in _SCALARS:
            raise self._error(f"metadata key {key!r} is an array of the unknown value type {kind}")
        return list(self._scalars(key, kind, count))

    def _scalars(self, key: str, kind: int, count: int) -> tuple[Any, ...]:
        layout = struct.Struct(f"<{count}{_SCALARS[kind]}")
        start = self._advance(layout.size, f"metadata key {key!r}")
        return layout.unpack_from(self.buffer, start)

    def _string(self, what: str) -> str:
        return self._strings(what, 1)[0]

    def _strings(self, what: str, count: int, wanted: bool = True) -> list[str]:
        """The inner loop of every vocabulary: 10^5 strings, so no call per string but the two that read it."""
        self._check_count(count, 8, f"strings in {what!r}")
        buffer, size, pos, read_length = self.buffer, self.size, self.pos, _U64.unpack_from
        texts: list[str] = []
        for index in range(count):
            start = pos + 8
            if start > size:
                raise self._cut_short(f"string {index} of {what!r}")
            (length,) = read_length(buffer, pos)
            pos = start + length
            if length > MAX_STRING_BYTES:
                raise self._error(f"string {index} of {what!r} claims {length} bytes; the limit is {MAX_STRING_BYTES}")
            if pos > size:
                raise self._cut_short(f"string {index} of {what!r}")
            try:
                if wanted:
                    texts.append(buffer[start:pos].decode())
            except UnicodeDecodeError as err:
                raise self._error(f"string {index} of {what!r} is not UTF-8") from err
        self.pos = pos
        return texts

    def _tensor(self) -> GGUFTensorInfo:
        name = self._string("a tensor name")
        what = f"tensor {name!r}"
        num_dims = self._u32(what)
        if not 1 <= num_dims <= MAX_DIMENSIONS:
            raise self._error(f"{what} has {num_dims} dimensions; 1 to {MAX_DIMENSIONS} are possible")
        shape = tuple(self._u64(what) for _ in range(num_dims))[::-1]
        type_id, offset = self._u32(what), self._u64(what)
        if 0 in shape:
            raise self._error(f"{what} has a dimension of size 0: shape {list(shape)}")
        if type_id not in BLOCK_TYPES:
            raise self._error(f"{what} has the unknown type id {type_id}")
        kind, block_elements, block_bytes = BLOCK_TYPES[type_id]
        if shape[-1] % block_elements:
            raise self._error(f"{what} has rows of {shape[-1]} elements, not a multiple of {kind}'s {block_elements}")
        num_bytes = math.prod(shape) // block_elements * block_bytes
        return GGUFTensorInfo(name, kind, shape, offset, num_bytes)

    def _placed(self, entries: list[GGUFTensorInfo], data_offset: int, alignment: int) -> dict[str, GGUFTensorInfo]:
        """Turn offsets into file positions, and check that each tensor lies in the file and on no other."""
        tensors: dict[str, GGUFTensorInfo] = {}
        for entry in entries:
            if entry.name in tensors:
                raise self._error(f"tensor {entry.name!r} appears twice")
            if entry.offset % alignment:
                raise self._error(f"tensor {entry.name!r} starts at {entry.offset}, not a multiple of {alignment}")
            end = data_offset + entry.offset + entry.num_bytes
            if end > self.size:
                raise self._cut_short(f"tensor {entry.name!r}, which ends at byte {end}")
            tensors[entry.name] = entry._replace(offset=data_offset + entry.offset)
        by_offset = sorted(tensors.values(), key=lambda tensor: tensor.offset)
        for before, after in itertools.pairwise(by_offset):
            if before.offset + before.num_bytes > after.offset:
                raise self._error(f"tensors {before.name!r} and {after.name!r} overlap at byte {after.offset}")
        return tensors

    def _u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self.buffer, self._advance(4, what))[0]
        return value

    def _u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self.buffer, self._advance(8, what))[0]
        return value

    def _advance(self, num_bytes: int, what: str) -> int:
        """Move past `num_bytes` and return where they start."""
        start = self.pos
        if start + num_bytes > self.size:
            raise self._cut_short(what)
        self.pos = start + num_bytes
        return start

    def _check_count(self, count: int, smallest_bytes: int, what: str) -> None:
        if count * smallest_bytes > self.size - self.pos:
            raise self._error(f"{count} {what} claimed, more than its {self.size} bytes can hold")

    def _cut_short(self, what: str) -> ModelError:
        return self._error(f"truncated: its {self.size} bytes end before {what}; download it again")

    def _error(self, message: str) -> ModelError:
        return ModelError(f"{self.path}: {message}")
