"""Matrix product with an unquantized weight. Knows nothing of parts, formats or ranks."""

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.ops.dispatch import op
from octavo.ops.empty_weight import Weight, dense

ROWS = 16


@op
def linear(x: Tensor, weight: Weight, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias`.

    Args:
        x: [T, K] of the weight's dtype.
        weight: [N, K]
        bias: [N]
        out: [T, N], written when given.
    """
    x, columns, num_rows = pad_rows(x), dense(weight).t(), len(x)
    product = torch.mm(x, columns) if bias is None else torch.addmm(bias, x, columns)
    return product[:num_rows] if out is None else out.copy_(product[:num_rows])


def pad_rows(x: Tensor) -> Tensor:
    """Append zero rows to x [..., M, K] until M is a multiple of `ROWS`.

    A BLAS has kernels of its own for a few rows, which sum in another order. Without them a row's bits do not depend on
    how many rows there are, with the BLAS that torch brings; a provider that claims "same bits" has it by construction.
    """
    return F.pad(x, (0, 0, 0, -x.shape[-2] % ROWS))
