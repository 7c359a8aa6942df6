"""What a weight format provides: the tensors of one linear layer, how a checkpoint fills them, the product with them.

Knows no models. A format sees a layer as named parts stacked along the output dimension (q, k and v of one projection).
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from octavo.ops.empty_weight import Weight


class Write(Protocol):
    """Copies in rows from `first_row` on; may be called again with newer values."""

    def __call__(self, rows: Tensor, first_row: int = 0) -> object: ...


class Slot(NamedTuple):
    """A place for one tensor of a checkpoint."""

    shape: torch.Size
    write: Write


def slot_of(weight: Weight) -> Slot:
    """The place that a weight is itself."""
    return Slot(weight.shape, partial(write_rows, weight))


def write_rows(weight: Weight, rows: Tensor, first_row: int = 0) -> None:
    """Copy `rows` into a weight."""
    weight[first_row : first_row + len(rows)].copy_(rows)


class LinearSlot(NamedTuple):
    """A slot of a linear layer: which part it fills, and the last piece of the tensor's name ("weight", "bias")."""

    part: str
    suffix: str
    slot: Slot


class LinearWeights(Protocol):
    """The weights of one linear layer in some format."""

    def slots(self) -> Iterator[LinearSlot]:
        """Every tensor that a checkpoint must bring."""
        ...

    def apply(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """`x @ weight.T + bias`: x [T, K] -> [T, N]."""
        ...


class WeightFormat(Protocol):
    """Makes the weights of a linear layer, uninitialized. `parts`: output sizes by part name, in stacking order."""

    def __call__(
        self, in_features: int, parts: dict[str, int], bias: bool, dtype: torch.dtype, device: torch.device
    ) -> LinearWeights: ...
