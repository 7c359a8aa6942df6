import random

import pytest

from octavo.core.request import Request
from octavo.engine.core import MAX_FAILED_STEPS
from octavo.errors import ClientError, EngineDeadError
from octavo.messages import SchedulerOutput
from tests.core.worlds import make_request, oracle
from tests.engine.worlds import CoreWorld


def test_a_step_computes_what_each_request_says_when_it_is_alone():
    world = CoreWorld(token_budget=8)
    requests = [make_request(f"r{i}", 5 + 3 * i, max_tokens=6) for i in range(5)]
    for request in requests:
        world.core.submit([request])
    world.run()
    for request in requests:
        assert world.tokens(request.request_id) == oracle(request, (None,), 256)
        assert world.reason(request.request_id) == "length"


def test_a_failed_step_ends_its_own_requests_and_no_others():
    world = CoreWorld(max_num_seqs=2)
    requests = [make_request(f"r{i}", 8, max_tokens=4) for i in range(4)]
    for request in requests:
        world.core.submit([request])
    world.take(world.core.step().outputs)
    world.executor.faults.append(RuntimeError("out of luck"))
    world.run()
    assert [world.reason(f"r{i}") for i in range(4)] == ["error", "error", "length", "length"]
    assert "out of luck" in world.outputs["r0"][-1].error
    for request in requests[2:]:
        assert world.tokens(request.request_id) == oracle(request, (None,), 256)
    assert world.core.failure is None and world.core.stats().kv_usage == 0.0


def test_pages_of_a_failed_step_are_not_found_by_the_next_request_with_that_prompt():
    world = CoreWorld()
    prompt = list(range(2, 22))
    world.executor.faults.append(RuntimeError("halfway"))
    for request_id in ("first", "second"):
        world.core.submit([make_request(request_id, prompt)])
        world.run()
    assert world.reason("first") == "error"
    assert world.tokens("second") == oracle(make_request("second", prompt), (None,), 256)
    assert world.outputs["second"][-1].num_cached_tokens == 0


@pytest.mark.parametrize("max_num_seqs", [1, 8])
def test_poison_however_much_in_a_row_leaves_the_engine_up_with_right_answers(max_num_seqs):
    world = CoreWorld(max_num_seqs=max_num_seqs)
    world.executor.poison = {39}
    for i in range(50):
        world.core.submit([make_request(f"bad{i}", [39, 2, 3 + i % 30])])
    good = [make_request(f"good{i}", [2, 2, 3 + i], max_tokens=6) for i in range(8)]
    for request in good:
        world.core.submit([request])
    world.run()
    assert {world.reason(f"bad{i}") for i in range(50)} == {"error"} and world.core.failure is None
    late = make_request("late", [39, 2, 3])
    world.executor.poison.clear()
    world.core.submit([late])
    world.run()
    for request in [late, *good[max_num_seqs - 1 :]]:  # the first may share the last steps of the bad ones
        assert world.tokens(request.request_id) == oracle(request, (None,), 256)


def test_an_engine_that_fails_every_step_is_given_up_and_leaves_nobody_waiting():
    world = CoreWorld(max_num_seqs=1)
    for i in range(MAX_FAILED_STEPS + 2):
        world.core.submit([make_request(f"r{i}", 4)])
    world.executor.faults.extend(RuntimeError("broken") for _ in range(MAX_FAILED_STEPS + 1))
    world.run()
    assert [world.reason(f"r{i}") for i in range(MAX_FAILED_STEPS + 2)] == ["error"] * (MAX_FAILED_STEPS + 2)
    with pytest.raises(EngineDeadError, match="broken"):
        world.core.step()
    with pytest.raises(EngineDeadError, match="broken"):
        world.core.submit([make_request("late", 4)])


def test_failures_that_are_not_in_a_row_do_not_kill_the_engine():
    world = CoreWorld(max_num_seqs=1)
    for i in range(10):
        world.core.submit([make_request(f"r{i}", 4, max_tokens=2)])
        world.executor.faults.extend([RuntimeError("now and then")] if i % 2 else [None, None])
    world.run()
    assert [world.reason(f"r{i}") for i in range(10)] == ["length", "error"] * 5


