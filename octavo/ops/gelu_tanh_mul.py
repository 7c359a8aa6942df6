"""GeGLU's activation with the tanh approximation (Gemma): the gate through GELU, times the other half."""

import math

import torch
from torch import Tensor

from octavo.ops.dispatch import op


@op
def gelu_tanh_mul(x: Tensor, out: Tensor | None = None) -> Tensor:
    """`gelu_tanh(x[:, :N]) * x[:, N:]` in float32, rounded once.

    Args:
        x: [T, 2N], the gate first.
        out: [T, N], written when given.
    """
    gate, up = x.float().chunk(2, -1)
    # Not torch's own GELU, whose bits depend on where an element lies (see `silu_mul`).
    inner = (gate.square() * gate * 0.044715 + gate) * math.sqrt(2 / math.pi)
    product = ((torch.tanh(inner) + 1.0) * (gate * 0.5) * up).to(x.dtype)
    return product if out is None else out.copy_(product)


@gelu_tanh_mul.meta_kernel
def _(x: Tensor, out: Tensor | None = None) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1] // 2) if out is None else out
