"""Choose the next token of each row from its logits. Knows no requests: penalties and masks were applied before.

A row's choice depends on its own logits and `SampleParams` alone. Every number that decides is made of IEEE operations
in a stated order (divisions, `logit_rows.mass`, `random.natural_log`) or is a sum of integers, so this reference and
every kernel choose the same token, whatever the device, instruction set, batch or number of threads. Ids are handled in
blocks of 64: after one pass for the largest logit of every block, most of them are never looked at again.

Distances: `d = logit / temperature - (largest logit / temperature) <= 0` in float32, so that `exp(d)` is a probability
relative to the most likely token's. Tokens are in order of their logits, the largest first, then of their ids; every
kind of truncation keeps a beginning of them:

```text
min_p   distance >= float32(ln min_p)
top_k   the first k
top_p   those that have less than top_p * (mass of all that are left) before them, in float64
```
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from octavo.ops.dispatch import op
from octavo.ops.logit_rows import MASS_UNIT, NO_MASS, block_masses, descending_key, into_blocks, mass
from octavo.ops.random import BLOCK, LATEST, DrawKeys, draw_blocks, draw_times, natural_log

NO_TOKEN_LEFT = -1
NOT_FINITE = -2

MARGIN = 1e-3
"""Bounds in float arithmetic give way by this much, so that rounding never excludes what could matter."""

FLOOR_BISECTIONS = 6
"""Steps that narrow down where a nucleus ends, so that fewer tokens have to be sorted."""


@dataclass(slots=True)
class SampleParams:
    """How to choose, per row.

    Attributes:
        temperature: [S] float32; 0 takes the most likely token, and the others are ignored.
        top_k: [S] int64; 0 is off.
        top_p: [S] float64 in (0, 1]; 1 is off.
        min_p: [S] float64 in [0, 1]; 0 is off.
        keys: seed, sample index and position of each row.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    keys: DrawKeys

    def __getitem__(self, rows: Tensor) -> "SampleParams":
        return SampleParams(
            self.temperature[rows], self.top_k[rows], self.top_p[rows], self.min_p[rows], self.keys[rows]
        )


@op
def sample(logits: Tensor, params: SampleParams, out: Tensor | None = None, processed: Tensor | None = None) -> Tensor:
    """Choose one token per row: the most likely (ties: lowest id), or one drawn after temperature, min_p, top_k, top_p.

    Args:
        logits: [S, V] float32, -inf where a token is excluded.
        out: [S] int64, written when given.
        processed: [S, V] float32, set when given to the logits drawn from: divided by the temperature, -inf where
            truncated. Rows that are greedy keep their logits; rows with an error have anything.

    Returns:
        [S] int64 token ids; `NO_TOKEN_LEFT` where all is excluded, `NOT_FINITE` where a logit (divided by the
        temperature) is NaN or +inf.
    """
    out = torch.empty(len(logits), dtype=torch.int64, device=logits.device) if out is None else out
    blocks = into_blocks(logits)
    peaks = blocks.amax(-1)
    drawn = (params.temperature > 0).nonzero()[:, 0]
    top = (peaks / torch.where(params.temperature > 0, params.temperature, 1.0)[:, None]).amax(-1)
    out.copy_(most_likely(blocks, peaks))
    if processed is not None:
        processed.copy_(logits)
    if len(drawn):
        rows = drawn_rows(blocks, peaks, top, params, drawn)
        cutoff = truncate(rows)
        out[drawn] = race(rows, cutoff)
        if processed is not None:
            apply_cutoff(processed, rows, cutoff)
    out.masked_fill_(top == -math.inf, NO_TOKEN_LEFT)
    return out.masked_fill_(top.isnan() | (top == math.inf), NOT_FINITE)


def most_likely(blocks: Tensor, peaks: Tensor) -> Tensor:
    """Id of the largest logit of each row, the lowest id on ties. [S, NB, BLOCK], [S, NB] -> [S]"""
    block = peaks.argmax(-1)
    inside = blocks[torch.arange(len(block), device=block.device), block]
    return block * BLOCK + inside.argmax(-1)


