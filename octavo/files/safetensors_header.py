"""Header of a safetensors file: names, types, shapes and places of its tensors, checked against the file.

No torch, no tensor data.

Format: https://github.com/huggingface/safetensors#format.
"""

import json
import math
import os
from typing import Any, NamedTuple

from octavo.errors import ModelError
from octavo.files.opening import describe_intruder, map_file

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""

DTYPE_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


class SafetensorsTensorInfo(NamedTuple):
    """Where one tensor lies; `offset` is the byte of the file at which its data starts."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


class SafetensorsHeader(NamedTuple):
    """All of a safetensors file but the data, tensors in the order of their data."""

    path: str
    metadata: dict[str, str]
    tensors: dict[str, SafetensorsTensorInfo]
    data_offset: int


def read_safetensors_header(path: str | os.PathLike[str]) -> SafetensorsHeader:
    """Read and check the header of a safetensors file.

    Raises:
        ModelError: the file is not safetensors, is cut short, or contradicts itself; names the file and the tensor.
    """
    where = os.fspath(path)
    with map_file(path) as buffer:
        size = len(buffer)
        if what := describe_intruder(buffer[:512]):
            raise ModelError(f"{where}: not a safetensors file but {what}")
        if size < 8:
            raise ModelError(f"{where}: truncated: {size} bytes cannot hold a header; download it again")
        header_bytes = int.from_bytes(buffer[:8], "little")
        if header_bytes > MAX_HEADER_BYTES:
            raise ModelError(
                f"{where}: not safetensors: its header claims {header_bytes} bytes (at most {MAX_HEADER_BYTES})"
            )
        data_offset = 8 + header_bytes
        if data_offset > size:
            raise ModelError(
                f"{where}: truncated: the header claims {header_bytes} bytes but the file has {size}; download it again"
            )
        entries = _parse(where, buffer[8:data_offset])
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise ModelError(f"{where}: __metadata__ is not a JSON object")
    tensors = [_tensor(where, name, entry, data_offset) for name, entry in entries.items()]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.num_bytes))
    _check_layout(where, tensors, data_offset, size)
    return SafetensorsHeader(where, metadata, {tensor.name: tensor for tensor in tensors}, data_offset)


def _parse(where: str, text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [name for name, _ in pairs]
            raise ModelError(
                f"{where}: tensor {next(n for n in names if names.count(n) > 1)!r} appears twice in the header"
            )
        return found

    try:
        entries = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as err:
        raise ModelError(f"{where}: the header is not valid JSON: {err}") from err
    if not isinstance(entries, dict):
        raise ModelError(f"{where}: the header is not a JSON object")
    return entries


def _tensor(where: str, name: str, entry: Any, data_offset: int) -> SafetensorsTensorInfo:
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        integers = all(type(value) is int and value >= 0 for value in (*shape, begin, end))
    except (TypeError, KeyError, ValueError) as err:
        raise ModelError(f"{where}: tensor {name!r} has a malformed header entry") from err
    if not integers or end < begin:
        raise ModelError(f"{where}: tensor {name!r} has the impossible shape {list(shape)} or offsets [{begin}, {end}]")
    if dtype not in DTYPE_BITS:
        raise ModelError(f"{where}: tensor {name!r} has the unknown dtype {dtype!r}; known: {', '.join(DTYPE_BITS)}")
    if 0 in shape:
        raise ModelError(f"{where}: tensor {name!r} has a dimension of size 0: shape {list(shape)}")
    num_bytes = math.prod(shape) * DTYPE_BITS[dtype] // 8
    if num_bytes != end - begin:
        raise ModelError(
            f"{where}: tensor {name!r} of type {dtype} and shape {list(shape)} needs {num_bytes} bytes"
            f" but its data_offsets span {end - begin}"
        )
    return SafetensorsTensorInfo(name, dtype, shape, data_offset + begin, num_bytes)


def _check_layout(where: str, tensors: list[SafetensorsTensorInfo], data_offset: int, size: int) -> None:
    """The format wants the data in one piece: no gap, no overlap, nothing after the last tensor."""
    expected = data_offset
    for tensor in tensors:
        if tensor.offset + tensor.num_bytes > size:
            raise ModelError(
                f"{where}: truncated: its {size} bytes end before tensor {tensor.name!r}, which ends at byte"
                f" {tensor.offset + tensor.num_bytes}; download it again"
            )
        if tensor.offset != expected:
            fault = "overlaps the one before" if tensor.offset < expected else "leaves a gap before it"
            raise ModelError(f"{where}: tensor {tensor.name!r} at byte {tensor.offset} {fault} (expected {expected})")
        expected = tensor.offset + tensor.num_bytes
    if expected != size:
        raise ModelError(f"{where}: {size - expected} bytes follow the last tensor; the file is damaged")
