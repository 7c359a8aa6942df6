"""KV pages as native kernels take them: anywhere, if the tokens and dimensions of a head lie one after the other."""

import math
import mmap
from typing import NamedTuple

import torch
from torch import Tensor

from octavo.config import KVGroupSpec
from octavo.kernels.cpu.native import Array
from octavo.ops.empty_pages import as_pool, pages_shape
from octavo.ops.empty_pages import empty_pages as op

HUGE_PAGE = 2 << 20


def empty_pages(
    group: KVGroupSpec, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """See `octavo.ops.empty_pages`. In huge pages, where the system has them: see csrc/cpu/memory.h."""
    shape = pages_shape(group, num_blocks, block_size)
    num_bytes = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or num_bytes < HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return op.reference(group, num_blocks, block_size, dtype, device)
    memory = mmap.mmap(-1, num_bytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)  # a wish
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    begin = -whole.data_ptr() % HUGE_PAGE
    return as_pool(whole[begin : begin + num_bytes].view(dtype).view(shape))


class PageStrides(NamedTuple):
    """In elements: from a page to the next, a KV head to the next, a key to its value (0: the key's beginning)."""

    page: int
    head: int
    value: int


def page_strides(pages: Array) -> PageStrides | None:
    """Of pages [2, B, G, block, D] or [1, B, G, block, D]; None where the kernels cannot read them."""
    planes, head_dim = pages.shape[0], pages.shape[4]
    plane, page, head, *inside = (pages.stride(dim) for dim in range(5))
    if not pages.is_cpu or inside != [head_dim, 1]:
        return None
    # What is read behind a key is the next one, or a value.
    if (planes == 2 and (plane <= 0 or head_dim % 2)) or (planes == 1 and head_dim % 8):
        return None
    return PageStrides(page, head, plane if planes == 2 else 0)
