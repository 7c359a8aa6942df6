"""The token embedding and the output head, which may share its table."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from octavo.errors import ModelError
from octavo.layers.build import Build, NamedSlot
from octavo.ops.embedding import embedding
from octavo.ops.empty_weight import Weight, dense, empty_weight
from octavo.ops.logits import logits
from octavo.ops.scale import scale
from octavo.quantization.interface import Slot, slot_of, write_rows

COMPARED_ROWS = 4096


class Embedding(nn.Module):
    """Token embeddings, scaled where the family does so.

    Args:
        scale: multiplies the embeddings.
        round_scale: round the scale to the compute dtype first, as Gemma was trained.
    """

    def __init__(self, vocab_size: int, hidden_size: int, scale: float = 1.0, round_scale: bool = False) -> None:
        super().__init__()
        self.shape = (vocab_size, hidden_size)
        self.scale = scale
        self.round_scale = round_scale
        self.written_by: str | None = None

    def create(self, name: str, build: Build) -> None:
        """Create the table."""
        self.weight = empty_weight(*self.shape, build.dtype, build.device)
        if self.round_scale:
            self.scale = torch.tensor(self.scale, dtype=build.dtype).item()

    def slots(self, name: str) -> Iterator[NamedSlot]:
        """The table."""
        yield self.slot(f"{name}.weight")

    def slot(self, tensor_name: str, required: bool = True) -> NamedSlot:
        """The table under one of the names it has in checkpoints."""
        return NamedSlot(tensor_name, Slot(self.weight.shape, partial(self.write, tensor_name)), required)

    def write(self, tensor_name: str, rows: Tensor, first_row: int = 0) -> None:
        """Fill rows of the table; a tied head may bring them a second time under its own name, with the same values."""
        if self.written_by in (None, tensor_name):
            self.written_by = tensor_name
            write_rows(self.weight, rows, first_row)
        elif not equal(self.weight[first_row : first_row + len(rows)], rows):
            raise ModelError(
                f"tie_word_embeddings is true but {tensor_name} differs from {self.written_by}; "
                "if the head has its own weights, pass --hf-overrides '{\"tie_word_embeddings\": false}'"
            )

    def forward(self, input_ids: Tensor) -> Tensor:
        """[T] -> [T, hidden], a new tensor."""
        hidden = embedding(input_ids, self.weight)
        if self.scale != 1.0:
            scale(hidden, self.scale)
        return hidden


class Head(nn.Module):
    """The output head.

    Args:
        divisor: logits are divided by it (Granite).
        softcap: logits become `softcap * tanh(logits / softcap)` (Gemma 2).
        tied: the embedding whose table is the head's too.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        divisor: float = 1.0,
        softcap: float | None = None,
        tied: Embedding | None = None,
    ) -> None:
        super().__init__()
        self.shape = (vocab_size, hidden_size)
        self.divisor = divisor
        self.softcap = softcap
        self.tied = tied

    def create(self, name: str, build: Build) -> None:
        """Create the table, or take the embedding's, which comes earlier in the model."""
        self.weight = self.tied.weight if self.tied else empty_weight(*self.shape, build.dtype, build.device)

    def slots(self, name: str) -> Iterator[NamedSlot]:
        """The table; a tied head's need not be in the checkpoint."""
        if self.tied:
            yield self.tied.slot(f"{name}.weight", required=False)
        else:
            yield NamedSlot(f"{name}.weight", slot_of(self.weight))

    def forward(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """[S, hidden] -> [S, vocab] float32, written to `out` when given."""
        scores = logits(hidden, self.weight, out)
        if self.divisor != 1.0:
            scores.div_(self.divisor)
        if self.softcap is not None:
            scores.div_(self.softcap).tanh_().mul_(self.softcap)
        return scores


def equal(weight: Weight, tensor: Tensor) -> bool:
    """Whether a weight [V, hidden] holds a tensor's values; without a second copy of it all."""
    for first in range(0, len(tensor), COMPARED_ROWS):
        mine, theirs = dense(weight[first : first + COMPARED_ROWS]), tensor[first : first + COMPARED_ROWS]
        if not torch.equal(mine, theirs.to(mine)):
            return False
    return True
