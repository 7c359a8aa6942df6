"""Norms, gated activations, scales, rope and page writes on the native kernels: ops whose every row stands alone. What
those do not cover (another device or dtype, an unusual stride) runs the torch reference.

An adapter's `..._call` is what a plan records (`kernels/cpu/plan.py`).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from octavo.kernels.cpu import native
from octavo.kernels.cpu.native import Array, Call
from octavo.kernels.cpu.pages import page_strides
from octavo.ops import add_rms_norm as add_rms_norm_op
from octavo.ops import gelu_mul as gelu_mul_op
from octavo.ops import gelu_tanh_mul as gelu_tanh_mul_op
from octavo.ops import rms_norm as rms_norm_op
from octavo.ops import rope as rope_op
from octavo.ops import scale as scale_op
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


def _rows(x: Array) -> _Rows | None:
    """How the rows of x [..., K] lie in memory; None if two strides cannot say it."""
    if x.is_contiguous():
        return _Rows(1, x.shape[-1], 0)
    if x.stride(-1) != 1 or len(x.shape) > 3:
        return None
    return _Rows(1, x.stride(0), 0) if len(x.shape) == 2 else _Rows(x.shape[1], x.stride(0), x.stride(1))


def _covers(x: Array, *others: Array) -> bool:
    """Whether all are on the CPU, of one type that the kernels know, and the kernels are here."""
    dtype = x.dtype
    if _native is None or dtype not in _CODES or not x.is_cpu:
        return False
    for other in others:  # noqa: SIM110  # `all(...)` takes several times as long
        if other.dtype is not dtype or not other.is_cpu:
            return False
    return True


def _is_vector(x: Array, *dtypes: torch.dtype) -> bool:
    return x.is_cpu and x.dtype in dtypes and x.is_contiguous()


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """See `octavo.ops.rms_norm`."""
    target = torch.empty_like(x) if out is None else out
    call = rms_norm_call(x, weight, eps, target)
    if call is None:
        return rms_norm_op.rms_norm.reference(x, weight, eps, out)
    _native.norm(*call)
    return target


def rms_norm_call(x: Array, weight: Array, eps: float, out: Array) -> Call | None:
    """The arguments of `norm`; None where it does not cover these."""
    rows, to_rows = _rows(x), _rows(out)
    if rows is None or to_rows is None or not _covers(x, out) or not _is_vector(weight, *_CODES):
        return None
    *outer, size = x.shape
    return (
        *(out.data_ptr(), *to_rows, x.data_ptr(), *rows, 0, 0, weight.data_ptr(), eps),
        *(math.prod(outer), size, _CODES[x.dtype], _CODES[weight.dtype]),
    )


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """See `octavo.ops.add_rms_norm`."""
    target = torch.empty_like(residual) if out is None else out
    call = add_rms_norm_call(x, residual, weight, eps, target)
    if call is None:
        return add_rms_norm_op.add_rms_norm.reference(x, residual, weight, eps, out)
    _native.norm(*call)
    return target


def add_rms_norm_call(x: Array, residual: Array, weight: Array, eps: float, out: Array) -> Call | None:
    """The arguments of `norm`; None where it does not cover these."""
    rows, to_rows = _rows(x), _rows(out)
    covered = _covers(x, residual, out) and len(residual.shape) == 2 and residual.stride(1) == 1
    if rows is None or to_rows is None or not covered or not _is_vector(weight, *_CODES):
        return None
    count, size = residual.shape
    return (
        *(out.data_ptr(), *to_rows, x.data_ptr(), *rows, residual.data_ptr(), residual.stride(0)),
        *(weight.data_ptr(), eps, count, size, _CODES[x.dtype], _CODES[weight.dtype]),
    )


def _gated(op: Op[..., Tensor]) -> Callable[..., Tensor]:
    """The native version of an op `activation(x[:, :N]) * x[:, N:]`."""
    kernel: Any = getattr(_native, op.name, None)

    def gated_mul(x: Tensor, out: Tensor | None = None) -> Tensor:
        target = torch.empty(x.shape[0], x.shape[1] // 2, dtype=x.dtype, device=x.device) if out is None else out
        call = gated_call(x, target)
        if call is None:
            return op.reference(x, out)
        kernel(*call)
        return target

    gated_mul.__doc__ = f"See `octavo.ops.{op.name}`."
    return gated_mul


def gated_call(x: Array, out: Array) -> Call | None:
    """The arguments of a gated activation; None where it does not cover these."""
    if not _covers(x, out) or x.stride(1) != 1 or out.stride(1) != 1:
        return None
    return (out.data_ptr(), out.stride(0), x.data_ptr(), x.stride(0), *out.shape, _CODES[x.dtype])


silu_mul = _gated(silu_mul_op.silu_mul)
gelu_tanh_mul = _gated(gelu_tanh_mul_op.gelu_tanh_mul)
gelu_mul = _gated(gelu_mul_op.gelu_mul)


def scale(x: Tensor, factor: float) -> None:
    """See `octavo.ops.scale`."""
    call = scale_call(x, factor)
    scale_op.scale.reference(x, factor) if call is None else _native.scale(*call)


def scale_call(x: Array, factor: float) -> Call | None:
    """The kernel's arguments; None where it does not cover these."""
    if not _covers(x) or len(x.shape) != 2 or x.stride(1) != 1:
        return None
    return (x.data_ptr(), x.stride(0), factor, *x.shape, _CODES[x.dtype])


