"""The generator gives the published numbers, and races made of it are what they claim to be."""

import math

import pytest
import torch
from torch import Tensor

from octavo.ops.random import BLOCK, DrawKeys, draw_blocks, draw_times, natural_log, philox4x32

torch.set_num_threads(1)  # tensors this small only lose by being shared out

# The lines "philox4x32 10" of kat_vectors in Random123: counter, key, result.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> Tensor:
    return torch.tensor([int(word, 16) for word in text.split()])


def make_keys(num_rows: int, seed: int = 7, sample_index: int = 0, position: int = 0) -> DrawKeys:
    """Rows that differ in position, which is what makes draws of one request independent."""
    return DrawKeys(
        torch.full((num_rows,), seed), torch.full((num_rows,), sample_index), position + torch.arange(num_rows)
    )


def philox_in_python(counter: list[int], key: list[int]) -> list[int]:
    """The paper's definition, one word at a time."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 % 2**32, (p0 >> 32) ^ c3 ^ k1, p0 % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [c0, c1, c2, c3]


def time_in_python(seed: int, sample_index: int, position: int, token_id: int) -> float:
    """The documented race, one token at a time."""
    key = [seed % 2**32, (seed >> 32) % 2**32]
    block, offset = divmod(token_id, 64)
    of_block = philox_in_python([block // 2, position, sample_index, 0], key)
    first, winner = of_block[block % 2 * 2 :][:2]
    time = -math.log((first + 0.5) / 2**32) / 64
    if winner >> 26 == offset:
        return time
    of_token = philox_in_python([token_id // 4, position, sample_index, 1], key)
    return time - math.log((of_token[token_id % 4] + 0.5) / 2**32)


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter: str, key: str, answer: str) -> None:
    many = words(counter)[:, None].expand(4, 37)
    assert (philox4x32(many, words(key)[:, None]) == words(answer)[:, None]).all()


def test_times_equal_a_word_by_word_reading_of_the_definition() -> None:
    cases = [
        (seed, index, position, token_id)
        for seed in (0, 1, -1, 2**63 - 1, -(2**63), 0x1234_5678_9ABC_DEF0)
        for index, position in ((0, 0), (3, 1), (1, 4095))
        for token_id in (0, 1, 63, 64, 127, 128, 49151, 262143)
    ]
    seed, index, position, token_id = (torch.tensor(column) for column in zip(*cases, strict=True))
    times = draw_times(DrawKeys(seed, index, position), token_id)
    expected = torch.tensor([time_in_python(*case) for case in cases], dtype=torch.float64)
    torch.testing.assert_close(times, expected, rtol=1e-8, atol=0.0)
    assert len(set(times.tolist())) == len(cases)


def test_a_block_s_first_time_is_that_of_its_winner_and_below_all_others() -> None:
    keys, num_blocks = make_keys(3), 5
    draws = draw_blocks(keys, num_blocks)
    for row in range(3):
        ids = torch.arange(num_blocks * BLOCK)
        one = DrawKeys(*(getattr(keys, name)[row].expand(len(ids)) for name in ("seed", "sample_index", "position")))
        times = draw_times(one, ids).view(num_blocks, BLOCK)
        assert torch.equal(times.argmin(-1), draws.winner[row])
        torch.testing.assert_close(times.amin(-1), draws.first[row], rtol=1e-8, atol=0.0)


def test_times_of_a_token_are_exponential_and_those_of_two_tokens_independent() -> None:
    count = 20_000
    first, second = (draw_times(make_keys(count), torch.full((count,), token_id)) for token_id in (130, 131))
    rank = (torch.arange(count) + 0.5) / count
    for times in (first, second, 2 * torch.minimum(first, second)):  # the smaller of two is twice as fast
        distance = (-torch.expm1(-times.sort().values) - rank).abs().max()
        assert distance < 1.95 / math.sqrt(count)  # Kolmogorov-Smirnov, 1 in 1000
    correlation = torch.corrcoef(torch.stack((first, second)))[0, 1]
    assert abs(correlation) < 4 / math.sqrt(count)


def test_seed_sample_and_position_each_change_every_draw() -> None:
    ids = torch.arange(256)

    def times(seed: int, index: int, position: int) -> Tensor:
        return draw_times(DrawKeys(*(torch.full((256,), value) for value in (seed, index, position))), ids)

    draws = [times(5, 0, 9), times(6, 0, 9), times(5 + 2**32, 0, 9), times(5, 1, 9), times(5, 0, 10), times(-5, 0, 9)]
    for i, one in enumerate(draws):
        assert all((one != other).all() for other in draws[:i])


def test_natural_log_is_close_and_has_the_same_bits_everywhere_in_a_tensor() -> None:
    x = torch.cat(
        (
            torch.rand(2000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
            torch.logspace(-12, 6, 1000, dtype=torch.float64),
            torch.tensor([1.0, 2.0**-33, 1 - 2.0**-33, math.sqrt(0.5), math.nextafter(1.0, 2.0)], dtype=torch.float64),
        )
    )
    torch.testing.assert_close(natural_log(x), torch.log(x), rtol=1e-9, atol=1e-10)
    assert torch.equal(torch.cat([natural_log(part) for part in x.split(7)]), natural_log(x))
