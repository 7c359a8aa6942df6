"""Norms, gated activations, rope and page writes on the native kernels: ops whose every row stands alone. What those do
not cover (another device or dtype, an unusual stride) runs the torch reference.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from octavo.kernels.cpu import native
from octavo.ops import add_rms_norm as add_rms_norm_op
from octavo.ops import gelu_mul as gelu_mul_op
from octavo.ops import gelu_tanh_mul as gelu_tanh_mul_op
from octavo.ops import rms_norm as rms_norm_op
from octavo.ops import rope as rope_op
from octavo.ops import silu_mul as silu_mul_op
from octavo.ops import write_kv as write_kv_op
from octavo.ops.dispatch import Op

_native: Any = native.load()
_CODES = native.DTYPE_CODES


class _Rows(NamedTuple):
    """Row i starts at element (i // inner) * outer_stride + (i % inner) * inner_stride."""

    inner: int
    outer_stride: int
    inner_stride: int


def _rows(x: Tensor) -> _Rows | None:
    """How the rows of x [..., K] lie in memory; None if two strides cannot say it."""
    if x.is_contiguous():
        return _Rows(1, x.shape[-1], 0)
    if x.stride(-1) != 1 or x.dim() > 3:
        return None
    return _Rows(1, x.stride(0), 0) if x.dim() == 2 else _Rows(x.shape[1], x.stride(0), x.stride(1))


def _covers(x: Tensor, *others: Tensor) -> bool:
    """Whether all are on the CPU, of one type that the kernels know, and the kernels are here."""
    dtype = x.dtype
    if _native is None or dtype not in _CODES or not x.is_cpu:
        return False
    for other in others:  # noqa: SIM110  # `all(...)` takes several times as long
        if other.dtype is not dtype or not other.is_cpu:
            return False
    return True


def _is_vector(x: Tensor, *dtypes: torch.dtype) -> bool:
    return x.is_cpu and x.dtype in dtypes and x.is_contiguous()


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """See `octavo.ops.rms_norm`."""
    target = torch.empty_like(x) if out is None else out
    rows, to_rows = _rows(x), _rows(target)
    if rows is None or to_rows is None or not _covers(x, target) or not _is_vector(weight, *_CODES):
        return rms_norm_op.rms_norm.reference(x, weight, eps, out)
    size = x.shape[-1]
    _native.norm(
        *(target.data_ptr(), *to_rows, x.data_ptr(), *rows, 0, 0, weight.data_ptr(), eps),
        *(x.numel() // size, size, _CODES[x.dtype], _CODES[weight.dtype]),
    )
    return target


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """See `octavo.ops.add_rms_norm`."""
    target = torch.empty_like(residual) if out is None else out
    rows, to_rows = _rows(x), _rows(target)
    covered = _covers(x, residual, target) and residual.dim() == 2 and residual.stride(1) == 1
    if rows is None or to_rows is None or not covered or not _is_vector(weight, *_CODES):
        return add_rms_norm_op.add_rms_norm.reference(x, residual, weight, eps, out)
    count, size = residual.shape
    _native.norm(
        *(target.data_ptr(), *to_rows, x.data_ptr(), *rows, residual.data_ptr(), residual.stride(0)),
        *(weight.data_ptr(), eps, count, size, _CODES[x.dtype], _CODES[weight.dtype]),
    )
    return target


def _gated(op: Op[..., Tensor]) -> Callable[..., Tensor]:
    """The native version of an op `activation(x[:, :N]) * x[:, N:]`."""
    kernel: Any = getattr(_native, op.name, None)

    def gated_mul(x: Tensor, out: Tensor | None = None) -> Tensor:
        target = torch.empty(x.shape[0], x.shape[1] // 2, dtype=x.dtype, device=x.device) if out is None else out
        if not _covers(x, target) or x.stride(1) != 1 or target.stride(1) != 1:
            return op.reference(x, out)
        tokens, size = target.shape
        kernel(target.data_ptr(), target.stride(0), x.data_ptr(), x.stride(0), tokens, size, _CODES[x.dtype])
        return target

    gated_mul.__doc__ = f"See `octavo.ops.{op.name}`."
    return gated_mul


silu_mul = _gated(silu_mul_op.silu_mul)
gelu_tanh_mul = _gated(gelu_tanh_mul_op.gelu_tanh_mul)
gelu_mul = _gated(gelu_mul_op.gelu_mul)


def _packed_heads(x: Tensor) -> bool:
    """Whether a token's heads [T, heads, D] lie one after the other."""
    return x.stride(2) == 1 and (x.stride(1) == x.shape[2] or x.shape[1] == 1)


def rope(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor, interleaved: bool) -> None:
    """See `octavo.ops.rope`."""
    covered = _covers(q, k) and _packed_heads(q) and _packed_heads(k)
    if not covered or not _is_vector(positions, torch.int64) or not _is_vector(cos_sin, torch.float32):
        rope_op.rope.reference(q, k, positions, cos_sin, interleaved)
        return
    _native.rope(
        *(q.data_ptr(), q.stride(0), q.shape[1], k.data_ptr(), k.stride(0), k.shape[1], positions.data_ptr()),
        *(cos_sin.data_ptr(), q.shape[0], q.shape[2], cos_sin.shape[1], interleaved, _CODES[q.dtype]),
    )


def write_kv(k: Tensor, v: Tensor, pages: Tensor, slot_mapping: Tensor) -> None:
    """See `octavo.ops.write_kv`."""
    covered = _covers(k, v) and _packed_heads(k) and _packed_heads(v)
    if not covered or not _is_vector(pages, *_CODES) or not _is_vector(slot_mapping, torch.int64):
        write_kv_op.write_kv.reference(k, v, pages, slot_mapping)
        return
    _native.write_kv(
        *(k.data_ptr(), k.stride(0), v.data_ptr(), v.stride(0), pages.data_ptr(), slot_mapping.data_ptr()),
        *(k.shape[0], *pages.shape[1:], _CODES[k.dtype], _CODES[pages.dtype]),
    )
