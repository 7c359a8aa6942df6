"""The tensors of a model, whatever the files: one list under Transformers names and conventions, read one by one."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from octavo.config import ModelSpec
from octavo.errors import ModelError
from octavo.registry import Registry


class StoredWeight(NamedTuple):
    """A tensor in a file, of which only the description has been read; `read` brings its values."""

    name: str
    shape: tuple[int, ...]
    read: Callable[[], Tensor]


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
    weight" [out, in]; Gemma's norms without the 1). Norm weights come in float32, all else in `dtype`, on the CPU. A
    tensor that is read may be a view of the mapped file: copy it, do not write to it. With tied embeddings there is no
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
    """`stored_weights`, read one at a time."""
    for name, _, read in stored_weights(spec, dtype):
        yield name, read()


def _in_dtype(weight: StoredWeight, dtype: torch.dtype) -> StoredWeight:
    wanted = torch.float32 if weight.name.endswith("norm.weight") else dtype
    return weight._replace(read=lambda: weight.read().to(wanted))
