"""Matrix product with an unquantized weight. Knows nothing of parts, formats or ranks."""

import torch
from torch import Tensor

from octavo.ops.dispatch import op


@op
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias`.

    Args:
        x: [T, K] of the weight's dtype.
        weight: [N, K]
        bias: [N]
        out: [T, N], written when given.

    A row's bits may depend on T here, because a BLAS picks its blocking by shape; a provider that claims "same bits"
    must not.
    """
    if bias is None:
        return torch.mm(x, weight.t(), out=out)
    return torch.addmm(bias, x, weight.t(), out=out)
