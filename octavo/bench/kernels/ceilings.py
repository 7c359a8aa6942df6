"""The machine's own limits, measured in the same run as the ops that are set against them."""

import mmap
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from octavo.bench.kernels.cases import COLD_BYTES
from octavo.errors import ConfigError
from octavo.kernels.cpu import native

REPEATS = 7
FMA_STEPS = 1_000_000


class Ceilings(NamedTuple):
    """Best of a few tries, all threads at work: bytes read per second from memory, float32 operations per second."""

    read_bytes_per_s: float
    flops_per_s: float


def measure_ceilings() -> Ceilings:
    """Add up a block of memory larger than the caches, in huge pages where the system has them as weights are, and run
    multiply-adds that never leave the registers.

    Raises:
        ConfigError: the native kernels are not installed.
    """
    kernels = native.load()
    if kernels is None:
        raise ConfigError("the native CPU kernels are not installed, so there is nothing to compare with torch")
    memory = mmap.mmap(-1, COLD_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    block = torch.frombuffer(memory, dtype=torch.float32).fill_(1.0)
    address, count = block.data_ptr(), block.numel()
    read_s = _best(lambda: kernels.read(address, count))
    flops = kernels.multiply_add(FMA_STEPS)
    return Ceilings(4 * count / read_s, flops / _best(lambda: kernels.multiply_add(FMA_STEPS)))


def _best(call: Callable[[], object]) -> float:
    call()
    seconds = []
    for _ in range(REPEATS):
        start_s = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start_s)
    return min(seconds)
