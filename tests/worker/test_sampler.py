"""What a request asks of sampling is what its row gets, by naive readings of the definitions, and no other row."""

import math
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.messages import NewRow, PositionLogprobs
from octavo.ops.random import DrawKeys, draw_times
from octavo.sampling_params import SamplingParams
from octavo.worker.rows import Rows
from octavo.worker.sampler import Sampled, Sampler

torch.set_num_threads(1)  # tensors this small only lose by being shared out

VOCAB_SIZE = 200


class Batch:
    """Rows with a sampler; every row's logits are drawn at random, the same for the same seed."""

    def __init__(self, mode: str = "raw_logprobs", max_rows: int = 8) -> None:
        self.rows = Rows(max_rows, 64, 1, 16)
        self.sampler = Sampler(self.rows, VOCAB_SIZE, mode, torch.device("cpu"))
        self.order: list[int] = []

    def add(
        self,
        prompt: list[int],
        output: list[int] | None = None,
        *,
        eos: list[int] | None = None,
        bad_words: list[list[int]] | None = None,
        seed: int = 0,
        **params: Any,
    ) -> int:
        row = len(self.order)
        new = NewRow(
            request_id=str(row),
            row=row,
            token_ids=prompt + (output or []),
            num_prompt_tokens=len(prompt),
            num_computed_tokens=0,
            block_ids=[[0]],
            sampling=SamplingParams(**params),
            eos_token_ids=eos or [],
            bad_words_token_ids=bad_words or [],
            seed=seed,
            sample_index=0,
        )
        self.rows.add(new)
        self.sampler.add(new)
        self.order.append(row)
        return row

    def sample(self, logits: Tensor, rows: list[int] | None = None) -> Sampled:
        """Sample and append, as the runner does."""
        chosen = torch.tensor(self.order if rows is None else rows).numpy()
        sampled = self.sampler.sample(logits.clone(), chosen)
        good = sampled.token_ids >= 0
        self.rows.append_tokens(chosen[good], sampled.token_ids[good])
        return sampled


def random_logits(num_rows: int, seed: int = 0) -> Tensor:
    return 3 * torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed))


def edited(batch: Batch, logits: Tensor) -> Tensor:
    """Logits as the choice sees them, at temperature 1 (greedy rows are reported as they are)."""
    batch.sampler.mode = batch.sampler.mode._replace(processed=True, normalized=False)
    sampled = batch.sample(logits)
    result = torch.empty_like(logits)
    for i in range(len(logits)):
        reported = sampled.logprobs[i]
        result[i, reported.token_ids] = torch.tensor(reported.logprobs)
    return result


EVERYTHING = {"temperature": 0.0, "logprobs": -1}


def penalized_in_python(
    logits: list[float], prompt: list[int], output: list[int], params: SamplingParams
) -> list[float]:
    result = list(logits)
    for token_id in set(prompt) | set(output):
        repetition = params.repetition_penalty
        result[token_id] = result[token_id] / repetition if result[token_id] > 0 else result[token_id] * repetition
    for token_id in set(output):
        result[token_id] -= params.frequency_penalty * output.count(token_id) + params.presence_penalty
    return result


def test_penalties_equal_a_naive_reading_through_growth_and_in_a_mixed_batch() -> None:
    chance = random.Random(0)
    settings = [
        {"repetition_penalty": 1.3},
        {"presence_penalty": 1.0},
        {"frequency_penalty": -0.7},
        {"repetition_penalty": 0.6, "presence_penalty": -1.0, "frequency_penalty": 0.4},
        {},
        {"frequency_penalty": 2.0},
    ]
    batch, known = Batch(), []
    for setting in settings:
        prompt, output = (
            chance.choices(range(40), k=chance.randint(1, 9)),
            chance.choices(range(40), k=chance.randint(0, 9)),
        )
        batch.add(prompt, output, **EVERYTHING, **setting)
        known.append((prompt, output))
    for step in range(6):
        logits = random_logits(len(settings), seed=step)
        logits[:, 40:] -= 20  # what is sampled is soon sampled again
        result = edited(batch, logits)
        for i, (prompt, output) in enumerate(known):
            expected = penalized_in_python(logits[i].tolist(), prompt, output, SamplingParams(**settings[i]))
            torch.testing.assert_close(result[i], torch.tensor(expected), rtol=1e-6, atol=1e-6)
            output.append(int(batch.rows.token_ids[i, batch.rows.num_tokens[i] - 1]))
            assert output[-1] == int(torch.tensor(expected).argmax())


