"""The op `sample`: what it draws, how often, and that nothing but the row itself matters."""

import math

import pytest
import torch
from torch import Tensor

from octavo.ops.random import DrawKeys, draw_times
from octavo.ops.sample import NO_TOKEN_LEFT, NOT_FINITE, sample
from tests.ops.sampling import SETTINGS, Row, make_params, random_logits

torch.set_num_threads(1)  # tensors this small only lose by being shared out


def run(logits: Tensor, rows: list[Row]) -> Tensor:
    return sample(logits.clone(), make_params(rows))


def run_processed(logits: Tensor, rows: list[Row]) -> Tensor:
    processed = torch.empty_like(logits)
    sample(logits.clone(), make_params(rows), processed=processed)
    return processed


def kept_in_python(logits: list[float], row: Row) -> list[int]:
    """Ids that truncation keeps, by the definitions: sort, then min_p, top_k, top_p over what is left."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    weight = [math.exp((logits[i] - logits[order[0]]) / row.temperature) for i in order]
    size = sum(w >= row.min_p for w in weight)
    size = min(size, row.top_k or size)
    total, before = sum(weight[:size]), 0.0
    for kept in range(size):
        if row.top_p < 1.0 and before >= row.top_p * total:
            return order[:kept]
        before += weight[kept]
    return order[:size]


def sample_in_python(logits: Tensor, row: Row) -> int:
    """Every kept token's time, and the best score of all."""
    values = logits.tolist()
    ids = torch.tensor(sorted(i for i in kept_in_python(values, row) if values[i] > -math.inf))
    keys = DrawKeys(*(torch.full((len(ids),), getattr(row, name)) for name in ("seed", "sample_index", "position")))
    return int(ids[(logits[ids].double() / row.temperature - draw_times(keys, ids).log()).argmax()])


