"""Rows of an embedding table."""

import torch
from torch import Tensor

from octavo.ops.dispatch import op
from octavo.ops.empty_weight import Weight, dense


@op
def embedding(ids: Tensor, weight: Weight, out: Tensor | None = None) -> Tensor:
    """Gather `weight[ids]`.

    Args:
        ids: [T] int64, each in 0 .. V - 1.
        weight: [V, K]
        out: [T, K], written when given.
    """
    return torch.index_select(dense(weight), 0, ids, out=out)


@embedding.meta_kernel
def _(ids: Tensor, weight: Weight, out: Tensor | None = None) -> Tensor:
    return ids.new_empty(ids.shape[0], weight.shape[1], dtype=weight.dtype) if out is None else out
