"""Choose the next token of each row from its logits. Knows no requests: penalties and masks were applied before.

A row's choice depends on its own logits and `SampleParams` alone: sums run in one fixed order per vocabulary size,
masses are added up as integers, noise is a function of the token (`ops.random`). Ids are handled in blocks of 64: after
one pass for the largest logit of every block, nearly all of them are never looked at again.

Distances: `d = logit / temperature - (largest logit / temperature) <= 0`, so that `exp(d)` is a probability relative
to the most likely token's.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from octavo.ops.dispatch import op
from octavo.ops.random import BLOCK, LATEST, DrawKeys, draw_blocks, draw_times, natural_log

NO_TOKEN_LEFT = -1
NOT_FINITE = -2

MASS_SCALE = 2.0**36
"""Probabilities are added up in units of 2^-36 of the most likely token's: exact in int64, whatever the order."""

MARGIN = 1e-3
"""Bounds in float arithmetic give way by this much, so that rounding never excludes what could matter."""

FLOOR_BISECTIONS = 4
"""Passes over the vocabulary that narrow down where a nucleus ends, so that fewer tokens have to be sorted."""

CACHED_ELEMENTS = 1 << 18
"""Passes over the vocabulary take this many logits at a time, which stay in a core's cache."""


@dataclass(slots=True)
class SampleParams:
    """How to choose, per row. Groups of rows are known beforehand so that no kernel has to look for them.

    Attributes:
        temperature: [S] float32, > 0 where a row draws.
        top_k: [S] int64; 0 is off.
        top_p: [S] float64 in (0, 1]; 1 is off.
        min_p: [S] float64 in [0, 1]; 0 is off.
        keys: seed, sample index and position of each row.
        greedy: [.] int64, rows that take the most likely token.
        drawn: [.] int64, the other rows: first `num_nucleus` with top_p alone, then `num_ranked` with top_k or min_p,
            then those with neither.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    keys: DrawKeys
    greedy: Tensor
    drawn: Tensor
    num_nucleus: int
    num_ranked: int


@op
def sample(logits: Tensor, params: SampleParams, out: Tensor | None = None, processed: Tensor | None = None) -> Tensor:
    """Choose one token per row: the most likely (ties: lowest id), or one drawn after temperature, min_p, top_k, top_p.

    Args:
        logits: [S, V] float32, -inf where a token is excluded.
        out: [S] int64, written when given.
        processed: [S, V] float32, set when given to the logits drawn from: divided by the temperature, -inf where
            truncated. Rows that are greedy keep their logits.

    Returns:
        [S] int64 token ids; `NO_TOKEN_LEFT` where all is excluded, `NOT_FINITE` where a logit is NaN or +inf.
    """
    vocab_size = logits.shape[1]
    blocks = into_blocks(logits)
    peaks = blocks.amax(-1)
    top = peaks.amax(-1)
    out = torch.empty(len(logits), dtype=torch.int64, device=logits.device) if out is None else out
    if len(params.greedy) == len(logits):
        out.copy_(most_likely(blocks, peaks))
    elif len(params.greedy):
        out[params.greedy] = most_likely(blocks[params.greedy], peaks[params.greedy])
    if processed is not None:
        processed.copy_(logits)
    if len(params.drawn):
        drawn = scale(blocks, peaks, params)
        cutoff = truncate(drawn, params, vocab_size)
        out[params.drawn] = race(drawn, cutoff, params.keys[params.drawn])
        if processed is not None:
            apply_cutoff(processed, params, drawn.top, cutoff)
    out.masked_fill_(top == -math.inf, NO_TOKEN_LEFT)
    return out.masked_fill_(top.isnan() | (top == math.inf), NOT_FINITE)


def into_blocks(logits: Tensor) -> Tensor:
    """[S, V] -> [S, V / BLOCK, BLOCK], padded with -inf."""
    missing = -logits.shape[1] % BLOCK
    padded = F.pad(logits, (0, missing), value=-math.inf) if missing else logits
    return padded.view(len(logits), -1, BLOCK)


def most_likely(blocks: Tensor, peaks: Tensor) -> Tensor:
    """Id of the largest logit of each row, the lowest id on ties. [S, NB, BLOCK], [S, NB] -> [S]"""
    block = peaks.argmax(-1)
    inside = blocks[torch.arange(len(block), device=block.device), block]
    return block * BLOCK + inside.argmax(-1)


def tree_sum_(x: Tensor) -> Tensor:
    """Sum over the last axis, always added in the same tree. [S, V] -> [S]. **x is overwritten.**"""
    width = x.shape[1]
    while width > 1:
        half = (width + 1) // 2
        x[:, : width - half] += x[:, half:width]
        width = half
    return x[:, 0].clone()


def descending_key(x: Tensor) -> Tensor:
    """float32 -> int64 in 0 .. 2^32 - 1 that is smaller where x is larger: integers sort fast, and stably."""
    bits = (x + 0.0).view(torch.int32)  # + 0.0: -0.0 is no smaller than 0.0
    return 0x7FFFFFFF - (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()


class Scaled(NamedTuple):
    """The F rows that draw. `distance(...)` turns logits into distances.

    Attributes:
        blocks: [S, NB, BLOCK] logits of all rows.
        rows: [F] where in `blocks` each drawing row is.
        temperature: [F]
        top: [F] largest logit / temperature.
        peaks: [F, NB] distance of the largest logit of each block.
    """

    blocks: Tensor
    rows: Tensor
    temperature: Tensor
    top: Tensor
    peaks: Tensor

    def distance(self, logits: Tensor, row: Tensor) -> Tensor:
        """[P, ...] logits of drawing rows `row` [P] -> [P, ...] distances."""
        shape = (-1,) + (1,) * (logits.dim() - 1)
        return logits / self.temperature[row].view(shape) - self.top[row].view(shape)

    def block_distance(self, row: Tensor, block: Tensor) -> Tensor:
        """Distances within some blocks. [P], [P] -> [P, BLOCK]"""
        return self.distance(self.blocks[self.rows[row], block], row)


def scale(blocks: Tensor, peaks: Tensor, params: SampleParams) -> Scaled:
    """Divide by the temperature, of which the largest logit of each block is enough for now."""
    rows, temperature = params.drawn, params.temperature[params.drawn]
    scaled = peaks[rows] / temperature[:, None]
    top = scaled.amax(-1)
    return Scaled(blocks, rows, temperature, top, scaled - top[:, None])


class Cutoff(NamedTuple):
    """What truncation keeps: distances above `distance`, and at `distance` ids up to `token_id`. [F] each.

    Every kind of truncation keeps a beginning of the tokens in order of probability, then id.
    """

    distance: Tensor
    token_id: Tensor

    def keeps(self, row: Tensor, distance: Tensor, token_id: Tensor) -> Tensor:
        """Whether each token is kept. All [P, ...] but `row` [P]."""
        shape = (-1,) + (1,) * (distance.dim() - 1)
        limit, last = self.distance[row].view(shape), self.token_id[row].view(shape)
        return (distance > limit) | ((distance == limit) & (token_id <= last))


def truncate(drawn: Scaled, params: SampleParams, vocab_size: int) -> Cutoff:
    """min_p, then top_k, then top_p over what these leave, as one cutoff per row."""
    num_nucleus, num_rows = params.num_nucleus, params.num_nucleus + params.num_ranked
    cutoff = Cutoff(torch.full_like(drawn.top, -math.inf), torch.full_like(drawn.rows, vocab_size, dtype=torch.int64))
    if num_rows == 0:
        return cutoff
    some = drawn.rows[:num_rows]
    top_k, top_p, min_p = params.top_k[some], params.top_p[some], params.min_p[some]
    total, nucleus_floor = _nucleus_mass(drawn, top_p[:num_nucleus])
    ranked_floor = _ranked_floor(drawn.peaks[num_nucleus:num_rows], top_k[num_nucleus:], min_p[num_nucleus:])
    row, token_id, distance = _candidates(drawn, torch.cat((nucleus_floor, ranked_floor)))
    if len(row) == 0:  # no row has a finite logit
        return cutoff
    mass = (distance.exp().double() * MASS_SCALE).round_().long()
    before = mass.cumsum(0) - mass
    counts = torch.bincount(row, minlength=num_rows)
    start = (counts.cumsum(0) - counts).clamp_(max=len(row) - 1)
    rank = torch.arange(len(row), device=row.device) - start[row]
    before -= before[start][row]
    kept = rank < torch.where(top_k > 0, top_k, vocab_size)[row]
    left = torch.zeros(num_rows, dtype=torch.int64, device=row.device).index_add_(0, row, mass * kept).double()
    left[:num_nucleus] = total.double() * MASS_SCALE
    kept &= before.double() < torch.where(top_p < 1.0, top_p * left, math.inf)[row]
    last = (start + torch.bincount(row[kept], minlength=num_rows) - 1).clamp_(min=0)
    cutoff.distance[:num_rows], cutoff.token_id[:num_rows] = distance[last], token_id[last]
    return cutoff


def _nucleus_mass(drawn: Scaled, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """Of the first rows: the sum of exp(distance) over the vocabulary, and a distance below which no token can be in
    the nucleus because all such tokens together have less than 1 - top_p of it. [n] -> [n], [n]
    """
    logits, num_rows = drawn.blocks.flatten(1), len(top_p)
    if num_rows < len(logits):  # else all rows are in order
        logits = logits[drawn.rows[:num_rows]]
    total, floor = torch.empty_like(drawn.top[:num_rows]), torch.empty_like(drawn.top[:num_rows])
    step = max(1, CACHED_ELEMENTS // logits.shape[1])
    scratch = torch.empty((2, step, logits.shape[1]), device=logits.device)
    for start in range(0, num_rows, step):
        part = slice(start, min(start + step, num_rows))
        relative, clamped = scratch[:, : part.stop - start]
        torch.div(logits[part], drawn.temperature[part, None], out=relative).sub_(drawn.top[part, None]).exp_()
        spare = relative.sum(-1) * (1.0 - top_p[part]).float() * (1.0 - MARGIN)
        low, high = spare / relative.shape[1], torch.ones_like(spare)
        for _ in range(FLOOR_BISECTIONS):
            middle = (low * high).sqrt_()
            # No less than the mass below the middle, and much faster to find.
            fits = torch.minimum(relative, middle[:, None], out=clamped).sum(-1) <= spare
            low, high = torch.where(fits, middle, low), torch.where(fits, high, middle)
        floor[part] = low.log() - MARGIN
        total[part] = tree_sum_(relative)
    return total, floor


def _ranked_floor(peaks: Tensor, top_k: Tensor, min_p: Tensor) -> Tensor:
    """The distance that min_p asks for, raised to the k-th largest peak: at least k tokens are that likely."""
    floor = min_p.log().float()
    if len(peaks) == 0:
        return floor
    kth = peaks.gather(1, descending_key(peaks).argsort(dim=1, stable=True)).gather(
        1, (top_k - 1).clamp(0, peaks.shape[1] - 1)[:, None]
    )
    known = (top_k > 0) & (top_k <= peaks.shape[1])
    return torch.maximum(floor, torch.where(known, kth[:, 0], -math.inf))


class Candidates(NamedTuple):
    """Tokens of all rows in one list: by row, then most likely first, then by id. [N] each."""

    row: Tensor
    token_id: Tensor
    distance: Tensor


def _candidates(drawn: Scaled, floor: Tensor) -> Candidates:
    """Tokens of the first rows whose distance is at least `floor` [rows]."""
    row, block = (drawn.peaks[: len(floor)] >= floor[:, None]).nonzero().unbind(1)
    distance = drawn.block_distance(row, block)
    which, offset = (distance >= floor[row][:, None]).nonzero().unbind(1)
    row, token_id, distance = row[which], block[which] * BLOCK + offset, distance[which, offset]
    order = ((row << 32) | descending_key(distance)).argsort(stable=True)
    return Candidates(row[order], token_id[order], distance[order])


def race(drawn: Scaled, cutoff: Cutoff, keys: DrawKeys) -> Tensor:
    """Draw a kept token of each row with probability proportional to exp(distance). [F] int64

    A token's score is `distance - ln(time)`; the highest wins. No token scores more than its block's peak with the
    block's first time, so blocks that cannot reach a score already found are left out.
    """
    num_rows, num_blocks = drawn.peaks.shape
    all_rows = torch.arange(num_rows, device=drawn.rows.device)
    draws = draw_blocks(keys, num_blocks)
    late = draws.first.log()
    winner = draws.winner + torch.arange(0, num_blocks * BLOCK, BLOCK, device=late.device)
    distance = drawn.distance(drawn.blocks.flatten(1)[drawn.rows[:, None], winner], all_rows)
    found = (distance - late).masked_fill_(~cutoff.keeps(all_rows, distance, winner), -math.inf).amax(-1)
    first_of_top = draws.first.gather(1, drawn.peaks.argmax(-1)[:, None])[:, 0]
    enough = torch.maximum(found, -(first_of_top + LATEST).log()) - MARGIN

    within_reach = (drawn.peaks - late >= enough[:, None]) & (drawn.peaks >= cutoff.distance[:, None])
    row, block = within_reach.nonzero().unbind(1)
    distance = drawn.block_distance(row, block)
    token_id = block[:, None] * BLOCK + torch.arange(BLOCK, device=block.device)
    within_reach = distance - late[row, block][:, None] >= enough[row][:, None]
    which, offset = (within_reach & cutoff.keeps(row, distance, token_id)).nonzero().unbind(1)
    row, token_id, distance = row[which], token_id[which, offset], distance[which, offset]

    score = distance.double() - natural_log(draw_times(keys[row], token_id))
    best = torch.full((num_rows,), -math.inf, dtype=torch.float64, device=row.device)
    wins = score == best.scatter_reduce_(0, row, score, "amax")[row]
    last_id = torch.full((num_rows,), num_blocks * BLOCK - 1, device=row.device)
    return last_id.scatter_reduce_(0, row[wins], token_id[wins], "amin")


def apply_cutoff(logits: Tensor, params: SampleParams, top: Tensor, cutoff: Cutoff) -> None:
    """Overwrite the rows that draw with what they draw from. logits: [S, V]"""
    rows = params.drawn
    scaled = logits[rows] / params.temperature[rows][:, None]
    token_id = torch.arange(logits.shape[1], device=rows.device)
    kept = cutoff.keeps(torch.arange(len(rows), device=rows.device), scaled - top[:, None], token_id)
    logits[rows] = scaled.masked_fill_(~kept, -math.inf)
