"""A fault inside one row fails that row alone: whatever raises, its neighbours' bits are as without it."""

from collections.abc import Callable

import numpy as np
import pytest
from torch import Tensor

from octavo.attention.batch import ForwardBatch
from octavo.errors import EngineDeadError
from octavo.messages import ModelRunnerOutput
from octavo.sampling_params import SamplingParams
from tests.worker.test_model_runner import prompt_of, requests
from tests.worker.worlds import VOCAB_SIZE, Running, World

MARK = VOCAB_SIZE - 1
"""A token that no other prompt has: the row with it is the one at fault."""


def marked() -> list[int]:
    return [*(token % MARK for token in prompt_of(9)), MARK]


def run(break_it: Callable[[World, Running], None] | None) -> tuple[list[object], str | None]:
    """What the neighbours of a row get, token by token with logprobs; and the row's error, if any."""
    world = World(max_rows=9)
    bad = world.start(marked(), SamplingParams(max_tokens=9, presence_penalty=1.0, prompt_logprobs=1), name="bad")
    others = requests(world)
    for other in others:
        other.token_ids = [token % MARK for token in other.token_ids]
    if break_it is not None:
        break_it(world, bad)
    everyone = [*others[:4], bad, *others[4:]]
    for _ in range(9):
        world.step([(one, len(one.token_ids) - one.computed) for one in everyone])
        if bad.error is not None and bad in everyone:
            everyone.remove(bad)
            world.leave(bad)
    return [(other.output, other.logprobs, other.prompt_logprobs, other.error) for other in others], bad.error


def break_parameters(world: World, bad: Running) -> None:
    add = world.runner.sampler.state.counts.add

    def failing(row: int, token_ids: list[int]) -> None:
        if row == bad.row:
            raise RuntimeError("made to fail")
        add(row, token_ids)

    world.runner.sampler.state.counts.add = failing  # type: ignore[method-assign]


def break_sampling(world: World, bad: Running) -> None:
    penalize = world.runner.sampler._penalize

    def failing(logits: object, index: object, rows: np.ndarray) -> None:
        penalize(logits, index, rows)  # type: ignore[arg-type]
        if bad.row in rows and len(bad.output) == 2:
            raise RuntimeError("made to fail")

    world.runner.sampler._penalize = failing  # type: ignore[method-assign]


def break_forward(world: World, bad: Running) -> None:
    forward = world.runner._forward

    def failing(batch: object) -> object:
        hidden = forward(batch)  # type: ignore[arg-type]
        if (batch.input_ids == MARK).any():  # type: ignore[attr-defined]
            raise RuntimeError("made to fail")
        return hidden

    world.runner._forward = failing  # type: ignore[assignment]


def break_scoring(world: World, bad: Running) -> None:
    score = world.runner._score_prompt

    def failing(row: int, *args: int) -> object:
        if row == bad.row:
            raise RuntimeError("made to fail")
        return score(row, *args)

    world.runner._score_prompt = failing  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize("break_it", [break_parameters, break_sampling, break_forward, break_scoring])
def test_neighbours_of_a_row_that_fails_get_the_same_bits(break_it: Callable[[World, Running], None]) -> None:
    expected, no_error = run(None)
    got, error = run(break_it)
    assert no_error is None and error is not None and "RuntimeError: made to fail" in error
    assert got == expected


def failing_step(error: Exception) -> ModelRunnerOutput:
    world = World()

    def failing(batch: object) -> object:
        raise error

    world.runner._forward = failing  # type: ignore[assignment]
    return world.step([(world.start(prompt_of(n), SamplingParams(max_tokens=4)), n) for n in (3, 4)])


def test_a_step_that_fails_for_every_row_is_a_fault_of_the_engine() -> None:
    with pytest.raises(RuntimeError, match="the device is gone"):
        failing_step(RuntimeError("the device is gone"))


def test_a_lost_engine_is_not_tried_again() -> None:
    with pytest.raises(EngineDeadError):
        failing_step(EngineDeadError("a rank is lost"))


def test_a_probe_is_a_token_that_is_nobodys_and_written_to_no_page() -> None:
    world, seen = World(), []

    def failing(batch: ForwardBatch) -> Tensor:
        seen.append(batch)
        raise RuntimeError("the device is gone")

    world.runner._forward = failing
    with pytest.raises(RuntimeError, match="the device is gone"):
        world.runner.probe()
    (batch,) = seen
    assert batch.input_ids.tolist() == batch.positions.tolist() == [0] and batch.lengths.tolist() == [1]
    assert len(batch.attention) == len(batch.kv_pages) == len(world.runner.pages.pools)
    for group in batch.attention:
        assert group.slot_mapping.tolist() == [-1] and group.seq_lens.tolist() == [1]
