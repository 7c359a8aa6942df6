"""Weights of a Transformers folder. Names are Transformers' own; only wrappers around the text model are taken off."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from octavo.config import ModelSpec
from octavo.errors import ModelError
from octavo.files.safetensors_header import SafetensorsTensorInfo
from octavo.loader.mapped import MappedFile
from octavo.loader.safetensors_files import find_tensors
from octavo.loader.weights import StoredWeight

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

_PREFIXES = {"language_model.": "", "model.language_model.": "model."}
_NOT_TEXT = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")


def stored(spec: ModelSpec, dtype: torch.dtype) -> Iterator[StoredWeight]:
    """See `weights.stored_weights`."""
    files: dict[str, MappedFile] = {}
    for stored_name, (path, info) in find_tensors(spec.path).items():
        if stored_name.startswith(_NOT_TEXT) or stored_name.endswith("rotary_emb.inv_freq"):
            continue
        if info.dtype not in DTYPES:
            raise ModelError(f"{path}: tensor {stored_name!r} has type {info.dtype}; readable: {', '.join(DTYPES)}")
        file = files.setdefault(path, MappedFile(path))
        read = partial(_read, file, info)
        yield StoredWeight(text_name(stored_name), info.shape, read)


def _read(file: MappedFile, info: SafetensorsTensorInfo) -> tuple[Tensor]:
    return (file.tensor(info.offset, info.num_bytes, DTYPES[info.dtype], info.shape),)


def text_name(name: str) -> str:
    """Name in the text model of a tensor of a model that also takes images."""
    for prefix, replacement in _PREFIXES.items():
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name
