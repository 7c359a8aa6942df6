"""Weight matrices in the native layout, and the ops that read them: products and rows of an embedding table. What those
do not cover (another device or dtype, an unusual stride) runs the torch reference.
"""

from typing import Any

import torch
from torch import Tensor

from octavo.kernels.cpu import native
from octavo.kernels.cpu.native import Array, Call
from octavo.ops import embedding as embedding_op
from octavo.ops import empty_weight as empty_weight_op
from octavo.ops import linear as linear_op
from octavo.ops import logits as logits_op
from octavo.ops.empty_weight import Weight

_native: Any = native.load()
_CODES = native.DTYPE_CODES


class PanelWeight:
    """Rows begin .. begin + N of a matrix in panels of 32 rows (csrc/cpu/kernels.h). See `octavo.ops.empty_weight`."""

    def __init__(self, matrix: Any, dtype: torch.dtype, begin: int, shape: torch.Size, whole: bool = True) -> None:
        self.matrix = matrix
        self.dtype = dtype
        self.begin = begin
        self.shape = shape
        self.whole = whole
        """Products and gathers want all rows of the matrix."""

    def __getitem__(self, rows: slice, /) -> "PanelWeight":
        """A range of rows, which shares this one's memory."""
        begin, end, step = rows.indices(self.shape[0])
        assert step == 1
        shape = torch.Size((max(0, end - begin), self.shape[1]))
        return PanelWeight(self.matrix, self.dtype, self.begin + begin, shape, False)

    def copy_(self, source: Tensor) -> "PanelWeight":
        """Pack the values of `source` [N, K]."""
        if source.shape != self.shape:
            raise ValueError(f"cannot copy {list(source.shape)} into a weight of {list(self.shape)}")
        rows = source.to("cpu", self.dtype)
        rows = rows if rows.stride(1) == 1 else rows.contiguous()
        self.matrix.write(rows.data_ptr(), rows.stride(0), self.begin, len(rows))
        return self

    def unpack(self) -> Tensor:
        """The values [N, K], a new tensor."""
        out = torch.empty(self.shape, dtype=self.dtype)
        self.matrix.read(out.data_ptr(), out.stride(0), self.begin, len(out))
        return out


def empty_weight(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Weight:
    """See `octavo.ops.empty_weight`."""
    if _native is None or dtype not in _CODES or device.type != "cpu":
        return empty_weight_op.empty_weight.reference(rows, columns, dtype, device)
    return PanelWeight(_native.Matrix(rows, columns, _CODES[dtype]), dtype, 0, torch.Size((rows, columns)))


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None, out: Tensor | None = None, shards: int = 1) -> Tensor:
    """See `octavo.ops.linear`."""
    target = x.new_empty((x.shape[0], weight.shape[0])) if out is None else out
    call = linear_call(x, weight, bias, target, shards) if target.dtype is x.dtype else None
    if call is None:
        return linear_op.linear.reference(x, weight, bias, out, shards)
    _native.linear(*call)
    return target


def logits(x: Tensor, weight: Weight, out: Tensor | None = None) -> Tensor:
    """See `octavo.ops.logits`."""
    target = x.new_empty((x.shape[0], weight.shape[0]), dtype=torch.float32) if out is None else out
    call = linear_call(x, weight, None, target)
    if call is None:
        return logits_op.logits.reference(x, weight, out)
    _native.linear(*call)
    return target


def linear_call(x: Array, weight: Weight, bias: Array | None, out: Array, shards: int = 1) -> Call | None:
    """The kernel's arguments: out = x @ weight.T + bias, rounded to out's type, which is x's or float32. None where it
    does not multiply these as they lie.
    """
    if type(weight) is not PanelWeight or not weight.whole or x.dtype is not weight.dtype or not x.is_cpu:
        return None
    if x.stride(1) != 1 or out.stride(1) != 1 or (bias is not None and not _is_vector(bias, x.dtype)):
        return None
    return (
        *(weight.matrix.address, out.data_ptr(), out.stride(0), out.dtype is torch.float32),
        *(x.data_ptr(), x.stride(0), 0 if bias is None else bias.data_ptr(), x.shape[0], shards),
    )


def embedding(ids: Tensor, weight: Weight, out: Tensor | None = None) -> Tensor:
    """See `octavo.ops.embedding`."""
    target = torch.empty((ids.shape[0], weight.shape[1]), dtype=weight.dtype) if out is None else out
    call = embedding_call(ids, weight, target)
    if call is None:
        return embedding_op.embedding.reference(ids, weight, out)
    _native.embedding(*call)
    return target


def embedding_call(ids: Array, weight: Weight, out: Array) -> Call | None:
    """The kernel's arguments; None where it does not cover these."""
    if type(weight) is not PanelWeight or not weight.whole or not _is_vector(ids, torch.int64):
        return None
    if out.stride(1) != 1 or out.dtype is not weight.dtype:
        return None
    return (weight.matrix.address, out.data_ptr(), out.stride(0), ids.data_ptr(), ids.shape[0])


def _is_vector(x: Array, dtype: torch.dtype) -> bool:
    return x.is_cpu and x.dtype is dtype and x.is_contiguous()
