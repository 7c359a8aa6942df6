"""The memory of KV pages. Where pages lie is decided here alone: whoever reads them goes by their strides."""

import torch
from torch import Tensor

from octavo.config import KVGroupSpec
from octavo.ops.dispatch import op


@op
def empty_pages(
    group: KVGroupSpec, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """A pool [L, 2, B, G, block, D] to be filled: L layers, keys then values, B pages, G KV heads.

    A page lies in one piece, all its layers together: it is cleared, copied and sent away by one long write, and a huge
    page of memory holds a few pages in use and not a little of every layer.
    """
    return as_pool(torch.empty(pages_shape(group, num_blocks, block_size), dtype=dtype, device=device))


def pages_shape(group: KVGroupSpec, num_blocks: int, block_size: int) -> tuple[int, ...]:
    """[B, L, G, 2, block, D], as they lie in memory."""
    return (num_blocks, group.num_layers, group.num_kv_heads, 2, block_size, group.head_dim)


def as_pool(pages: Tensor) -> Tensor:
    """Whole pages [B, L, G, 2, block, D] as a pool [L, 2, B, G, block, D]."""
    return pages.permute(1, 3, 0, 2, 4, 5)
