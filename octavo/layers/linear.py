"""Linear layers whose parts have names, so that nobody else keeps a table of what is stacked into what."""

from collections.abc import Iterator

from torch import Tensor, nn

from octavo.layers.build import Build, NamedSlot
from octavo.quantization.interface import LinearWeights


class Linear(nn.Module):
    """A projection, fused from `parts` or whole.

    Args:
        out_features: a size, or for a fused layer the size of each part by name: its tensors are then called
            `<parent>.<part>.weight` in a checkpoint and may arrive in any order.
    """

    weights: LinearWeights

    def __init__(self, in_features: int, out_features: int | dict[str, int], bias: bool = False) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.bias = bias

    def create(self, name: str, build: Build) -> None:
        """Create the weights in the format that the layer's name asks for."""
        own_name = name.rpartition(".")[2]
        parts = self.out_features if isinstance(self.out_features, dict) else {own_name: self.out_features}
        self.weights = build.format_of(name)(self.in_features, parts, self.bias, build.dtype, build.device)

    def slots(self, name: str) -> Iterator[NamedSlot]:
        """The slots of every part, under the names of unfused layers."""
        parent = name.rpartition(".")[0]
        for part, suffix, slot in self.weights.slots():
            yield NamedSlot(f"{parent}.{part}.{suffix}", slot)

    def forward(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """x [T, K] -> [T, N], parts side by side."""
        return self.weights.apply(x, out)
