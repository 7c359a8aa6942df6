"""GeGLU's activation with the exact GELU: the gate through GELU, times the other half."""

import math

import torch
from torch import Tensor

from octavo.ops.dispatch import op


@op
def gelu_mul(x: Tensor, out: Tensor | None = None) -> Tensor:
    """`gelu(x[:, :N]) * x[:, N:]` with the error function, in float32, rounded once.

    Args:
        x: [T, 2N], the gate first.
        out: [T, N], written when given.
    """
    gate, up = x.float().chunk(2, -1)
    # Not torch's own GELU, whose bits depend on where an element lies (see `silu_mul`).
    product = ((torch.erf(gate * math.sqrt(0.5)) + 1.0) * (gate * 0.5) * up).to(x.dtype)
    return product if out is None else out.copy_(product)


@gelu_mul.meta_kernel
def _(x: Tensor, out: Tensor | None = None) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1] // 2) if out is None else out
