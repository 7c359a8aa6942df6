"""How a weight matrix is held. A provider whose products want another layout than rows makes its own kind here, and its
versions of `linear`, `embedding` and `logits` read it; the references read any kind, by unpacking it.
"""

from typing import Protocol

import torch
from torch import Tensor

from octavo.ops.dispatch import op


class PackedWeight(Protocol):
    """A matrix [N, K], or some rows of one, in a provider's layout.

    It stands in for a tensor where models are made and filled: a slice is a range of rows, `copy_` fills it.
    """

    shape: torch.Size
    dtype: torch.dtype

    def __getitem__(self, rows: slice, /) -> "PackedWeight":
        """A range of rows, which shares this one's memory."""
        ...

    def copy_(self, source: Tensor) -> object:
        """Take the values of `source` [N, K], of any type; may be called again with newer ones."""
        ...

    def unpack(self) -> Tensor:
        """The values [N, K], a new tensor."""
        ...


Weight = Tensor | PackedWeight


@op
def empty_weight(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Weight:
    """A weight matrix [rows, columns] to be filled."""
    return torch.empty((rows, columns), dtype=dtype, device=device)


def dense(weight: Weight) -> Tensor:
    """The matrix as a tensor [N, K]."""
    return weight if isinstance(weight, Tensor) else weight.unpack()
