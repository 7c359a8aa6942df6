"""Matrix product with an unquantized weight. Knows nothing of parts, formats or ranks."""

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.ops.dispatch import op
from octavo.ops.empty_weight import Weight, dense

ROWS = 16


@op
def linear(x: Tensor, weight: Weight, bias: Tensor | None = None, out: Tensor | None = None, shards: int = 1) -> Tensor:
    """`x @ weight.T + bias`.

    Args:
        x: [T, K] of the weight's dtype.
        weight: [N, K]
        bias: [N]
        out: [T, N], written when given.
        shards: of K: 1, or 2, 4 or 8 of a multiple of 32 columns each. Their float32 sums are added in a balanced tree,
            so as many ranks, or fewer, can hold whole subtrees of a row-parallel product and get its bits.
    """
    if shards > 1:
        product = sum_of_shards(x, dense(weight), shards) + (0 if bias is None else bias.float())
        return product.to(x.dtype) if out is None else out.copy_(product)
    x, columns, num_rows = pad_rows(x), dense(weight).t(), len(x)
    product = torch.mm(x, columns) if bias is None else torch.addmm(bias, x, columns)
    return product[:num_rows] if out is None else out.copy_(product[:num_rows])


@linear.meta_kernel
def _(x: Tensor, weight: Weight, bias: Tensor | None = None, out: Tensor | None = None, shards: int = 1) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0]) if out is None else out


def sum_of_shards(x: Tensor, weight: Tensor, shards: int) -> Tensor:
    """`x @ weight.T` in float32: neighbours of the partial sums are added until one is left."""
    parts = zip(pad_rows(x).float().chunk(shards, 1), weight.float().chunk(shards, 1), strict=True)
    sums = [torch.mm(mine, columns.t()) for mine, columns in parts]
    while len(sums) > 1:
        sums = [left + right for left, right in zip(sums[::2], sums[1::2], strict=True)]
    return sums[0][: len(x)]


def pad_rows(x: Tensor) -> Tensor:
    """Append zero rows to x [..., M, K] until M is a multiple of `ROWS`.

    A BLAS has kernels of its own for a few rows, which sum in another order. Without them a row's bits do not depend on
    how many rows there are, with the BLAS that torch brings; a provider that claims "same bits" has it by construction.
    """
    return F.pad(x, (0, 0, 0, -x.shape[-2] % ROWS))