def _packed_heads(x: Array) -> bool:
    """Whether a token's heads [T, heads, D] lie one after the other."""
    return x.stride(2) == 1 and (x.stride(1) == x.shape[2] or x.shape[1] == 1)


def rope(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor, interleaved: bool) -> None:
    """See `octavo.ops.rope`."""
    call = rope_call(q, k, positions, cos_sin, interleaved)
    rope_op.rope.reference(q, k, positions, cos_sin, interleaved) if call is None else _native.rope(*call)


def rope_call(q: Array, k: Array, positions: Array, cos_sin: Array, interleaved: bool) -> Call | None:
    """The kernel's arguments; None where it does not cover these."""
    covered = _covers(q, k) and _packed_heads(q) and _packed_heads(k)
    if not covered or not _is_vector(positions, torch.int64) or not _is_vector(cos_sin, torch.float32):
        return None
    return (
        *(q.data_ptr(), q.stride(0), q.shape[1], k.data_ptr(), k.stride(0), k.shape[1], positions.data_ptr()),
        *(cos_sin.data_ptr(), q.shape[0], q.shape[2], cos_sin.shape[1], interleaved, _CODES[q.dtype]),
    )


def write_kv(k: Tensor, v: Tensor | None, pages: Tensor, slot_mapping: Tensor) -> None:
    """See `octavo.ops.write_kv`."""
    call = write_kv_call(k, v, pages, slot_mapping)
    write_kv_op.write_kv.reference(k, v, pages, slot_mapping) if call is None else _native.write_kv(*call)


def write_kv_call(k: Array, v: Array | None, pages: Array, slot_mapping: Array) -> Call | None:
    """The kernel's arguments; None where it does not cover these."""
    covered = _covers(k) and _packed_heads(k) and (v is None or (_covers(k, v) and _packed_heads(v)))
    strides = page_strides(pages)
    if not covered or strides is None or pages.dtype not in _CODES or not _is_vector(slot_mapping, torch.int64):
        return None
    values = (0, 0) if v is None else (v.data_ptr(), v.stride(0))
    return (
        *(k.data_ptr(), k.stride(0), *values, pages.data_ptr(), slot_mapping.data_ptr()),
        *(k.shape[0], *pages.shape[2:], *strides, 0 if v is None else v.shape[2]),
        *(_CODES[k.dtype], _CODES[pages.dtype]),
    )
