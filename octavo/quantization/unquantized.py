"""Weights as they are: one matrix of the compute dtype, in the layout of its provider. Knows nothing of files."""

from collections.abc import Iterator

import torch
from torch import Tensor

from octavo.ops.empty_weight import empty_weight
from octavo.ops.linear import linear
from octavo.quantization.interface import LinearSlot, slot_of


class UnquantizedWeights:
    """weight [N, K] and bias [N]; the parts are ranges of N."""

    def __init__(
        self, in_features: int, parts: dict[str, int], bias: bool, dtype: torch.dtype, device: torch.device
    ) -> None:
        out_features = sum(parts.values())
        self.parts = parts
        self.weight = empty_weight(out_features, in_features, dtype, device)
        self.bias = torch.empty(out_features, dtype=dtype, device=device) if bias else None

    def slots(self) -> Iterator[LinearSlot]:
        """A weight, and a bias if there is one, per part."""
        for suffix, whole in (("weight", self.weight), ("bias", self.bias)):
            if whole is None:
                continue
            begin = 0
            for part, size in self.parts.items():
                yield LinearSlot(part, suffix, slot_of(whole[begin : begin + size]))
                begin += size

    def apply(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """`x @ weight.T + bias`: x [T, K] -> [T, N]."""
        return linear(x, self.weight, self.bias, out)
