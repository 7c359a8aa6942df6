"""Find the compiled CPU kernels and set them up. Knows no ops; without the compiled part Octavo runs on plain torch."""

from functools import cache
from types import ModuleType
from typing import Protocol

import torch

from octavo import envs
from octavo.errors import ConfigError
from octavo.logging import get_logger

try:
    from octavo.kernels.cpu import _native
except ImportError as err:  # installed without a compiler, or built for another machine
    _native = None  # type: ignore[assignment]
    _why_not: ImportError | None = err
else:
    _why_not = None

log = get_logger(__name__)

TEST_TIERS = ("amx_software",)
"""Tiers that any machine runs, slowly: the AMX kernel on tiles in plain memory. Only `OCTAVO_CPU_TIER` selects them."""

DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""The kernels' numbers for the types of activations, weights and pages."""

Call = tuple[int | float, ...]
"""What a function of the module takes: addresses, strides, sizes and settings."""


class Array(Protocol):
    """What a `Call` is made from: a tensor, or one that has a place in a plan (`kernels/cpu/plan.py`)."""

    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def shape(self) -> torch.Size: ...
    @property
    def is_cpu(self) -> bool: ...
    def data_ptr(self) -> int: ...
    def is_contiguous(self) -> bool: ...
    def stride(self, dim: int, /) -> int: ...


@cache
def load() -> ModuleType | None:
    """The module with its tier chosen (`OCTAVO_CPU_TIER`, or the best that this machine runs); None if there is none.

    Raises:
        ConfigError: the tier asked for is unknown, or this machine cannot run it.
    """
    if _native is None:
        log.info("native CPU kernels are not installed (%s); using plain torch", _why_not)
        return None
    wanted, tiers = envs.CPU_TIER.get(), _native.tiers()
    if wanted and wanted not in (*tiers, *TEST_TIERS):
        raise ConfigError(f"OCTAVO_CPU_TIER is {wanted!r} but this machine runs {', '.join(tiers)}")
    _native.select_tier(wanted or tiers[-1])
    refusal = _native.amx_refusal()
    log.info("CPU kernels: %s%s", _native.tier(), f" (this CPU has AMX, but {refusal})" if refusal else "")
    return _native


def numerics() -> str:
    """What computes, as far as it may change bits: the tier of the kernels, or torch's release."""
    module = load()
    return f"torch {torch.__version__}" if module is None else f"cpu {module.tier()}"


def set_num_threads(threads: int) -> bool:
    """Use this many threads for an op, the calling one included. Default: the CPUs this process may use.

    Returns False if there are no native kernels.
    """
    module = load()
    if module is None:
        return False
    module.set_num_threads(threads)
    return True


def can_dequantize(type_name: str) -> bool:
    """Whether there are native kernels and they know a GGUF type."""
    module = load()
    return module is not None and module.dequantize(type_name, 0, 0, 0)


def dequantize(type_name: str, out: torch.Tensor, blocks: torch.Tensor) -> bool:
    """Expand blocks [B, bytes] of a GGUF type into `out` [B, elements], contiguous float32.

    Returns False, and does nothing, if there are no native kernels or they do not know the type.
    """
    module = load()
    return module is not None and module.dequantize(type_name, out.data_ptr(), blocks.data_ptr(), len(blocks))
