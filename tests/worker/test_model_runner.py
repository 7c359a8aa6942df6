"""Steps of a model whose answers depend on every token of the history: however it is scheduled, nothing is mixed up."""

import random

import pytest
import torch

from octavo.messages import SchedulerOutput
from octavo.sampling_params import SamplingParams
from octavo.worker import model_runner
from tests.worker.worlds import BLOCK_SIZE, VOCAB_SIZE, Running, World, digest, expected_logits

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(f"{length}/{seed}").choices(range(VOCAB_SIZE), k=length)


def greedy_continuation(prompt: list[int], count: int) -> list[int]:
    token_ids = list(prompt)
    for _ in range(count):
        token_ids.append(int(expected_logits(token_ids).argmax()))
    return token_ids[len(prompt) :]


def requests(world: World) -> list[Running]:
    """One of everything that a row may ask for."""
    every = [
        {"temperature": 0.0},
        {"temperature": 0.8},
        {"temperature": 1.2, "top_p": 0.9, "logprobs": 3},
        {"top_k": 9, "presence_penalty": 1.5, "frequency_penalty": 0.7},
        {"temperature": 0.0, "repetition_penalty": 1.4, "logprobs": 0},
        {"min_p": 0.05, "repetition_penalty": 0.8, "frequency_penalty": -0.5},
        {"temperature": 0.0, "allowed_token_ids": [3, 4, 5], "frequency_penalty": 2.0},
        {"logit_bias": {7: 3.0, 8: -100.0}, "min_tokens": 6, "stop_token_ids": [9], "prompt_logprobs": 2},
    ]
    return [
        world.start(
            prompt_of(5 + 3 * i),
            SamplingParams(max_tokens=9, **params),
            seed=i - 3,
            eos=[2],
            bad_words=[[3, 4], [11]] if i % 2 else [],
            name=str(i),
        )
        for i, params in enumerate(every)
    ]


def test_a_prompt_in_one_chunk_then_decode_follows_the_model() -> None:
    world = World()
    sequence = world.start(prompt_of(13), GREEDY)
    world.step([(sequence, 13)])
    for _ in range(7):
        world.step([(sequence, 1)])
    assert sequence.output == greedy_continuation(prompt_of(13), 8)


def test_a_row_samples_only_when_its_last_known_token_is_computed() -> None:
    world = World()
    long, short = world.start(prompt_of(11), GREEDY), world.start(prompt_of(2), GREEDY)
    output = world.step([(long, 6), (short, 2)])
    assert output.rows == [short.row] and output.token_ids == [[greedy_continuation(prompt_of(2), 1)[0]]]
    output = world.step([(short, 1), (long, 5)])
    assert output.rows == [short.row, long.row]
    assert long.output == greedy_continuation(prompt_of(11), 1)


def test_any_schedule_gives_each_request_what_it_gets_alone() -> None:
    alone = []
    for index in range(8):
        world = World(seed=index)
        sequence = requests(world)[index]
        world.run([sequence])
        alone.append(sequence)
    for seed in range(6):
        world = World(max_rows=3 + seed % 3, seed=seed)
        together = requests(world)
        world.run(together, preempt=0.15 * (seed % 3), chunk=1 + 5 * (seed % 4))
        for one, other in zip(alone, together, strict=True):
            assert other.output == one.output
            assert other.logprobs == one.logprobs
            assert other.prompt_logprobs == one.prompt_logprobs
            assert other.error is None


def test_a_row_used_before_starts_clean() -> None:
    heavy = SamplingParams(
        temperature=0.0,
        max_tokens=4,
        presence_penalty=2.0,
        repetition_penalty=3.0,
        logit_bias={5: 100.0},
        allowed_token_ids=[5, 6],
        min_tokens=4,
        logprobs=2,
        prompt_logprobs=1,
    )
    world = World(max_rows=1)
    first = world.start(prompt_of(20), heavy, eos=[1], bad_words=[[6]])
    second = world.start(prompt_of(6), GREEDY)
    world.run([first])
    world.run([second])
    assert first.output == [5] * 4
    assert second.output == greedy_continuation(prompt_of(6), 8)
    assert second.logprobs == [] and second.prompt_logprobs == {}
    assert not world.runner.sampler.state.edits


def test_pages_handed_out_are_cleared_and_others_are_not() -> None:
    world = World()
    sequence = world.start(prompt_of(5), GREEDY)
    world.step([(sequence, 5)])
    full = world.runner.pages.pools[0]
    first, last = sequence.blocks[0]
    assert not full[:, :, [first, last]].isnan().any()
    assert (full[:, :, last, :, 1:] == 0).all()
    assert full[:, :, world.free_blocks[0]].isnan().all()


def test_a_fork_copies_the_partial_page_and_both_go_on_alone() -> None:
    world = World()
    parent = world.start(prompt_of(10), GREEDY)
    world.step([(parent, 10)])
    child = world.fork(parent, SamplingParams(temperature=0.0, max_tokens=8, logit_bias={33: 100.0}), seed=1)
    grandchild = world.fork(parent, GREEDY, seed=2)
    for _ in range(7):
        world.step([(child, 1), (parent, 1), (grandchild, 1)])
    assert parent.output == grandchild.output == greedy_continuation(prompt_of(10), 8)
    assert child.output == [parent.output[0], *[33] * 7]


