"""Random weights for benchmarks, asked for with `--load-format dummy` and never made otherwise."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from octavo.config import ModelSpec
from octavo.loader.weights import StoredWeight

STANDARD_DEVIATION = 0.02


def stored(spec: ModelSpec, dtype: torch.dtype) -> Iterator[StoredWeight]:
    """The tensors that Transformers' model of this config has, the same values every time; norms multiply by 1."""
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 (seconds to import)

    options = {key: value for key, value in spec.hf_config.items() if key not in ("model_type", "transformers_version")}
    config = AutoConfig.for_model(spec.hf_config["model_type"], **options)
    with torch.device("meta"):
        model: torch.nn.Module = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    norm_value = 0.0 if spec.hf_config["model_type"].startswith("gemma") else 1.0
    for index, (name, parameter) in enumerate(model.named_parameters()):
        shape = tuple(parameter.shape)
        is_norm = name.endswith("norm.weight")
        read = partial(_constant, shape, norm_value) if is_norm else partial(_noise, shape, dtype, index)
        yield StoredWeight(name, shape, read)


def _constant(shape: tuple[int, ...], value: float) -> tuple[Tensor]:
    return (torch.full(shape, value),)


def _noise(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> tuple[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (torch.empty(shape, dtype=dtype).normal_(0.0, STANDARD_DEVIATION, generator=generator),)
