"""Log probabilities (or logits) and ranks of tokens, for the answer and for the prompt. Knows no requests."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from octavo.ops.dispatch import op
from octavo.ops.logit_rows import descending_key, into_blocks, log_sum_exp
from octavo.ops.random import BLOCK


class RankedTokens(NamedTuple):
    """Of each of N positions the actual token first, then the K most likely, most likely first (ties: lowest id).

    Attributes:
        token_ids: [N, 1 + K] int64
        values: [N, 1 + K] float32
        ranks: [N] int64 of the actual token, 1 = most likely.
        log_sums: [N] float64, what the values of other tokens of the row are found with: `values_of`.
    """

    token_ids: Tensor
    values: Tensor
    ranks: Tensor
    log_sums: Tensor


@op
def rank_tokens(logits: Tensor, token_ids: Tensor, num_top: int, *, normalized: bool) -> RankedTokens:
    """Values and ranks of `token_ids` and of the `num_top` most likely tokens.

    A value is the logit, or, `normalized`, float32(logit - ln sum exp) with the difference and the logarithm in float64
    and the sum one of masses (`octavo.ops.logit_rows`). A row that holds NaN or +inf, or nothing but -inf, has NaN
    values and no meaningful ids and ranks.

    Args:
        logits: [N, V] float32
        token_ids: [N] int64
        num_top: K <= V
    """
    actual = logits.gather(1, token_ids[:, None])
    blocks = into_blocks(logits)
    peaks = blocks.amax(-1)
    top = peaks.amax(-1)
    top_ids, top_logits = most_likely(blocks, peaks, num_top)
    values = torch.cat((actual, top_logits), 1)
    log_sums = log_sum_exp(blocks, top) if normalized else torch.zeros_like(top, dtype=torch.float64)
    log_sums = log_sums.masked_fill(~top.isfinite(), math.nan)
    ids, ranks = torch.cat((token_ids[:, None], top_ids), 1), _ranks(blocks, peaks, actual, token_ids)
    return RankedTokens(ids, values_of(values, log_sums[:, None]), ranks, log_sums)


def values_of(logits: Tensor, log_sums: Tensor) -> Tensor:
    """Values of tokens with these logits, in rows with these `log_sums`; shapes broadcast."""
    return (logits - log_sums).float()


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