def test_prompt_logprobs_are_the_model_s_whatever_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = prompt_of(30)
    params = SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=4)
    results = []
    for chunk, most_logits in ((64, 1 << 24), (7, 1 << 24), (64, 3 * VOCAB_SIZE), (1, VOCAB_SIZE)):
        monkeypatch.setattr(model_runner, "MAX_LOGITS", most_logits)
        world = World()
        sequence = world.start(prompt, params)
        world.run([sequence], chunk=chunk)
        assert world.model.most_logits <= most_logits
        assert sorted(sequence.prompt_logprobs) == list(range(1, 30))
        results.append(sequence.prompt_logprobs)
    assert all(result == results[0] for result in results)
    for position, scored in results[0].items():
        logits = expected_logits(prompt[:position])
        expected, order = logits.log_softmax(-1), logits.sort(descending=True, stable=True).indices
        assert scored.token_ids == [prompt[position], *order[:4].tolist()]
        torch.testing.assert_close(torch.tensor(scored.logprobs), expected[scored.token_ids], rtol=0, atol=2e-6)
        assert scored.rank == 1 + order.tolist().index(prompt[position])


def test_scoring_alone_samples_nothing() -> None:
    world = World()
    sequence = world.start(prompt_of(9), SamplingParams(max_tokens=0, prompt_logprobs=0))
    output = world.step([(sequence, 9)])
    assert output.rows == [] and output.token_ids == []
    assert [len(p.token_ids) for p in output.prompt_logprobs[sequence.row].positions] == [1] * 8


def test_a_prompt_is_not_scored_again_after_a_preemption() -> None:
    world = World()
    sequence = world.start(prompt_of(9), SamplingParams(temperature=0.0, max_tokens=4, prompt_logprobs=1))
    assert len(world.step([(sequence, 9)]).prompt_logprobs) == 1
    world.leave(sequence)
    assert world.step([(sequence, 10)]).prompt_logprobs == {}
    assert sequence.output == greedy_continuation(prompt_of(9), 2)


def test_sampling_in_parts_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = []
    for most_logits in (1 << 24, 3 * VOCAB_SIZE):
        monkeypatch.setattr(model_runner, "MAX_LOGITS", most_logits)
        world = World(max_rows=8)
        sequences = requests(world)
        output = world.step([(s, len(s.token_ids)) for s in sequences[:5]])
        outputs.append((output.rows, output.token_ids, output.logprobs))
    assert outputs[0] == outputs[1]


def test_a_row_that_cannot_sample_fails_alone_and_gets_no_token() -> None:
    world = World()
    good = world.start(prompt_of(6), GREEDY)
    torn = world.start(prompt_of(7), SamplingParams(max_tokens=8, allowed_token_ids=[5], logprobs=1), bad_words=[[5]])
    broken = world.start(prompt_of(8), SamplingParams(max_tokens=8, logprobs=1))
    known = prompt_of(8)
    world.model.poisoned.add((digest(known) + 3 * digest(known[-6:])) % 65_521)
    output = world.step([(torn, 7), (good, 6), (broken, 8)])
    assert output.token_ids == [[], greedy_continuation(prompt_of(6), 1), []]
    assert set(output.errors) == {torn.row, broken.row}
    assert "no token is left" in torn.error and "allowed_token_ids" in torn.error
    assert "not finite" in broken.error
    assert output.logprobs == [None, None, None]
    world.leave(torn)
    world.leave(broken)
    world.run([good])
    assert good.output == greedy_continuation(prompt_of(6), 8)


def test_prompt_scores_that_are_not_finite_are_an_error_of_the_row() -> None:
    world = World()
    sequence = world.start(prompt_of(9), SamplingParams(max_tokens=0, prompt_logprobs=1))
    known = prompt_of(9)[:4]
    world.model.poisoned.add((digest(known) + 3 * digest(known)) % 65_521)
    world.step([(sequence, 9)])
    assert sequence.error is not None and "not finite" in sequence.error


def test_a_step_that_only_frees_rows_runs_no_model() -> None:
    world = World()
    sequence = world.start(prompt_of(3), GREEDY)
    world.step([(sequence, 3)])
    plan = SchedulerOutput(step=9, freed_rows=[sequence.row, 3])
    world.runner.execute(plan)
    output = world.runner.sample(plan)
    assert (output.step, output.rows, output.errors) == (9, [], {})


def test_sequences_may_fill_the_context_to_the_last_token() -> None:
    world = World()
    sequence = world.start(prompt_of(60), SamplingParams(temperature=0.0, max_tokens=4))
    world.run([sequence])
    assert sequence.output == greedy_continuation(prompt_of(60), 4)
    assert len(sequence.token_ids) == 64 and 64 % BLOCK_SIZE == 0
