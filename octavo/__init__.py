"""Octavo: inference and serving for large language models.

The names below are imported on first use, so that `import octavo` costs nothing.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING

# Read by OpenMP when torch is first imported: its threads must not spin between two ops, where our own pool works.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from octavo.engine.async_llm import AsyncLLM
    from octavo.engine.resolve import make_config
    from octavo.llm import LLM
    from octavo.outputs import BeamSearchOutput, CompletionOutput, Logprob, RequestOutput
    from octavo.sampling_params import BeamSearchParams, SamplingParams, StructuredOutputsParams

__all__ = [
    "LLM",
    "AsyncLLM",
    "BeamSearchOutput",
    "BeamSearchParams",
    "CompletionOutput",
    "Logprob",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "make_config",
]

_HOMES = {
    "LLM": "octavo.llm",
    "AsyncLLM": "octavo.engine.async_llm",
    "make_config": "octavo.engine.resolve",
    "BeamSearchOutput": "octavo.outputs",
    "CompletionOutput": "octavo.outputs",
    "Logprob": "octavo.outputs",
    "RequestOutput": "octavo.outputs",
    "BeamSearchParams": "octavo.sampling_params",
    "SamplingParams": "octavo.sampling_params",
    "StructuredOutputsParams": "octavo.sampling_params",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
