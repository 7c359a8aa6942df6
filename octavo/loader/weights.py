"""The tensors of a model, whatever the files: one iterator under Transformers names and conventions."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from octavo.config import ModelSpec
from octavo.errors import ModelError
from octavo.registry import Registry

LOADERS: Registry[Callable[[ModelSpec, torch.dtype], Iterator[tuple[str, Tensor]]]] = Registry(
    "weight format",
    {
        "dummy": "octavo.loader.dummy_weights:iterate",
        "gguf": "octavo.loader.gguf_weights:iterate",
        "safetensors": "octavo.loader.safetensors_weights:iterate",
    },
)
"""By `ModelSpec.format`. A loader yields every tensor of the text model once, in the order of the file."""


def iterate_weights(spec: ModelSpec, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Every weight of the model, one at a time, on the CPU.

    Names and layouts are those of the Transformers model of `spec.architecture` ("model.layers.0.self_attn.q_proj.
    weight" [out, in]; Gemma's norms without the 1). Norm weights come in float32, all else in `dtype`. A tensor may be
    a view of the mapped file: copy it, do not write to it. With tied embeddings there is no "lm_head.weight".

    Raises:
        ModelError: a file that is damaged or of an unknown kind, or no output head; names the file and the tensor.
    """
    tied, has_head = spec.hf_config["tie_word_embeddings"], False
    for name, weight in LOADERS.load(spec.format)(spec, dtype):
        if name == "lm_head.weight":
            has_head = True
            if tied:
                continue
        yield name, weight.to(torch.float32 if name.endswith("norm.weight") else dtype)
    if not tied and not has_head:
        raise ModelError(f"{spec.path}: tensor 'lm_head.weight' is missing and tie_word_embeddings is false")
