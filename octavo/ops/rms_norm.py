"""Root-mean-square normalization over the last dimension."""

import torch
from torch import Tensor

from octavo.ops.dispatch import op


@op
def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight`: computed and multiplied in float32, rounded once.

    Args:
        x: [..., K]; the leading dimensions may be strided (heads of a fused projection).
        weight: [K], float32 or the dtype of x. Gemma's `1 + w` is folded in when the weight is loaded.
        out: like x, written when given; may be x itself.
    """
    full = x.float()
    scale = torch.rsqrt(full.square().mean(-1, keepdim=True) + eps)
    normed = (full * scale * weight.float()).to(x.dtype)
    return normed if out is None else out.copy_(normed)


@rms_norm.meta_kernel
def _(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    return x.new_empty(x.shape) if out is None else out
