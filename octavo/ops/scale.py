"""Multiply by a constant, in place: embeddings and branches of families that scale them."""

from torch import Tensor

from octavo.ops.dispatch import op


@op
def scale(x: Tensor, factor: float) -> None:
    """`x *= factor` in float32, rounded once.

    Args:
        x: [T, N], **mutated**.
    """
    x.mul_(factor)


@scale.meta_kernel
def _(x: Tensor, factor: float) -> None:
    return None
