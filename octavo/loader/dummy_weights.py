"""Random weights for benchmarks, asked for with `--load-format dummy` and never made otherwise."""

from collections.abc import Iterator

import torch
from torch import Tensor

from octavo.config import ModelSpec

STANDARD_DEVIATION = 0.02
SEED = 0


def iterate(spec: ModelSpec, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """The tensors that Transformers' model of this config has, the same values every time; norms multiply by 1."""
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 (seconds to import)

    options = {key: value for key, value in spec.hf_config.items() if key not in ("model_type", "transformers_version")}
    config = AutoConfig.for_model(spec.hf_config["model_type"], **options)
    with torch.device("meta"):
        model: torch.nn.Module = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    parameters = dict(model.named_parameters())
    generator = torch.Generator().manual_seed(SEED)
    for name, parameter in parameters.items():
        if name.endswith("norm.weight"):
            plain = 0.0 if spec.hf_config["model_type"].startswith("gemma") else 1.0
            yield name, torch.full(parameter.shape, plain)
        else:
            weight = torch.empty(parameter.shape, dtype=dtype)
            yield name, weight.normal_(0.0, STANDARD_DEVIATION, generator=generator)
