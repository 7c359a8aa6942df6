"""The tensors of a model, whatever the files: one list under Transformers names and conventions, read part by part."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from octavo.config import ModelSpec
from octavo.errors import ModelError
from octavo.registry import Registry

PART_ELEMENTS = 1 << 18
"""Elements converted at once: what is read stays in the cache, and a large tensor needs no large scratch."""


class StoredWeight(NamedTuple):
    """A tensor in a file, of which only the description has been read.

    Attributes:
        read: brings its values, as consecutive ranges of rows; each is valid until the next one is asked for.
    """

    name: str
    shape: Sequence[int]
    read: Callable[[], Iterable[Tensor]]


LOADERS: Registry[Callable[[ModelSpec, torch.dtype], Iterator[StoredWeight]]] = Registry(
    "weight format",
    {
        "dummy": "octavo.loader.dummy_weights:stored",
        "gguf": "octavo.loader.gguf_weights:stored",
        "safetensors": "octavo.loader.safetensors_weights:stored",
    },
)
"""By `ModelSpec.format`. A loader yields every tensor of the text model once, in the order of the file."""


def stored_weights(spec: ModelSpec, dtype: torch.dtype) -> list[StoredWeight]:
    """Every weight of the model, none of them read yet.

    Names and layouts are those of the Transformers model of `spec.architecture` ("model.layers.0.self_attn.q_proj.
    weight" [out, in]; Gemma's norms without the 1). Norm weights come in float32, all else in `dtype`, on the CPU. What
    is read may be a view of the mapped file: copy it, do not write to it. With tied embeddings there is no
    "lm_head.weight".

    Raises:
        ModelError: a file that is damaged or of an unknown kind, or no output head; names the file and the tensor.
    """
    tied = spec.hf_config["tie_word_embeddings"]
    stored = [_in_dtype(weight, dtype) for weight in LOADERS.load(spec.format)(spec, dtype)]
    if tied:
        return [weight for weight in stored if weight.name != "lm_head.weight"]
    if not any(weight.name == "lm_head.weight" for weight in stored):
        raise ModelError(f"{spec.path}: tensor 'lm_head.weight' is missing and tie_word_embeddings is false")
    return stored


def iterate_weights(spec: ModelSpec, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """`stored_weights`, read one at a time, as tensors of their own."""
    for name, shape, read in stored_weights(spec, dtype):
        whole, row = torch.empty(tuple(shape), dtype=_wanted(name, dtype)), 0
        for rows in read():
            whole[row : row + len(rows)] = rows
            row += len(rows)
        yield name, whole


def rows_at_once(columns: int, multiple: int = 1) -> int:
    """Rows of `columns` elements that make a part: a multiple of `multiple`."""
    return max(1, PART_ELEMENTS // columns // multiple) * multiple


def _wanted(name: str, dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if name.endswith("norm.weight") else dtype


def _in_dtype(weight: StoredWeight, dtype: torch.dtype) -> StoredWeight:
    return weight._replace(read=partial(_converted, weight, _wanted(weight.name, dtype)))


def _converted(weight: StoredWeight, dtype: torch.dtype) -> Iterator[Tensor]:
    """The parts in `dtype`, through one scratch."""
    scratch: Tensor | None = None
    for part in weight.read():
        if part.dtype is dtype:
            yield part
            continue
        if scratch is None:
            scratch = torch.empty((rows_at_once(math.prod(weight.shape[1:])), *weight.shape[1:]), dtype=dtype)
        for rows in part.split(len(scratch)):
            yield scratch[: len(rows)].copy_(rows)