def test_repetition_penalty_equals_that_of_transformers() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor  # noqa: PLC0415 (a second to import)

    batch = Batch()
    histories = [[1, 5, 5, 9], [7, 0, 199, 3]]
    for history in histories:
        batch.add(history[:2], history[2:], repetition_penalty=1.7, **EVERYTHING)
    logits = random_logits(2)
    expected = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor(histories), logits.clone())
    torch.testing.assert_close(edited(batch, logits), expected, rtol=1e-6, atol=0)


def test_a_row_back_from_a_preemption_is_penalized_as_before() -> None:
    setting = {"temperature": 0.9, "frequency_penalty": 1.1, "repetition_penalty": 1.2, "min_tokens": 5, "logprobs": 2}
    stayed = Batch()
    stayed.add([4, 5, 6], seed=3, eos=[8], **setting)
    left: list[int] = []
    for step in range(10):
        logits = random_logits(1, seed=step)
        logits[0, 20:] -= 10
        back = Batch()
        back.add([4, 5, 6], left, seed=3, eos=[8], **setting)
        one, other = stayed.sample(logits), back.sample(logits)
        assert one.token_ids.tolist() == other.token_ids.tolist() and one.logprobs == other.logprobs
        left += one.token_ids.tolist()
    assert 8 not in left[:5]


def test_counters_are_kept_only_for_rows_that_count_and_are_used_again() -> None:
    batch = Batch()
    batch.add([1], **EVERYTHING, repetition_penalty=1.5)
    counts = batch.sampler.state.counts
    assert len(counts.table) == 1
    for round_number in range(3):
        for row in range(1, 5):
            new = NewRow(
                request_id="",
                row=row,
                token_ids=[1, 2, 2],
                num_prompt_tokens=1,
                num_computed_tokens=0,
                block_ids=[[]],
                sampling=SamplingParams(presence_penalty=1.0),
                eos_token_ids=[],
                bad_words_token_ids=[],
                seed=round_number,
                sample_index=0,
            )
            batch.sampler.add(new)
        slots = counts.slot_of_row[1:5].tolist()
        assert sorted(set(slots)) == sorted(slots) and 0 not in slots
        assert (counts.table[slots, 2] == 2).all() and (counts.table[slots].sum(1) == 2).all()
        if round_number == 1:
            for row in range(1, 5):
                batch.sampler.free(row)
    assert len(counts.table) <= 8 and (counts.table[0] == 0).all()


def test_logit_bias_is_added_and_ids_outside_the_vocabulary_are_ignored() -> None:
    batch = Batch()
    batch.add([1], logit_bias={3: 2.5, 190: -100.0, 5000: 9.0}, **EVERYTHING)
    batch.add([1], **EVERYTHING)
    batch.add([1], logit_bias={3: -1.0}, **EVERYTHING)
    logits = random_logits(3)
    expected = logits.clone()
    expected[0, 3] += 2.5
    expected[0, 190] -= 100
    expected[2, 3] -= 1
    assert torch.equal(edited(batch, logits), expected)


def test_allowed_token_ids_exclude_all_others() -> None:
    batch = Batch()
    batch.add([1], **EVERYTHING)
    batch.add([1], allowed_token_ids=[7, 9, 7, 199, 4000], **EVERYTHING)
    logits = random_logits(2)
    expected = torch.full_like(logits, -math.inf)
    expected[0], expected[1, [7, 9, 199]] = logits[0], logits[1, [7, 9, 199]]
    assert torch.equal(edited(batch, logits), expected)


