"""Causal attention over paged keys and values: prefill, decode and any mix of both, in one call.

Deals in pages and positions; knows no requests, groups or layers. Keys and values come from the pages only, so it makes
no difference whether a token was computed in this step, in an earlier chunk, or came from the prefix cache.
"""

from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.ops.dispatch import op
from octavo.ops.linear import ROWS, pad_rows

KV_SPLIT = 256
"""Keys are taken in runs that begin at multiples of this position; their partial results merge in order."""

MAX_WORK_ELEMENTS = 1 << 23
"""Most float32 numbers one gathered run of keys or its scores may take (32 MiB)."""


class PagedRows(Protocol):
    """What this op and its kernels read of `attention.batch.AttentionBatch` (documented there)."""

    query_start: Tensor
    seq_lens: Tensor
    block_table: Tensor
    max_query_len: int
    max_seq_len: int


@op
def paged_attention(
    q: Tensor,
    pages: Tensor,
    batch: PagedRows,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    out: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    value_dim: int | None = None,
) -> Tensor:
    """Softmax attention of each token to the tokens of its row up to itself.

    Args:
        q: [T, H, D]; T may be strided.
        pages: [2, B, G, block, D] keys, then values; H is a multiple of G, head h reads KV head h // (H / G). Or
            [1, B, G, block, D]: values are the beginning of the keys (MLA's latent vectors).
        batch: which token belongs to which row, and where the row's pages are. Tokens past query_start[-1] are padding.
        scale: multiplies q . k.
        window: tokens a query sees, itself included; None sees all.
        softcap: scores become `softcap * tanh(score / softcap)`.
        sinks: [H] float32, a logit per head that takes part in the softmax and has no value.
        out: [T, H, V], written when given; rows of padding are zero.
        alibi_slopes: [H] float32, ALiBi: `slope * (position of the key - position of the query)` is added to a score.
        value_dim: V, how many elements of a value count; None for all D.

    The KV axis is split at absolute multiples of `KV_SPLIT`. Each run gives (maximum, sum, weighted values) in float32;
    runs merge in order. Rows of one token are computed together, other rows one by one.
    """
    value_dim = value_dim or q.shape[2]
    out = q.new_zeros(*q.shape[:2], value_dim) if out is None else out.zero_()
    if q.is_meta:
        return out
    scoring = Scoring(scale, window, softcap, sinks, alibi_slopes, value_dim)
    starts, ends = batch.query_start.tolist(), batch.seq_lens.tolist()
    counts = [stop - start for start, stop in pairwise(starts)]
    attend_single(q, pages, batch.block_table, [r for r, n in enumerate(counts) if n == 1], starts, ends, scoring, out)
    for row, count in enumerate(counts):
        if count > 1:
            tokens = slice(starts[row], starts[row + 1])
            attend_run(q[tokens], ends[row] - count, pages, batch.block_table[row : row + 1], scoring, out[tokens])
    return out


class Scoring(NamedTuple):
    """What of a call is the same for all its rows."""

    scale: float
    window: int | None
    softcap: float | None
    sinks: Tensor | None
    alibi_slopes: Tensor | None
    value_dim: int


class Partial(NamedTuple):
    """Softmax attention over some keys, unnormalized: [R, G, Q, 1], [R, G, Q, 1] and [R, G, Q, V] float32."""

    maximum: Tensor
    total: Tensor
    values: Tensor


