"""SwiGLU's activation: the gate through SiLU, times the other half."""

import torch
from torch import Tensor

from octavo.ops.dispatch import op


@op
def silu_mul(x: Tensor, out: Tensor | None = None) -> Tensor:
    """`silu(x[:, :N]) * x[:, N:]` in float32, rounded once.

    Args:
        x: [T, 2N], the gate first.
        out: [T, N], written when given.
    """
    gate, up = x.float().chunk(2, -1)
    # torch's own SiLU gives an element other bits in a vector than at the end of a run, wherever threads cut it.
    product = (gate / (torch.exp(-gate) + 1.0) * up).to(x.dtype)
    return product if out is None else out.copy_(product)


@silu_mul.meta_kernel
def _(x: Tensor, out: Tensor | None = None) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1] // 2) if out is None else out