def test_bad_words_exclude_the_last_token_after_the_others_only() -> None:
    batch = Batch()
    words = [[10, 11], [10, 12, 13], [50], [3, 4, 5, 6, 7, 8]]
    cases = [([1], [10]), ([10], [12]), ([12], [10]), ([1], []), ([3, 4, 5], [6, 7]), ([5], [6, 7])]
    excluded = [{50, 11}, {50, 13}, {50, 11}, {50}, {50, 8}, {50}]
    for prompt, output in cases:
        batch.add(prompt, output, bad_words=words, **EVERYTHING)
    result = edited(batch, random_logits(len(cases)))
    assert [set((row == -math.inf).nonzero()[:, 0].tolist()) for row in result] == excluded


def test_a_banned_piece_of_a_word_outlives_a_bias_towards_it_and_shared_pieces_stay() -> None:
    words = [[98], [88, 95, 83]]  # a word with a space before it in one piece, and bare in three
    batch = Batch()
    batch.add([1], bad_words=words, logit_bias={98: 100.0}, temperature=0.0)
    batch.add([1], bad_words=words, allowed_token_ids=[88], temperature=0.0)
    batch.add([1], [88, 95], bad_words=words, logit_bias={83: 100.0})
    for _ in range(3):
        sampled = batch.sample(random_logits(3))
        assert sampled.token_ids[0] != 98 and sampled.token_ids[1] == 88 and not sampled.errors
    assert batch.rows.token_ids[2, 3] != 83


def test_end_and_stop_ids_are_excluded_below_min_tokens_and_then_are_not() -> None:
    batch = Batch()
    row = batch.add(
        [1, 1, 1], eos=[4, 900], min_tokens=3, max_tokens=9, stop_token_ids=[6], ignore_eos=True, **EVERYTHING
    )
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, [4, 6]] = 9.0
    sampled = [int(batch.sample(logits).token_ids[0]) for _ in range(5)]
    assert sampled == [0, 0, 0, 4, 4]
    assert batch.rows.num_tokens[row] == 8


def test_noise_is_that_of_the_token_s_position_in_the_whole_sequence() -> None:
    batch, logits = Batch(), torch.zeros(1, VOCAB_SIZE)
    batch.add([1, 2, 3], [4], seed=9)
    ids = torch.arange(VOCAB_SIZE)
    for position in range(4, 12):
        keys = DrawKeys(*(torch.full((VOCAB_SIZE,), value) for value in (9, 0, position)))
        assert batch.sample(logits).token_ids[0] == draw_times(keys, ids).argmin()


def test_neighbours_with_constraints_change_nothing() -> None:
    logits = random_logits(6)
    plain = Batch()
    for seed in range(6):
        plain.add([1, 2], seed=seed, temperature=0.8)
    mixed = Batch()
    settings: list[dict[str, Any]] = [
        {},
        {"allowed_token_ids": [5], "temperature": 0.0},
        {},
        {"presence_penalty": 2.0, "logit_bias": {1: 50.0}, "min_tokens": 2, "logprobs": 4},
        {"top_p": 0.5, "min_p": 0.2},
        {},
    ]
    for seed, setting in enumerate(settings):
        mixed.add([1, 2], seed=seed, eos=[0], **{"temperature": 0.8, **setting})
    alone, together = plain.sample(logits).token_ids, mixed.sample(logits).token_ids
    assert [together[i] for i in (0, 2, 5)] == [alone[i] for i in (0, 2, 5)]
    assert together[1] == 5
    backwards = plain.sample(logits.flip(0), plain.order[::-1])
    forwards = Batch()
    for seed in range(6):
        forwards.add([1, 2], [int(alone[seed])], seed=seed, temperature=0.8)
    assert forwards.sample(logits).token_ids.tolist() == backwards.token_ids.tolist()[::-1]


def expected_position(values: Tensor, order: Tensor, token_id: int, count: int) -> PositionLogprobs:
    ids = [token_id, *order[:count].tolist()]
    return PositionLogprobs(ids, values[ids].tolist(), 1 + order.tolist().index(token_id))