def attend_single(
    q: Tensor,
    pages: Tensor,
    block_table: Tensor,
    rows: list[int],
    starts: list[int],
    ends: list[int],
    scoring: Scoring,
    out: Tensor,
) -> None:
    """Rows with one token (decode), many at once; fills `out` [T, H, V] at their tokens."""
    heads, head_dim, groups = q.shape[1], q.shape[2], pages.shape[2]
    at_once = max(MAX_WORK_ELEMENTS // (KV_SPLIT * groups * max(heads // groups, head_dim, ROWS)), 1)
    rows = sorted(rows, key=ends.__getitem__)  # rows of similar length share the runs they walk through
    for i in range(0, len(rows), at_once):
        some = rows[i : i + at_once]
        tokens = torch.tensor([starts[row] for row in some], device=q.device)
        positions = torch.tensor([[ends[row] - 1] for row in some], device=q.device)
        table = block_table[torch.tensor(some, device=q.device)]
        first, last = first_key(ends[some[0]] - 1, scoring.window), ends[some[-1]]
        out[tokens] = attend(q[tokens].unsqueeze(1), positions, pages, table, first, last, scoring).squeeze(1)


def attend_run(q: Tensor, first_position: int, pages: Tensor, table: Tensor, scoring: Scoring, out: Tensor) -> None:
    """The tokens [n, H, D] of one row, which begin at `first_position` (prefill); fills `out` [n, H, V]."""
    at_once = max(MAX_WORK_ELEMENTS // (KV_SPLIT * q.shape[1]), 1)
    for i in range(0, len(q), at_once):
        some = q[i : i + at_once]
        begin = first_position + i
        end = begin + len(some)
        positions = torch.arange(begin, end, device=q.device).unsqueeze(0)
        first = first_key(begin, scoring.window)
        out[i : i + at_once] = attend(some.unsqueeze(0), positions, pages, table, first, end, scoring)[0]


def first_key(position: int, window: int | None) -> int:
    """The first position that a query at `position` sees."""
    return 0 if window is None else max(position - window + 1, 0)


def attend(
    q: Tensor, positions: Tensor, pages: Tensor, table: Tensor, first: int, last: int, scoring: Scoring
) -> Tensor:
    """Attention of R rows with n queries each, over keys first .. last - 1.

    Args:
        q: [R, n, H, D]
        positions: [R, n] of the queries.
        table: [R, max_blocks]

    Returns:
        [R, n, H, V] in the dtype of q.
    """
    rows, n, heads, head_dim = q.shape
    groups = pages.shape[2]
    # Queries that share a KV head become rows of one matrix [R, G, Q, D], Q = H/G * n, padded by some that see nothing.
    folded = q.float().view(rows, n, groups, -1, head_dim).permute(0, 2, 3, 1, 4).reshape(rows, groups, -1, head_dim)
    num_queries, folded = folded.shape[2], pad_rows(folded)
    padding = folded.shape[2] - num_queries
    positions = F.pad(positions.repeat(1, heads // groups), (0, padding), value=-1)
    state, slopes = start(folded, scoring, n), by_query(scoring.alibi_slopes, folded, n)
    for begin in range(first // KV_SPLIT * KV_SPLIT, last, KV_SPLIT):
        state = merge(state, partial(folded, positions, slopes, pages, table, begin, scoring))
    attended = (state.values / state.total)[:, :, :num_queries].unflatten(2, (-1, n))
    return attended.permute(0, 3, 1, 2, 4).reshape(rows, n, heads, scoring.value_dim).to(q.dtype)


def by_query(by_head: Tensor | None, folded: Tensor, n: int) -> Tensor | None:
    """What [H] holds for the head of each query [R, G, Q, D], n queries per head: [G, Q, 1], 0 for padding."""
    if by_head is None:
        return None
    groups, queries = folded.shape[1:3]
    per_query = by_head.float().view(groups, -1).repeat_interleave(n, 1)
    return F.pad(per_query, (0, queries - per_query.shape[1])).unsqueeze(-1)


def start(folded: Tensor, scoring: Scoring, n: int) -> Partial:
    """The state before any key: empty, or holding the sink of the head of each query (n queries per head)."""
    sinks, values = by_query(scoring.sinks, folded, n), folded.new_zeros(*folded.shape[:3], scoring.value_dim)
    if sinks is None:
        maximum = folded.new_full((*folded.shape[:3], 1), float("-inf"))
        return Partial(maximum, torch.zeros_like(maximum), values)
    maximum = sinks.expand(len(folded), -1, -1, -1)
    return Partial(maximum, torch.ones_like(maximum), values)


def partial(
    folded: Tensor,
    positions: Tensor,
    slopes: Tensor | None,
    pages: Tensor,
    table: Tensor,
    begin: int,
    scoring: Scoring,
) -> Partial:
    """Attention of queries [R, G, Q, D] at positions [R, Q] to keys begin .. begin + KV_SPLIT - 1.

    Always that many keys, so that a row's sums have one shape; those a query does not see have no weight.
    """
    keys, values = gather(pages[0], table, begin), gather(pages[-1, ..., : scoring.value_dim], table, begin)
    keys_at = torch.arange(begin, begin + KV_SPLIT, device=folded.device)
    seen = keys_at <= positions.unsqueeze(-1)  # [R, Q, S]
    if scoring.window is not None:
        seen &= keys_at > positions.unsqueeze(-1) - scoring.window
    # Slots nobody wrote may hold anything, and 0 x NaN is NaN: masking the weights is not enough.
    values.masked_fill_(~seen.any(1)[:, None, :, None], 0.0)

    scores = folded @ keys.transpose(2, 3) * scoring.scale  # [R, G, Q, S]
    if scoring.softcap is not None:
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    if slopes is not None:
        scores += slopes * (keys_at - positions.unsqueeze(-1)).unsqueeze(1)
    scores.masked_fill_(~seen.unsqueeze(1), float("-inf"))
    maximum = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - finite(maximum))
    return Partial(maximum, weights.sum(-1, keepdim=True), weights @ values)


def gather(cache: Tensor, table: Tensor, begin: int) -> Tensor:
    """Slots begin .. begin + KV_SPLIT - 1 of each row, from cache [B, G, block, D]: [R, G, KV_SPLIT, D] float32.

    Contiguous, because the BLAS behind matmul sums strided operands in an order that depends on R.
    """
    block_size = cache.shape[2]
    columns = torch.arange(begin // block_size, (begin + KV_SPLIT - 1) // block_size + 1, device=cache.device)
    block_ids = table[:, columns.clamp(max=table.shape[1] - 1)].clamp(min=0).long()
    blocks = cache[block_ids].transpose(1, 2)  # [R, G, C, block, D]
    slots = torch.empty(blocks.shape, dtype=torch.float32, device=cache.device).copy_(blocks).flatten(2, 3)
    offset = begin % block_size
    return slots[:, :, offset : offset + KV_SPLIT].contiguous()


def merge(left: Partial, right: Partial) -> Partial:
    """Combine two partial results; one that saw no key leaves the other's bits as they are."""
    maximum = torch.maximum(left.maximum, right.maximum)
    keep, add = (torch.exp(side.maximum - finite(maximum)) for side in (left, right))
    return Partial(maximum, left.total * keep + right.total * add, left.values * keep + right.values * add)


def finite(maximum: Tensor) -> Tensor:
    """Replace the -inf of an empty set, so that exp(-inf - maximum) is 0 and not NaN."""
    return maximum.masked_fill(maximum == float("-inf"), 0.0)
