"""What `sample` and `rank_tokens` share: blocks of ids, the order of tokens, and probability as whole numbers.

A token's **mass** is its probability relative to the most likely token's, in units of 2^-40, rounded. Masses are made
by a fixed list of float32 products and sums, never fused, and are added up as integers; so a sum has the same bits on
every device, in every kernel, whatever the order and however many threads share it. What a vocabulary of 2^18 ids can
lose by rounding is 2^-23 of the largest probability, as little as float32 itself.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from octavo.ops.random import BLOCK, natural_log

MASS_UNIT = 2.0**-40

NO_MASS = -29.0
"""A token at this distance or farther has none."""

CACHED_ELEMENTS = 1 << 18
"""Passes over the vocabulary take this many logits at a time, which stay in a core's cache."""

_LOG2_E = 1.44269504088896341
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # the high part has few bits: times a small whole number it is exact
_SERIES = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)


def mass(distance: Tensor) -> Tensor:
    """e^distance in units of `MASS_UNIT`, int64, for float32 distances <= 0 (the polynomial is Cephes')."""
    y = distance.clamp(min=NO_MASS)
    n = (y * _LOG2_E).round_()
    r = (y - n * _LN2_HIGH).sub_(n * _LN2_LOW)
    p = torch.full_like(r, _SERIES[0])
    for coefficient in _SERIES[1:]:
        p = p.mul_(r).add_(coefficient)
    power = ((n.int() + (127 + 40)) << 23).view(torch.float32)  # 2^(n + 40)
    return p.mul_(r * r).add_(r + 1.0).mul_(power).round_().long()


def into_blocks(logits: Tensor) -> Tensor:
    """[S, V] -> [S, V / BLOCK, BLOCK], padded with -inf."""
    missing = -logits.shape[1] % BLOCK
    padded = F.pad(logits, (0, missing), value=-math.inf) if missing else logits
    return padded.view(len(logits), -1, BLOCK)


def block_masses(blocks: Tensor, temperature: Tensor, top: Tensor) -> Tensor:
    """Mass of each block; `top` is the row's largest logit / temperature. [S, NB, BLOCK], [S], [S] -> [S, NB]"""
    step = max(1, CACHED_ELEMENTS // (blocks.shape[1] * BLOCK))
    parts = (slice(start, start + step) for start in range(0, len(blocks), step))
    return torch.cat(
        [mass(blocks[part] / temperature[part, None, None] - top[part, None, None]).sum(-1) for part in parts]
    )


def log_sum_exp(blocks: Tensor, top: Tensor) -> Tensor:
    """ln of the sum of exp over the vocabulary, NaN where no number; `top` is the row's largest logit. [S] float64"""
    total = block_masses(blocks, torch.ones_like(top), top).sum(-1)
    known = top.double() + natural_log(total.double() * MASS_UNIT)
    return known.masked_fill(~top.isfinite(), math.nan)


def descending_key(x: Tensor) -> Tensor:
    """float32 -> int64 in 0 .. 2^32 - 1 that is smaller where x is larger: integers sort fast, and stably."""
    bits = (x + 0.0).view(torch.int32)  # + 0.0: -0.0 is no smaller than 0.0
    return 0x7FFFFFFF - (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
