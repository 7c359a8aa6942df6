"""Residual addition and the norm that follows it, one pass over the residual stream."""

from torch import Tensor

from octavo.ops.dispatch import op
from octavo.ops.rms_norm import rms_norm


@op
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """Add x to the residual in place, then `rms_norm(residual)`.

    Args:
        x: [T, K]
        residual: [T, K], **mutated**: `residual += x`, rounded to its own dtype before the norm reads it.
        weight: [K], float32 or the dtype of x.
        out: [T, K], written when given; may be x itself.
    """
    residual.add_(x)
    return rms_norm.reference(residual, weight, eps, out)


@add_rms_norm.meta_kernel
def _(x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    return residual.new_empty(residual.shape) if out is None else out
