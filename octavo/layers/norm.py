"""Root-mean-square norms. Weights stay in float32: they are tiny, and files often hold them so."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from octavo.layers.build import Build, NamedSlot
from octavo.ops.add_rms_norm import add_rms_norm
from octavo.ops.rms_norm import rms_norm
from octavo.quantization.interface import Slot, write_rows


class RMSNorm(nn.Module):
    """`x / rms(x) * weight`."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.size = size
        self.eps = eps

    def create(self, name: str, build: Build) -> None:
        """Create the weight."""
        self.weight = torch.empty(self.size, dtype=torch.float32, device=build.device)

    def slots(self, name: str) -> Iterator[NamedSlot]:
        """The weight."""
        yield NamedSlot(f"{name}.weight", Slot(self.weight.shape, self.write))

    def write(self, rows: Tensor, first_row: int = 0) -> None:
        """Take entries of the weight of a checkpoint."""
        write_rows(self.weight, rows, first_row)

    def forward(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Normalize the last dimension of x; `out` may be x."""
        return rms_norm(x, self.weight, self.eps, out)

    def add(self, branch: Tensor | None, residual: Tensor) -> Tensor:
        """Add a branch, if there is one, to the residual in place and normalize the sum."""
        if branch is None:
            return rms_norm(residual, self.weight, self.eps)
        return add_rms_norm(branch, residual, self.weight, self.eps)


class GemmaRMSNorm(RMSNorm):
    """`x / rms(x) * (1 + weight)`; the 1 is added when the weight is loaded."""

    def write(self, rows: Tensor, first_row: int = 0) -> None:
        """Take entries of the weight of a checkpoint."""
        write_rows(self.weight, rows.float() + 1.0, first_row)
