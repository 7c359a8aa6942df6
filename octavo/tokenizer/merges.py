"""BPE merges of a SentencePiece vocabulary, which stores only pieces and scores. Knows no tokenizer.

A merge makes a piece out of two shorter ones; its rank is the piece's score. The order among equals is that of
Transformers (`generate_merges`), so that both build the same tokenizer.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2**64
_INVERSE = pow(_BASE, -1, 1 << 64)
_FILTER_BITS = 24


def merges_of(pieces: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to make a piece out of two others, best score first, then the longer left part, the longer right part
    and the lower id.

    Args:
        pieces: V distinct texts, by id.
        scores: [V].

    A vocabulary of 262 thousand pieces has 1.6 million splits. Hashes of all their halves, computed at once from
    prefix sums, leave the third whose halves may be pieces; only those are looked up.
    """
    lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
    ids, left_lengths = _likely_splits(pieces, lengths)
    right_lengths = lengths[ids] - left_lengths
    order = np.lexsort((ids, -right_lengths, -left_lengths, -np.asarray(scores, np.float64)[ids]))
    vocabulary = set(pieces)
    splits = zip(map(pieces.__getitem__, ids[order].tolist()), left_lengths[order].tolist(), strict=True)
    return [
        (left, right)
        for piece, length in splits
        if (left := piece[:length]) in vocabulary and (right := piece[length:]) in vocabulary
    ]


def _likely_splits(pieces: Sequence[str], lengths: I64) -> tuple[I64, I64]:
    """Piece id and length of the left part, of every split whose halves have the hash of a piece."""
    ends = np.cumsum(lengths)
    starts = ends - lengths
    characters = np.frombuffer("".join(pieces).encode("utf-32-le", "surrogatepass"), np.uint32)
    sums, inverses = _prefix_sums(characters)

    def buckets(begin: I64, end: I64) -> U64:
        """Hash of characters [begin, end), whatever their place: their share of the sum, moved to place 0."""
        return ((sums[end] - sums[begin]) * inverses[begin]) >> np.uint64(64 - _FILTER_BITS)

    is_piece = np.zeros(1 << _FILTER_BITS, np.bool_)
    is_piece[buckets(starts, ends)] = True
    inner = np.ones(len(characters) + 1, np.bool_)  # a split lies between characters, not before the first
    inner[starts] = inner[ends] = False
    splits = np.flatnonzero(inner)
    owner = np.searchsorted(ends, splits, side="right")
    likely = is_piece[buckets(starts[owner], splits)] & is_piece[buckets(splits, ends[owner])]
    splits, owner = splits[likely], owner[likely]
    return owner, splits - starts[owner]


def _prefix_sums(characters: NDArray[np.uint32]) -> tuple[U64, U64]:
    """Sums of mix(character) * BASE**place before each place, and BASE**-place; all modulo 2**64."""
    count = len(characters)
    mixed = characters.astype(np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0x94D049BB133111EB)
    sums = np.zeros(count + 1, np.uint64)
    np.cumsum(mixed * _powers(_BASE, count), out=sums[1:])
    return sums, _powers(_INVERSE, count + 1)


def _powers(base: int, count: int) -> U64:
    factors = np.full(count, base, np.uint64)
    factors[:1] = 1
    return np.cumprod(factors, out=factors)
