"""What a weight format provides: the tensors of one linear layer, how a checkpoint fills them, the product with them.

Knows no models. A format sees a layer as named parts stacked along the output dimension (q, k and v of one projection).
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Slot(NamedTuple):
    """A place for one tensor of a checkpoint; `write` copies it in, and may be called again with newer values."""

    shape: torch.Size
    write: Callable[[Tensor], object]


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
