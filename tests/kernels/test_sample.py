"""Sampling and ranking, in every tier, against the torch references: the same tokens and the same bits."""

import math
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from octavo.kernels.cpu import sample as native
from octavo.ops.dispatch import OPS
from octavo.ops.random import DrawKeys
from octavo.ops.rank_tokens import RankedTokens
from octavo.ops.sample import SampleParams
from tests.ops.sampling import SETTINGS, Row, make_params, random_logits

MORE_SETTINGS = [
    Row(0.0),
    Row(0.8, top_p=0.95),
    Row(top_p=1e-12),
    Row(top_p=1 - 1e-16),
    Row(1e-4, top_p=0.5),
    Row(1e4),
    Row(1e4, top_p=0.999),
    Row(top_k=1),
    Row(3.0, top_k=700, top_p=0.99),
    Row(min_p=1.0),
    Row(min_p=1e-300, top_p=0.9),
]


def make_rows(seeds: int) -> list[Row]:
    return [
        Row(s.temperature, s.top_k, s.top_p, s.min_p, seed * 0x1234_5678_9ABC - 1, seed % 3, 7 * seed)
        for seed in range(seeds)
        for s in [*SETTINGS, *MORE_SETTINGS]
    ]


def make_logits(num_rows: int, vocab_size: int) -> Tensor:
    """Usual, nearly flat, peaked, tied, partly masked, and one token only."""
    logits = random_logits(num_rows, vocab_size, seed=vocab_size)
    logits[1::7] *= 0.01
    logits[2::7] *= 20.0
    logits[3::7] = logits[3::7].round()
    logits[4::7, : vocab_size // 2] = -math.inf
    logits[5::7] = -math.inf
    logits[5::7, vocab_size // 3] = -7.5
    logits[6::7] = 0.0
    return logits


class Sampled(NamedTuple):
    token_ids: Tensor
    processed: Tensor


def run(sample: Callable[..., Tensor], logits: Tensor, params: SampleParams) -> Sampled:
    processed = torch.full(logits.shape, math.nan)
    return Sampled(sample(logits, params, processed=processed), processed)


def assert_like_the_reference(logits: Tensor, params: SampleParams) -> None:
    before = logits.clone()
    expected, found = run(OPS["sample"].reference, logits, params), run(native.sample, logits, params)
    assert found.token_ids.tolist() == expected.token_ids.tolist()
    good = expected.token_ids >= 0
    assert torch.equal(found.processed[good], expected.processed[good])
    assert torch.equal(logits.nan_to_num(7.0), before.nan_to_num(7.0))


@pytest.mark.parametrize("vocab_size", [1, 5, 63, 64, 65, 1000, 4099])
def test_choice_and_truncation_are_the_reference_s(tier: str, vocab_size: int) -> None:
    rows = make_rows(14)
    assert_like_the_reference(make_logits(len(rows), vocab_size), make_params(rows))


@pytest.mark.parametrize("vocab_size", [49_152, 262_144])
def test_choice_in_a_large_vocabulary_is_the_reference_s(tier: str, vocab_size: int) -> None:
    rows = make_rows(1)
    assert_like_the_reference(make_logits(len(rows), vocab_size), make_params(rows))


def test_rows_with_nothing_left_or_no_number_get_the_reference_s_codes(tier: str) -> None:
    rows = make_rows(2)
    for token_id, value in ((0, math.nan), (77, math.nan), (129, math.inf), (130, math.nan), (64, -math.nan)):
        logits = make_logits(len(rows), 131)
        logits[::2, token_id] = value
        logits[1::3] = -math.inf
        assert_like_the_reference(logits, make_params(rows))
    huge = torch.tensor([[1.0, 3e38, 2.0], [-3e38, -math.inf, -3e38]]).repeat(len(rows), 1)[: len(rows)]
    assert_like_the_reference(huge, make_params(rows))


def test_logits_may_be_slices_of_something_wider(tier: str) -> None:
    rows = make_rows(1)
    assert_like_the_reference(make_logits(len(rows), 300)[:, 7:207], make_params(rows))


@pytest.mark.parametrize("vocab_size", [777, 20_000])
def test_a_row_has_the_same_bits_in_any_batch_and_on_any_number_of_threads(
    tier: str, kernels: ModuleType, vocab_size: int
) -> None:
    rows, generator = (make_rows(11))[:256], torch.Generator().manual_seed(0)
    rows = rows if vocab_size < 1000 else rows[:33]
    logits = make_logits(len(rows), vocab_size)
    chosen = torch.arange(len(rows)) * 7 % vocab_size
    kernels.set_num_threads(1)
    sampled, ranked = run(native.sample, logits, make_params(rows)), rank(native.rank_tokens, logits, chosen, 3)
    for threads in (1, 2, 3, 4):
        kernels.set_num_threads(threads)
        for size in (1, 2, 7, 16, 33, 256):
            order = torch.randperm(len(rows), generator=generator)[:size]
            some = run(native.sample, logits[order], make_params([rows[i] for i in order]))
            assert torch.equal(some.token_ids, sampled.token_ids[order])
            assert torch.equal(some.processed, sampled.processed[order])
            for found, expected in zip(rank(native.rank_tokens, logits[order], chosen[order], 3), ranked, strict=True):
                assert torch.equal(found, expected[order])


def rank(
    rank_tokens: Callable[..., RankedTokens], logits: Tensor, token_ids: Tensor, num_top: int, normalized: bool = True
) -> RankedTokens:
    return rank_tokens(logits, token_ids, num_top, normalized=normalized)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("vocab_size", [1, 64, 200, 4099, 49_152])
def test_ranked_tokens_are_the_reference_s_to_the_last_bit(tier: str, vocab_size: int, normalized: bool) -> None:
    logits = make_logits(28, vocab_size)
    token_ids = torch.arange(28) * 1009 % vocab_size
    for num_top in (0, 1, 5, 20, 64, vocab_size):
        if num_top > min(vocab_size, 5000):
            continue
        found = rank(native.rank_tokens, logits, token_ids, num_top, normalized)
        expected = rank(OPS["rank_tokens"].reference, logits, token_ids, num_top, normalized)
        for name in RankedTokens._fields:
            assert torch.equal(getattr(found, name), getattr(expected, name)), (num_top, name)


def test_log_probabilities_are_right_to_float32_and_nan_where_a_logit_is_no_number(tier: str) -> None:
    logits = torch.cat([make_logits(21, 9999), torch.full((1, 9999), -26.0)])
    logits[21, 5] = 0.0  # a tail that is nearly too light to have mass
    token_ids = logits.argmax(-1)
    exact = logits.double().log_softmax(-1).gather(1, token_ids[:, None])
    ranked = rank(native.rank_tokens, logits, token_ids, 0)
    torch.testing.assert_close(ranked.values.double(), exact, rtol=3e-7, atol=3e-7)
    assert (ranked.ranks == 1).all()
    logits[0, 9998], logits[1, 0], logits[2] = math.nan, math.inf, -math.inf
    for normalized in (False, True):
        ranked = rank(native.rank_tokens, logits, token_ids, 2, normalized)
        assert ranked.values[:3].isnan().all() and not ranked.values[3:].isnan().any()


def test_what_the_kernel_does_not_cover_runs_the_reference() -> None:
    rows = make_rows(1)
    logits, params = make_logits(len(rows), 200), make_params(rows)
    expected = native.sample(logits, params)
    transposed = logits.t().contiguous().t()
    assert torch.equal(native.sample(transposed, params), expected)
    every_other = torch.stack((params.keys.seed, params.keys.seed), 1)[:, 0]
    params.keys = DrawKeys(every_other, params.keys.sample_index, params.keys.position)
    assert torch.equal(native.sample(logits, params), expected)
    ranked = rank(native.rank_tokens, transposed, expected, 4)
    assert torch.equal(ranked.values, rank(native.rank_tokens, logits, expected, 4).values)


def test_out_form_and_empty_batches() -> None:
    rows = make_rows(1)
    logits, out = make_logits(len(rows), 70), torch.zeros(len(rows), dtype=torch.int64)
    assert native.sample(logits, make_params(rows), out=out) is out
    assert torch.equal(out, native.sample(logits, make_params(rows)))
    assert native.sample(torch.empty(0, 70), make_params([])).shape == (0,)
    assert rank(native.rank_tokens, torch.empty(0, 70), out[:0], 3).values.shape == (0, 4)
