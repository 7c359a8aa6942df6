"""GeGLU's activation with the exact GELU: the gate through GELU, times the other half."""

import torch.nn.functional as F
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
    product = (F.gelu(gate) * up).to(x.dtype)
    return product if out is None else out.copy_(product)


@gelu_mul.meta_kernel
def _(x: Tensor, out: Tensor | None = None) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1] // 2) if out is None else out
