"""Paged attention on the native kernel. What that does not cover (another device or dtype, an odd head size, strided
pages) runs the torch reference.
"""

from typing import Any

import torch
from torch import Tensor

from octavo.kernels.cpu import native
from octavo.kernels.cpu.native import Array, Call
from octavo.kernels.cpu.pages import page_strides
from octavo.ops.paged_attention import PagedRows
from octavo.ops.paged_attention import paged_attention as op

_native: Any = native.load()
_CODES = native.DTYPE_CODES


def paged_attention(
    q: Tensor,
    pages: Tensor,
    batch: PagedRows,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    out: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    value_dim: int | None = None,
) -> Tensor:
    """See `octavo.ops.paged_attention`."""
    target = q.new_empty(*q.shape[:2], value_dim or q.shape[2]) if out is None else out
    sinks, alibi_slopes = (x if x is None else x.float().contiguous() for x in (sinks, alibi_slopes))
    call = paged_attention_call(q, pages, batch, scale, window, softcap, sinks, target, alibi_slopes, value_dim)
    if call is None:
        return op.reference(q, pages, batch, scale, window, softcap, sinks, out, alibi_slopes, value_dim)
    _native.paged_attention(*call)
    return target


def paged_attention_call(
    q: Array,
    pages: Array,
    batch: PagedRows,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Array | None,
    out: Array,
    alibi_slopes: Array | None,
    value_dim: int | None,
) -> Call | None:
    """The kernel's arguments, sinks and slopes in contiguous float32; None where it does not cover these."""
    strides = page_strides(pages)
    if _native is None or strides is None or pages.dtype not in _CODES:
        return None
    if not (_covers_heads(q) and _covers_heads(out) and _covers_batch(batch)):
        return None
    for x in (sinks, alibi_slopes):
        if x is not None and (x.dtype is not torch.float32 or not x.is_contiguous()):
            return None
    assert out.shape[2] == (value_dim or q.shape[2])
    table = batch.block_table
    return (
        *(out.data_ptr(), out.stride(0), out.shape[2], q.data_ptr(), q.stride(0), pages.data_ptr()),
        *(batch.query_start.data_ptr(), batch.seq_lens.data_ptr(), table.data_ptr(), table.stride(0)),
        *(batch.seq_lens.shape[0], q.shape[0], q.shape[1], *pages.shape[2:], *strides),
        *(scale, window or 0, softcap or 0.0, 0 if sinks is None else sinks.data_ptr()),
        0 if alibi_slopes is None else alibi_slopes.data_ptr(),
        *(_CODES[q.dtype], _CODES[pages.dtype]),
    )


def _covers_heads(x: Array) -> bool:
    """Whether the kernel reads x [T, heads, D]: a token's heads must lie one after the other."""
    heads, size = x.shape[1:]
    return x.is_cpu and x.dtype in _CODES and x.stride(2) == 1 and (x.stride(1) == size or heads == 1)


def _covers_batch(batch: PagedRows) -> bool:
    """Whether the kernel reads the batch's tensors as they lie."""
    table = batch.block_table
    for x in (batch.query_start, batch.seq_lens):
        if x.dtype is not torch.int32 or not x.is_contiguous():
            return False
    return table.dtype is torch.int32 and table.stride(1) == 1
