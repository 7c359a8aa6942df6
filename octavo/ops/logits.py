"""The output head: scores of every token of the vocabulary, in float32 whatever the weights are."""

import torch
from torch import Tensor

from octavo.ops.dispatch import op
from octavo.ops.empty_weight import Weight, dense
from octavo.ops.linear import pad_rows

SLICE_ROWS = 4096


@op
def logits(x: Tensor, weight: Weight, out: Tensor | None = None) -> Tensor:
    """`x @ weight.T`, products and sums in float32.

    Args:
        x: [S, K]
        weight: [V, K]
        out: [S, V] float32, written when given.
    """
    if out is None:
        out = x.new_empty((len(x), weight.shape[0]), dtype=torch.float32)
    x, num_rows = pad_rows(x.float()), len(x)
    # A slice at a time: the table of a small model with a large vocabulary must not be held twice.
    for first in range(0, weight.shape[0], SLICE_ROWS):
        rows = dense(weight[first : first + SLICE_ROWS])
        out[:, first : first + len(rows)] = torch.mm(x, rows.float().t())[:num_rows]
    return out
