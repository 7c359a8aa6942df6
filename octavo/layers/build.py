"""The contract between a model and its layers while weights are made and filled. Knows no files and no models.

A layer is built without tensors. `create` makes them, once; `slots` says where each tensor of a checkpoint goes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from octavo.quantization.interface import Slot, WeightFormat


class NamedSlot(NamedTuple):
    """A slot and the full name of its tensor in a checkpoint; a checkpoint may leave out what is not required."""

    name: str
    slot: Slot
    required: bool = True


@dataclass(frozen=True)
class Build:
    """What the tensors of a layer depend on.

    Attributes:
        dtype: of weights and activations.
        max_model_len: positions that rope tables must cover.
        format_of: the weight format of a linear layer, by its dotted name.
        tables: rope tables made so far; layers with the same rope share one.
    """

    dtype: torch.dtype
    device: torch.device
    max_model_len: int
    format_of: Callable[[str], WeightFormat]
    tables: dict[object, Tensor] = field(default_factory=dict)


@runtime_checkable
class Layer(Protocol):
    """A layer with tensors of its own."""

    def create(self, name: str, build: Build) -> None:
        """Create the tensors, uninitialized. `name` is the layer's dotted name in the model."""
        ...

    def slots(self, name: str) -> Iterator[NamedSlot]:
        """Every tensor that a checkpoint must bring for this layer."""
        ...
