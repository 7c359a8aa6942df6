"""Which tensors a folder of safetensors files holds, and where. No torch, no data, no model."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from octavo.errors import ModelError
from octavo.files.safetensors_header import SafetensorsTensorInfo, read_safetensors_header

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

_BUFFERS = ("rotary_emb.inv_freq", "masked_bias")  # written by old releases, computed by every reader


class StoredTensor(NamedTuple):
    """A tensor and the file it lies in."""

    path: str
    info: SafetensorsTensorInfo


def find_tensors(folder: str | Path) -> dict[str, StoredTensor]:
    """Every tensor of a folder, by name, in the order of files and of data within them.

    Raises:
        ModelError: no weights, a damaged file, or an index that does not agree with its shards; names file and tensor.
    """
    index = Path(folder) / INDEX
    if index.is_file():
        return _sharded(index)
    return _read(_single(Path(folder)))


def has_weights(folder: str | Path) -> bool:
    """Whether the folder holds safetensors files."""
    return any(Path(folder).glob("*.safetensors"))


def _single(folder: Path) -> Path:
    found = sorted(folder.glob("*.safetensors"))
    if folder / SINGLE in found:
        return folder / SINGLE
    if len(found) == 1:
        return found[0]
    if found:
        raise ModelError(f"{folder} has {len(found)} safetensors files but no {INDEX} that says which tensor is where")
    others = sorted(path.name for path in folder.glob("*") if path.suffix in (".bin", ".pt", ".pth", ".gguf"))
    hint = (
        f"; it has {', '.join(others[:3])}, of which only a .gguf file can be given by its own name" if others else ""
    )
    raise ModelError(f"{folder} has no safetensors weights ({SINGLE} or {INDEX}){hint}")


def _sharded(index: Path) -> dict[str, StoredTensor]:
    weight_map = _weight_map(index)
    tensors: dict[str, StoredTensor] = {}
    for shard in dict.fromkeys(weight_map.values()):
        path = index.parent / shard
        if not path.is_file():
            first = next(name for name, file in weight_map.items() if file == shard)
            raise ModelError(f"{path} is missing, although {INDEX} says that tensor {first!r} is in it")
        stored = _read(path)
        left_out = [name for name in stored if weight_map.get(name) != shard and not name.endswith(_BUFFERS)]
        if left_out:
            raise ModelError(f"{index} does not list tensor {left_out[0]!r}, which is in {shard}")
        tensors |= stored
    absent = [name for name in weight_map if name not in tensors]
    if absent:
        raise ModelError(
            f"{index.parent / weight_map[absent[0]]} lacks tensor {absent[0]!r}, which {INDEX} says is in it"
        )
    return tensors


def _weight_map(index: Path) -> dict[str, str]:
    try:
        content: Any = json.loads(index.read_bytes())
        weight_map = content["weight_map"]
        valid = bool(weight_map) and all(Path(shard).name == shard for shard in weight_map.values())
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as err:
        raise ModelError(f"{index} is not an index of safetensors shards: {err}") from err
    if not valid:
        raise ModelError(f"{index} is not an index of safetensors shards: weight_map must name files of its own folder")
    return dict(weight_map)


def _read(path: Path) -> dict[str, StoredTensor]:
    return {name: StoredTensor(str(path), info) for name, info in read_safetensors_header(path).tensors.items()}
