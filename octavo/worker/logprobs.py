"""Log probabilities and ranks of tokens, for the answer and for the prompt. Knows logits; no rows, no requests."""

from typing import NamedTuple

import torch
from torch import Tensor

from octavo.messages import PositionLogprobs
from octavo.ops.random import BLOCK, natural_log
from octavo.ops.sample import CACHED_ELEMENTS, descending_key, into_blocks, tree_sum_


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


class RankedTokens(NamedTuple):
    """Of each of N positions the actual token first, then the K most likely, most likely first (ties: lowest id).

    Attributes:
        token_ids: [N, 1 + K] int64
        values: [N, 1 + K] float32
        ranks: [N] int64 of the actual token, 1 = most likely.
    """

    token_ids: Tensor
    values: Tensor
    ranks: Tensor

    def positions(self, num_top: list[int]) -> list[PositionLogprobs]:
        """As messages, with the first `num_top[i]` of the most likely tokens at position i."""
        rows = zip(self.token_ids.tolist(), self.values.tolist(), self.ranks.tolist(), num_top, strict=True)
        return [PositionLogprobs(ids[: 1 + k], values[: 1 + k], rank) for ids, values, rank, k in rows]


def rank_tokens(logits: Tensor, token_ids: Tensor, num_top: int, *, normalized: bool) -> RankedTokens:
    """Values and ranks of `token_ids` and of the `num_top` most likely tokens.

    Args:
        logits: [N, V] float32, NaN only in rows whose result is not used.
        token_ids: [N] int64
        num_top: K <= V
    """
    actual = logits.gather(1, token_ids[:, None])
    blocks = into_blocks(logits)
    peaks = blocks.amax(-1)
    listed, values = token_ids[:, None], actual
    if num_top:
        top_ids, top_values = most_likely(blocks, peaks, num_top)
        listed, values = torch.cat((listed, top_ids), 1), torch.cat((values, top_values), 1)
    if normalized:
        values = (values - _log_sum_exp(logits, peaks.amax(-1))[:, None]).float()
    return RankedTokens(listed, values, _ranks(blocks, peaks, actual, token_ids))


def _ranks(blocks: Tensor, peaks: Tensor, actual: Tensor, token_ids: Tensor) -> Tensor:
    """1 + the number of tokens before `token_ids`, whose logits are `actual` [N, 1]; only large blocks have any."""
    row, block = (peaks >= actual).nonzero().unbind(1)
    inside, ids = blocks[row, block], block[:, None] * BLOCK + torch.arange(BLOCK, device=block.device)
    before = (inside > actual[row]) | ((inside == actual[row]) & (ids < token_ids[row][:, None]))
    return torch.ones_like(token_ids).index_add_(0, row, before.sum(1))


class TopTokens(NamedTuple):
    """[N, K] each, most likely first, the lowest id first on ties."""

    token_ids: Tensor
    logits: Tensor


def most_likely(blocks: Tensor, peaks: Tensor, count: int) -> TopTokens:
    """The `count` most likely tokens of each row. They all lie in the `count` blocks of ids with the largest peaks."""
    num_blocks = blocks.shape[1]
    ids = torch.arange(num_blocks * BLOCK, device=blocks.device).view(num_blocks, BLOCK).expand(blocks.shape)
    if count < num_blocks:
        chosen = descending_key(peaks).argsort(dim=1, stable=True)[:, :count].sort(1).values
        index = chosen[:, :, None].expand(-1, -1, BLOCK)
        blocks, ids = blocks.gather(1, index), ids.gather(1, index)
    order = descending_key(blocks.flatten(1)).argsort(dim=1, stable=True)[:, :count]
    return TopTokens(ids.flatten(1).gather(1, order), blocks.flatten(1).gather(1, order))


def _log_sum_exp(logits: Tensor, top: Tensor) -> Tensor:
    """ln of the sum of exp over the vocabulary; `top` is the largest of each row. [N, V], [N] -> [N] float64"""
    step = max(1, CACHED_ELEMENTS // logits.shape[1])
    parts = (slice(start, start + step) for start in range(0, len(logits), step))
    total = torch.cat([tree_sum_((logits[part] - top[part, None]).exp_()) for part in parts])
    return top.double() + natural_log(total.double())