class Drawn(NamedTuple):
    """The F rows that draw.

    Attributes:
        rows: [F] where they are in the batch.
        blocks: [F, NB, BLOCK] their logits.
        peaks: [F, NB] largest logit of each block.
        top: [F] largest logit / temperature.
        params: of these rows.
    """

    rows: Tensor
    blocks: Tensor
    peaks: Tensor
    top: Tensor
    params: SampleParams

    def distance(self, logits: Tensor, row: Tensor) -> Tensor:
        """[P, ...] logits of rows `row` [P] -> [P, ...] distances."""
        shape = (-1,) + (1,) * (logits.dim() - 1)
        return logits / self.params.temperature[row].view(shape) - self.top[row].view(shape)

    def peak_distance(self) -> Tensor:
        """[F, NB]"""
        return self.peaks / self.params.temperature[:, None] - self.top[:, None]


def drawn_rows(blocks: Tensor, peaks: Tensor, top: Tensor, params: SampleParams, rows: Tensor) -> Drawn:
    """Rows `rows` of all."""
    some = blocks if len(rows) == len(blocks) else blocks[rows]
    return Drawn(rows, some, peaks[rows], top[rows], params[rows])


class Cutoff(NamedTuple):
    """What truncation keeps: logits above `logit`, and at `logit` ids up to `token_id`. [F] each."""

    logit: Tensor
    token_id: Tensor

    def keeps(self, row: Tensor, logit: Tensor, token_id: Tensor) -> Tensor:
        """Whether each token is kept. All [P, ...] but `row` [P]."""
        shape = (-1,) + (1,) * (logit.dim() - 1)
        limit, last = self.logit[row].view(shape), self.token_id[row].view(shape)
        return (logit > limit) | ((logit == limit) & (token_id <= last))


def truncate(drawn: Drawn) -> Cutoff:
    """min_p, then top_k, then top_p over what these leave, as one cutoff per row."""
    num_rows, num_blocks = drawn.peaks.shape
    top_k, top_p, min_p = drawn.params.top_k, drawn.params.top_p, drawn.params.min_p
    cutoff = Cutoff(torch.full_like(drawn.top, -math.inf), torch.full_like(drawn.rows, num_blocks * BLOCK))
    ranked = (top_k > 0) | (min_p > 0)
    nucleus = ~ranked & (top_p < 1.0)
    floor = torch.full_like(drawn.top, math.inf)
    floor[ranked] = _ranked_floor(drawn.peak_distance()[ranked], top_k[ranked], min_p[ranked])
    total = torch.zeros_like(drawn.rows)
    if nucleus.any():
        masses = block_masses(drawn.blocks[nucleus], drawn.params.temperature[nucleus], drawn.top[nucleus])
        total[nucleus] = masses.sum(-1)
        floor[nucleus] = _nucleus_floor(masses, top_p[nucleus])
    row, token_id, logit, distance = _candidates(drawn, floor)
    if len(row) == 0:  # nothing is truncated, or no row has a finite logit
        return cutoff
    own = mass(distance)
    before = own.cumsum(0) - own
    counts = torch.bincount(row, minlength=num_rows)
    start = (counts.cumsum(0) - counts).clamp_(max=len(row) - 1)
    rank = torch.arange(len(row), device=row.device) - start[row]
    before -= before[start][row]
    kept = rank < torch.where(top_k > 0, top_k, num_blocks * BLOCK)[row]
    left = torch.where(nucleus, total, torch.zeros_like(total).index_add_(0, row, own * kept))
    kept &= before.double() < torch.where(top_p < 1.0, top_p * left.double(), math.inf)[row]
    last = (start + torch.bincount(row[kept], minlength=num_rows) - 1).clamp_(min=0)
    some = counts > 0
    cutoff.logit[some], cutoff.token_id[some] = logit[last[some]], token_id[last[some]]
    return cutoff


def _nucleus_floor(masses: Tensor, top_p: Tensor) -> Tensor:
    """A distance below which no token can be in the nucleus, because all such tokens together have less than 1 - top_p
    of the mass. A block has no more of it than BLOCK tokens at the floor, nor than all its own. [n, NB], [n] -> [n]
    """
    masses = masses.double()
    spare = masses.sum(-1) * (1.0 - top_p) * (1.0 - MARGIN)
    low, high = torch.full_like(spare, NO_MASS), torch.zeros_like(spare)
    for _ in range(FLOOR_BISECTIONS):
        middle = (low + high) / 2
        most = middle.exp()[:, None] * (BLOCK / MASS_UNIT)
        fits = torch.minimum(masses, most).sum(-1) <= spare
        low, high = torch.where(fits, middle, low), torch.where(fits, high, middle)
    return low.float() - MARGIN