def test_a_lost_device_is_fatal_at_once():
    world = CoreWorld()
    world.core.submit([make_request("r", 4)])
    world.executor.faults.append(EngineDeadError("the device is gone"))
    world.run()
    assert world.reason("r") == "error" and "the device is gone" in str(world.core.failure)


def test_an_error_of_one_row_reaches_its_request():
    world = CoreWorld()
    world.core.submit([make_request("r", 4)])
    world.executor.row_errors.append("no token is left to sample")
    world.run()
    assert world.outputs["r"][-1].error == "no token is left to sample" and world.core.failure is None


def test_a_request_whose_second_sample_is_refused_leaves_no_first_one_behind():
    world = CoreWorld()
    with pytest.raises(ClientError, match="in use"):
        world.core.submit([make_request("r#0", 4), make_request("r#0", 4)])
    assert not world.core.has_unfinished()


def test_a_scheduler_that_runs_nobody_ends_the_engine_rather_than_spin(monkeypatch):
    world = CoreWorld()
    world.core.submit([make_request("r", 4)])
    monkeypatch.setattr(world.core.scheduler, "schedule", lambda: SchedulerOutput(step=0))
    world.run(max_steps=2)
    assert world.reason("r") == "error" and "finds none to run" in world.outputs["r"][-1].error


def test_a_grammar_that_is_ready_just_after_the_scheduler_looked_is_waited_for(monkeypatch):
    world = CoreWorld()
    world.core.submit([make_request("r", 4)])
    waits, plans = iter([True]), iter([SchedulerOutput(step=0)])
    schedule = world.core.scheduler.schedule
    monkeypatch.setattr(world.core.scheduler, "is_waiting_for_grammars", lambda: next(waits, False))
    monkeypatch.setattr(world.core.scheduler, "schedule", lambda: next(plans, None) or schedule())
    world.run()
    assert world.core.failure is None and world.reason("r") == "length"


def test_a_closed_core_refuses_to_step():
    world = CoreWorld()
    world.core.close()
    assert world.executor.closed and not world.core.has_unfinished()
    with pytest.raises(EngineDeadError, match="closed"):
        world.core.step()


def test_two_hundred_random_requests_end_once_each_whatever_happens():
    choose = random.Random(7)
    world = CoreWorld(num_blocks=24, max_num_seqs=6, token_budget=20)
    submitted: list[str] = []
    while len(submitted) < 200 or world.core.has_unfinished():
        for _ in range(choose.randrange(4) if len(submitted) < 200 else 0):
            request_id = f"r{len(submitted)}"
            world.core.submit(
                [make_request(request_id, choose.randint(1, 40), max_tokens=choose.randint(0, 20), ignore_eos=False)]
            )
            submitted.append(request_id)
        if choose.random() < 0.1:
            world.executor.faults.append(RuntimeError("bad luck"))
            world.executor.faults.append(None)  # never so often that the engine is given up
        if submitted and choose.random() < 0.2:
            world.take(world.core.abort([choose.choice(submitted)]))
        if world.core.has_unfinished():
            world.take(world.core.step().outputs)
    assert all(world.reason(request_id) is not None for request_id in submitted)
    assert {world.reason(request_id) for request_id in submitted} == {"stop", "length", "abort", "error"}
    stats = world.core.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_usage) == (0, 0, 0.0)


def test_a_result_that_cannot_be_used_ends_its_own_request_and_leaves_no_page_to_be_found(monkeypatch):
    requests = [make_request("good", 9, max_tokens=6), make_request("bad", 10, max_tokens=6)]
    extend = Request.extend

    def failing(request, sampled):
        if request.request_id == "bad" and request.num_tokens > 12:
            raise RuntimeError("made to fail")
        return extend(request, sampled)

    monkeypatch.setattr(Request, "extend", failing)
    world = CoreWorld()
    world.core.submit(requests[:1])
    world.core.submit(requests[1:])
    world.run()
    assert world.tokens("good") == oracle(requests[0], (None,), 256) and world.reason("good") == "length"
    assert world.reason("bad") == "error" and "made to fail" in world.outputs["bad"][-1].error
    world.core.submit([make_request("again", requests[1].prompt_token_ids, max_tokens=1)])
    world.run()
    assert world.outputs["again"][-1].num_cached_tokens == 0