@pytest.mark.parametrize("count", [0, 1, 5, -1])
@pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"])
def test_logprobs_of_every_mode(mode: str, count: int) -> None:
    batch = Batch(mode)
    batch.add([1], temperature=0.7, top_k=30, logit_bias={3: 4.0}, logprobs=count, seed=5)
    batch.add([1], temperature=0.7)
    batch.add([1], temperature=0.0, allowed_token_ids=[9, 8], logprobs=count)
    logits = random_logits(3)
    logits[:, 60:70] = 2.0  # ties
    drawn = logits.clone()
    drawn[0, 3] += 4
    drawn[0] /= 0.7
    drawn[0, drawn[0].sort(descending=True, stable=True).indices[30:]] = -math.inf
    drawn[2, [i for i in range(VOCAB_SIZE) if i not in (8, 9)]] = -math.inf
    reported = drawn if mode.startswith("processed") else logits
    values = reported.log_softmax(-1) if mode.endswith("logprobs") else reported
    sampled = batch.sample(logits)
    assert sorted(sampled.logprobs) == [0, 2]
    for i, found in sampled.logprobs.items():
        order = reported[i].sort(descending=True, stable=True).indices
        expected = expected_position(values[i], order, int(sampled.token_ids[i]), count if count >= 0 else VOCAB_SIZE)
        assert (found.token_ids, found.rank) == (expected.token_ids, expected.rank)
        torch.testing.assert_close(torch.tensor(found.logprobs), torch.tensor(expected.logprobs), rtol=0, atol=3e-6)


def test_logprobs_are_the_same_bits_in_any_batch() -> None:
    logits = random_logits(8)
    together = Batch()
    for seed in range(8):
        together.add([1], seed=seed, logprobs=seed % 4, temperature=0.5 * (seed % 3))
    found = together.sample(logits).logprobs
    for seed in range(8):
        alone = Batch()
        alone.add([1], seed=seed, logprobs=seed % 4, temperature=0.5 * (seed % 3))
        assert alone.sample(logits[seed : seed + 1]).logprobs == {0: found[seed]}


def test_a_contradiction_names_its_parts_and_leaves_no_trace() -> None:
    batch = Batch()
    batch.add([1], allowed_token_ids=[5], bad_words=[[5]], presence_penalty=1.0, logprobs=1)
    batch.add([1], temperature=0.0)
    logits = random_logits(2)
    sampled = batch.sample(logits)
    assert sampled.token_ids.tolist() == [-1, int(logits[1].argmax())]
    assert set(sampled.errors) == {0} and "allowed_token_ids, bad_words" in sampled.errors[0]
    assert sampled.logprobs == {} and batch.rows.num_tokens.tolist()[:2] == [1, 2]
    assert (batch.sampler.state.counts.table == 0).all()


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logits"])
def test_chosen_ids_are_reported_with_the_bits_that_all_tokens_are_reported_with(mode: str) -> None:
    logits, asked = random_logits(4), [[7, 199, 0], None, [3], None]
    batch, everything = Batch(mode), Batch(mode)
    for ids, top in zip(asked, (5, 3, None, None), strict=True):
        batch.add([1], temperature=0.8, logprobs=top, logprob_token_ids=ids)
        everything.add([1], temperature=0.8, logprobs=-1)
    some, all_of_them = batch.sample(logits), everything.sample(logits)
    assert sorted(some.logprobs) == [0, 1, 2]
    for i in (0, 2):
        found, known = some.logprobs[i], all_of_them.logprobs[i]
        assert found.token_ids == [int(some.token_ids[i]), *(asked[i] or [])] and found.rank == known.rank
        by_id = dict(zip(known.token_ids, known.logprobs, strict=True))
        assert found.logprobs == [by_id[token_id] for token_id in found.token_ids]
    assert some.logprobs[1] == PositionLogprobs(
        all_of_them.logprobs[1].token_ids[:4], all_of_them.logprobs[1].logprobs[:4], all_of_them.logprobs[1].rank
    )