@pytest.mark.parametrize("vocab_size", [5, 64, 100, 1000])
def test_choice_equals_an_exhaustive_race_over_the_kept_tokens(vocab_size: int) -> None:
    rows = [
        Row(s.temperature, min(s.top_k, vocab_size - 1), s.top_p, s.min_p, seed, seed % 3, seed * 17)
        for seed in range(8)
        for s in SETTINGS
    ]
    logits = random_logits(len(rows), vocab_size)
    logits[::7] *= 0.01  # flat
    logits[::5, vocab_size // 2 :] = -math.inf  # masked
    chosen = run(logits, rows)
    assert chosen.tolist() == [sample_in_python(logits[i], row) for i, row in enumerate(rows)]


@pytest.mark.parametrize("vocab_size", [100, 1000])
def test_truncation_keeps_what_the_definitions_say(vocab_size: int) -> None:
    rows = [Row(s.temperature, min(s.top_k, vocab_size - 1), s.top_p, s.min_p) for s in SETTINGS]
    logits = random_logits(len(rows), vocab_size, seed=1)
    processed = run_processed(logits, rows)
    for i, row in enumerate(rows):
        kept = kept_in_python(logits[i].tolist(), row)
        assert processed[i].isfinite().nonzero()[:, 0].tolist() == sorted(kept)
        assert torch.equal(processed[i, kept], logits[i, kept] / row.temperature)


def test_ties_at_the_cutoff_keep_the_lowest_ids() -> None:
    logits = torch.zeros(3, 200)
    logits[:, 150] = 1.0
    processed = run_processed(logits, [Row(top_k=4), Row(top_p=0.5), Row(top_k=4, top_p=0.5)])
    nucleus = math.ceil(0.5 * (199 + math.e) - math.e)  # ties that are needed beside the first
    expected = [[150, 0, 1, 2], [150, *range(nucleus)], [150, 0]]
    for row, ids in zip(processed, expected, strict=True):
        assert row.isfinite().nonzero()[:, 0].tolist() == sorted(ids)


def chi_square(logits: Tensor, row: Row, expected: Tensor, draws: int = 8_000) -> None:
    """Draws at `draws` positions fall on ids as often as `expected` says (p > 0.0001)."""
    rows = [Row(row.temperature, row.top_k, row.top_p, row.min_p, seed=11, position=i) for i in range(draws)]
    counts = torch.bincount(run(logits.expand(draws, -1), rows), minlength=len(expected)).double()
    assert counts[expected == 0].sum() == 0
    likely = expected * draws >= 5
    counts = torch.cat((counts[likely], counts[~likely].sum()[None]))
    wanted = torch.cat((expected[likely], expected[~likely].sum()[None])).double() * draws
    counts, wanted = counts[wanted > 0], wanted[wanted > 0]
    statistic, freedom = ((counts - wanted) ** 2 / wanted).sum().item(), len(wanted) - 1
    # Wilson-Hilferty: the cube root of chi-square / freedom is nearly normal
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    assert abs(z) < 3.9


def test_draws_follow_the_softmax() -> None:
    logits = random_logits(1, 150, scale=1.5)
    chi_square(logits, Row(), logits[0].softmax(-1))
    chi_square(logits, Row(temperature=0.6), (logits[0] / 0.6).softmax(-1))


def test_draws_after_truncation_follow_the_softmax_of_what_is_kept() -> None:
    logits = random_logits(1, 150, scale=1.0, seed=2)
    for row in (Row(top_k=12), Row(top_p=0.7), Row(min_p=0.2, temperature=1.3)):
        scaled = logits[0] / row.temperature
        kept = kept_in_python(logits[0].tolist(), row)
        only = torch.full_like(scaled, -math.inf)
        only[kept] = scaled[kept]
        chi_square(logits, row, only.softmax(-1))


def test_a_row_s_choice_is_the_same_bits_alone_and_in_any_batch() -> None:
    generator = torch.Generator().manual_seed(3)
    rows = [
        Row(s.temperature, s.top_k, s.top_p, s.min_p, seed, 0, seed) for seed in range(3) for s in [*SETTINGS, Row(0.0)]
    ]
    logits = random_logits(len(rows), 999, seed=4)
    alone = [run(logits[i : i + 1], [row]).item() for i, row in enumerate(rows)]
    alone_processed = torch.cat([run_processed(logits[i : i + 1], [row]) for i, row in enumerate(rows)])
    for size in (2, 9, 30, len(rows)):
        order = torch.randperm(len(rows), generator=generator)[:size]
        some = [rows[i] for i in order]
        assert run(logits[order], some).tolist() == [alone[i] for i in order]
        assert torch.equal(run_processed(logits[order], some), alone_processed[order])


def test_large_vocabularies_and_threads_do_not_change_a_row() -> None:
    rows = [Row(0.8), Row(0.8, top_p=0.95), Row(0.8, top_k=50), Row(0.0), Row(0.8, top_p=0.95, seed=1)]
    logits = random_logits(len(rows), 32_003, seed=6)
    alone = [run(logits[i : i + 1], [row]).item() for i, row in enumerate(rows)]
    try:
        torch.set_num_threads(2)
        assert run(logits, rows).tolist() == alone
        assert run(logits.flip(0), rows[::-1]).tolist() == alone[::-1]
    finally:
        torch.set_num_threads(1)


def test_greedy_takes_the_largest_logit_and_the_lowest_id_on_ties() -> None:
    logits = random_logits(6, 700)
    logits[0, [650, 65, 3]] = 50.0
    logits[1, [640, 639]] = 50.0
    logits[2] = 0.0
    assert run(logits, [Row(0.0)] * 6).tolist() == [3, 639, 0, *logits[3:].argmax(-1).tolist()]


def test_rows_with_nothing_left_or_nan_fail_alone() -> None:
    for row in (Row(0.0), Row(), Row(top_p=0.9), Row(top_k=3), Row(min_p=0.1)):
        logits = random_logits(6, 130)
        whole = run(logits, [row] * 6).tolist()
        logits[1] = -math.inf
        logits[3, 77] = math.nan
        logits[4, 129] = math.inf
        whole[1], whole[3], whole[4] = NO_TOKEN_LEFT, NOT_FINITE, NOT_FINITE
        assert run(logits, [row] * 6).tolist() == whole
        assert run(logits[[1, 3]], [row] * 2).tolist() == [NO_TOKEN_LEFT, NOT_FINITE]


def test_extreme_settings_stay_in_the_vocabulary_and_the_limits_are_greedy() -> None:
    logits = random_logits(4, 300)
    best = logits.argmax(-1).tolist()
    for row in (Row(1e-5), Row(top_k=1), Row(min_p=1.0), Row(top_p=1e-12), Row(1e4, top_p=1e-9)):
        assert run(logits, [row] * 4).tolist() == best
    for row in (Row(1e4), Row(1e4, top_p=0.999999), Row(1e4, top_k=299), Row(min_p=1e-300), Row(top_p=1 - 1e-16)):
        assert all(0 <= token < 300 for token in run(logits, [row] * 4).tolist())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.9])
def test_processed_logits_equal_those_of_the_processors_of_transformers(temperature: float) -> None:
    from transformers import generation  # noqa: PLC0415 (a second to import)

    logits = random_logits(8, 500, seed=5)
    cases = [
        (Row(temperature, top_k=7), [generation.TopKLogitsWarper(7)]),
        (Row(temperature, top_p=0.85), [generation.TopPLogitsWarper(0.85)]),
        (Row(temperature, min_p=0.05), [generation.MinPLogitsWarper(0.05)]),
        (Row(temperature, top_k=50, top_p=0.6), [generation.TopKLogitsWarper(50), generation.TopPLogitsWarper(0.6)]),
    ]
    for row, warpers in cases:
        expected = generation.TemperatureLogitsWarper(temperature)(None, logits.clone())
        for warper in warpers:
            expected = warper(None, expected)
        assert torch.equal(run_processed(logits, [row] * 8), expected)
