"""Randomness without state: every number is a pure function of what it is for. Knows no logits and no batch.

The generator is Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011),
computed exactly in 64-bit integers, so it gives the same words on every device.

A token is drawn by a race (the Gumbel-max trick in its exponential form): token i of probability p_i gets a time
t_i ~ Exp(1), and the smallest t_i / p_i wins, which is token i with probability p_i. Times are made per block of
`BLOCK` ids so that most blocks can be passed over without a look inside: the earliest of n such times is Exp(1) / n and
falls on each of the n with equal chance; the others (exponentials have no memory) come later by an Exp(1) of their own:

```text
first[block]  = Exp(1) / BLOCK                       one draw per block
winner[block] = uniform in 0 .. BLOCK - 1            one draw per block
time[token]   = first[block]              if it is the block's winner
                first[block] + Exp(1)     otherwise: one draw per token
```
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 64
"""Token ids that share a first time. Part of what a seed means: never to be changed."""

MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10

BLOCK_DOMAIN, TOKEN_DOMAIN = 0, 1
"""Last word of the counter: what the draw is for."""

LATEST = 22.9
"""No Exp(1) made of a 32-bit word is larger: -ln(2^-33) = 22.87."""


@dataclass(slots=True)
class DrawKeys:
    """What the draws of each row depend on, beside the token id. [R] int64 each.

    Attributes:
        seed: 64 bits.
        sample_index: which of the `n` samples of a request; 0 <= index < 2^32.
        position: index in the whole sequence of the token to be drawn; 0 <= position < 2^32.
    """

    seed: Tensor
    sample_index: Tensor
    position: Tensor

    def __getitem__(self, rows: Tensor) -> "DrawKeys":
        return DrawKeys(self.seed[rows], self.sample_index[rows], self.position[rows])

    def unsqueeze(self, dim: int) -> "DrawKeys":
        return DrawKeys(self.seed.unsqueeze(dim), self.sample_index.unsqueeze(dim), self.position.unsqueeze(dim))


class BlockDraws(NamedTuple):
    """Of every block: its first time, float64, and the offset 0..BLOCK-1 of the token that has it."""

    first: Tensor
    winner: Tensor


def philox4x32(counter: Tensor, key: Tensor) -> Tensor:
    """Ten rounds of Philox.

    Args:
        counter: [4, ...] int64 holding 32-bit words.
        key: [2, ...] the same; broadcasts against the counter.

    Returns:
        [4, ...] int64 holding 32-bit words.
    """
    column = (2,) + (1,) * (counter.dim() - 1)
    multipliers = torch.tensor(MULTIPLIERS, device=counter.device).view(column)
    bumps = torch.tensor([[n * weyl for weyl in WEYL] for n in range(ROUNDS)], device=counter.device)
    round_keys = (key + bumps.view(ROUNDS, *column)) & MASK
    even, odd = counter[0::2], counter[1::2]
    for round_key in round_keys.unbind():
        # A product wraps modulo 2^64, so both halves are exact; only what is multiplied next must be 32 bits wide.
        product = (even * multipliers).flip(0)
        even = (product >> 32).bitwise_xor_(odd).bitwise_xor_(round_key).bitwise_and_(MASK)
        odd = product
    return torch.stack((even, odd & MASK), dim=1).flatten(0, 1)


def draw_words(keys: DrawKeys, index: Tensor, domain: Tensor | int) -> Tensor:
    """Four 32-bit words for each `index`. [4, ...] int64

    Args:
        keys: its tensors broadcast against `index`.
        index: [...] int64 < 2^32, what the words are for within `domain`.
    """
    counter = torch.empty((4, *index.shape), dtype=torch.int64, device=index.device)
    counter[0], counter[1], counter[2], counter[3] = index, keys.position, keys.sample_index, domain
    key = torch.stack((keys.seed & MASK, (keys.seed >> 32) & MASK))
    return philox4x32(counter, key)


def draw_blocks(keys: DrawKeys, num_blocks: int) -> BlockDraws:
    """Draws of blocks 0 .. num_blocks - 1 for every row, [R, num_blocks]; `first` up to rounding, see `draw_times`."""
    pairs = torch.arange((num_blocks + 1) // 2, device=keys.seed.device)  # one call of Philox serves two blocks
    words = draw_words(keys.unsqueeze(1), pairs.expand(len(keys.seed), -1), BLOCK_DOMAIN)
    both = words.view(2, 2, *words.shape[1:]).permute(1, 2, 3, 0).flatten(2)[..., :num_blocks]
    return BlockDraws(torch.log(_uniform(both[0])) / -BLOCK, both[1] >> 26)


def draw_times(keys: DrawKeys, token_ids: Tensor) -> Tensor:
    """The exact time of each token, the same number on every device. [N] float64, > 0

    Args:
        keys: of each token's row, [N].
        token_ids: [N] int64
    """
    block = token_ids // BLOCK
    index = torch.stack((block >> 1, token_ids >> 2))
    domain = torch.tensor([[BLOCK_DOMAIN], [TOKEN_DOMAIN]], device=token_ids.device)
    words = draw_words(keys.unsqueeze(0), index, domain)  # [4, 2, N]
    lane = (block & 1) * 2
    first, winner = (words[:, 0].gather(0, (lane + i)[None])[0] for i in range(2))
    later = words[:, 1].gather(0, (token_ids & 3)[None])[0]
    is_winner = (winner >> 26) == token_ids % BLOCK
    return -natural_log(_uniform(first)) / BLOCK - natural_log(_uniform(later)).masked_fill_(is_winner, 0.0)


def natural_log(x: Tensor) -> Tensor:
    """ln of positive normal float64 to 1e-10, by IEEE additions, products and quotients alone.

    So it has the same bits on every device and at every place in a tensor, which library logarithms do not promise.
    """
    bits = x.view(torch.int64) - _SQRT_HALF_BITS
    exponent = bits >> 52
    mantissa = ((bits & ((1 << 52) - 1)) + _SQRT_HALF_BITS).view(torch.float64)  # in [sqrt(1/2), sqrt(2))
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    series = torch.full_like(s, 1.0 / 13)
    for odd in (11, 9, 7, 5, 3, 1):  # ln((1 + s) / (1 - s)) = 2 (s + s^3 / 3 + s^5 / 5 + ...)
        series = series.mul_(square).add_(1.0 / odd)
    return exponent.double().mul_(_LN2) + series.mul_(s).mul_(2.0)


_LN2 = 0.6931471805599453
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD


def _uniform(word: Tensor) -> Tensor:
    """A 32-bit word as a float64 strictly between 0 and 1."""
    return (word.double() + 0.5) * 2.0**-32
