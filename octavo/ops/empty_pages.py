"""The memory of KV pages. Where pages lie is decided here alone: whoever reads them goes by their strides."""

import torch
from torch import Tensor

from octavo.ops.dispatch import op


@op
def empty_pages(
    num_layers: int,
    num_blocks: int,
    kv_heads: int,
    block_size: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """A pool [L, 2, B, G, block, D] to be filled: L layers, keys then values, B pages, G KV heads.

    A page lies in one piece, all its layers together: it is cleared, copied and sent away by one long write, and a huge
    page of memory holds a few pages in use and not a little of every layer.
    """
    shape = (num_blocks, num_layers, kv_heads, 2, block_size, head_dim)
    return as_pool(torch.empty(shape, dtype=dtype, device=device))


def as_pool(pages: Tensor) -> Tensor:
    """Whole pages [B, L, G, 2, block, D] as a pool [L, 2, B, G, block, D]."""
    return pages.permute(1, 3, 0, 2, 4, 5)