def _ranked_floor(peaks: Tensor, top_k: Tensor, min_p: Tensor) -> Tensor:
    """The distance that min_p asks for, raised to the k-th largest peak: at least k tokens are that likely."""
    floor = natural_log(min_p).float().masked_fill_(min_p == 0.0, -math.inf)
    ordered = peaks.gather(1, descending_key(peaks).argsort(dim=1, stable=True))
    kth = ordered.gather(1, (top_k - 1).clamp(0, peaks.shape[1] - 1)[:, None])[:, 0]
    known = (top_k > 0) & (top_k <= peaks.shape[1])
    return torch.maximum(floor, torch.where(known, kth, -math.inf))


class Candidates(NamedTuple):
    """Tokens of all rows in one list: by row, then in order. [N] each."""

    row: Tensor
    token_id: Tensor
    logit: Tensor
    distance: Tensor


def _candidates(drawn: Drawn, floor: Tensor) -> Candidates:
    """Tokens whose distance is at least `floor` [F]."""
    row, block = (drawn.peak_distance() >= floor[:, None]).nonzero().unbind(1)
    logit = drawn.blocks[row, block]
    distance = drawn.distance(logit, row)
    which, offset = (distance >= floor[row][:, None]).nonzero().unbind(1)
    row, token_id = row[which], block[which] * BLOCK + offset
    logit, distance = logit[which, offset], distance[which, offset]
    order = ((row << 32) | descending_key(logit)).argsort(stable=True)
    return Candidates(row[order], token_id[order], logit[order], distance[order])


def race(drawn: Drawn, cutoff: Cutoff) -> Tensor:
    """Draw a kept token of each row with probability proportional to exp(distance). [F] int64

    A token's score is `distance - ln(time)`; the highest wins. No token scores more than its block's peak with the
    block's first time, so blocks that cannot reach a score already found are left out.
    """
    num_rows, num_blocks = drawn.peaks.shape
    all_rows = torch.arange(num_rows, device=drawn.rows.device)
    keys, peaks = drawn.params.keys, drawn.peak_distance()
    draws = draw_blocks(keys, num_blocks)
    late = draws.first.log()
    winner = draws.winner + torch.arange(0, num_blocks * BLOCK, BLOCK, device=late.device)
    logit = drawn.blocks.flatten(1).gather(1, winner)
    score = drawn.distance(logit, all_rows) - late
    found = score.masked_fill_(~cutoff.keeps(all_rows, logit, winner), -math.inf).amax(-1)
    first_of_top = draws.first.gather(1, peaks.argmax(-1)[:, None])[:, 0]
    enough = torch.maximum(found, -(first_of_top + LATEST).log()) - MARGIN

    within_reach = (peaks - late >= enough[:, None]) & (drawn.peaks >= cutoff.logit[:, None])
    row, block = within_reach.nonzero().unbind(1)
    logit = drawn.blocks[row, block]
    distance = drawn.distance(logit, row)
    token_id = block[:, None] * BLOCK + torch.arange(BLOCK, device=block.device)
    within_reach = distance - late[row, block][:, None] >= enough[row][:, None]
    which, offset = (within_reach & cutoff.keeps(row, logit, token_id)).nonzero().unbind(1)
    row, token_id, distance = row[which], token_id[which, offset], distance[which, offset]

    score = distance.double() - natural_log(draw_times(keys[row], token_id))
    best = torch.full((num_rows,), -math.inf, dtype=torch.float64, device=row.device)
    wins = score == best.scatter_reduce_(0, row, score, "amax")[row]
    last_id = torch.full((num_rows,), num_blocks * BLOCK - 1, device=row.device)
    return last_id.scatter_reduce_(0, row[wins], token_id[wins], "amin")


def apply_cutoff(logits: Tensor, drawn: Drawn, cutoff: Cutoff) -> None:
    """Overwrite the rows that draw with what they draw from. logits: [S, V]"""
    own = logits[drawn.rows]
    kept = cutoff.keeps(torch.arange(len(own), device=own.device), own, torch.arange(own.shape[1], device=own.device))
    logits[drawn.rows] = (own / drawn.params.temperature[:, None]).masked_fill_(~kept, -math.inf)
