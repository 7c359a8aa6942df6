"""What is reported of log probabilities, and in which form. Knows no rows, no requests."""

from typing import NamedTuple

from octavo.messages import PositionLogprobs
from octavo.ops.rank_tokens import RankedTokens


class LogprobsMode(NamedTuple):
    """What is reported.

    Attributes:
        processed: as drawn from, after exclusions, penalties, temperature and truncation; else the model's own.
        normalized: natural log of probabilities; else logits.
    """

    processed: bool
    normalized: bool

    @classmethod
    def parse(cls, mode: str) -> "LogprobsMode":
        """From the value of `--logprobs-mode`."""
        return cls(mode.startswith("processed"), mode.endswith("logprobs"))


def to_messages(ranked: RankedTokens, num_top: list[int]) -> list[PositionLogprobs]:
    """As messages, with the first `num_top[i]` of the most likely tokens at position i."""
    rows = zip(ranked.token_ids.tolist(), ranked.values.tolist(), ranked.ranks.tolist(), num_top, strict=True)
    return [PositionLogprobs(ids[: 1 + k], values[: 1 + k], rank) for ids, values, rank, k in rows]
