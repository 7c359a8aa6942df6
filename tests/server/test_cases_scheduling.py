"""Fault cases of the class "scheduling", over HTTP. The start-up error of SCH-02 is in tests/engine/test_resolve.py."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from octavo.config import ServerConfig
from tests.script_model import SPECIAL, write_random_model
from tests.server.conftest import SENTENCE
from tests.server.test_cases_streaming import text_of
from tests.server.world import World, assert_refused, joined, serve_app, wait_for

FOREVER = {"ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def cramped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A context of 4096 tokens over pages for 1024."""
    folder = write_random_model(tmp_path_factory.mktemp("cramped"), context_length=4096)
    with serve_app(folder, num_gpu_blocks_override=64, max_num_seqs=8) as world:
        yield world


def test_sch_01_a_request_that_can_never_fit_is_refused_at_once(cramped: World) -> None:
    start = time.monotonic()
    error = assert_refused(cramped.post("/v1/completions", prompt="x" * 2000, max_tokens=5))
    assert time.monotonic() - start < 5 and "2000" in error["message"] and "1024" in error["message"]
    for _ in range(5):
        assert cramped.complete("y" * 20, max_tokens=4)["choices"]
    assert time.monotonic() - start < 10


def test_sch_01_a_request_that_outgrows_the_pool_has_a_defined_end(cramped: World) -> None:
    limited = cramped.complete("x" * 900, max_tokens=500, **FOREVER)
    unlimited = cramped.chat("x" * 900, **FOREVER)
    for answer in (limited, unlimited):
        assert answer["choices"][0]["finish_reason"] == "length" and answer["usage"]["total_tokens"] == 1024
    cramped.wait_until_idle()


@pytest.mark.parametrize("length", [63, 64, 65, 200])
def test_sch_02_prompts_around_the_token_budget_of_a_step_are_served_alike(
    varied: World, narrow: World, length: int
) -> None:
    prompt = [3 + 7 * i % 250 for i in range(length)]
    body = {"max_tokens": 4, "logprobs": 3, **FOREVER}
    start = time.monotonic()
    wide, chunked = (world.complete(prompt, **body)["choices"][0] for world in (varied, narrow))
    assert chunked["text"] == wide["text"]
    first, expected = (choice["logprobs"]["top_logprobs"][0] for choice in (chunked, wide))
    assert first == pytest.approx(expected, abs=1e-3)
    assert joined(narrow.stream_complete(prompt, **body)) == wide["text"]
    assert time.monotonic() - start < 10  # nothing hangs


@pytest.fixture(scope="module")
def narrow(random_folder: Path) -> Iterator[World]:
    """64 tokens a step, each of them computed."""
    with serve_app(random_folder, max_num_batched_tokens=64, enable_prefix_caching=False) as world:
        yield world


BAD_PROMPTS: list[Any] = [
    "",
    [""],
    [],
    [[]],
    ["a", ""],
    [[5], []],
    [["a"]],
    [1.5],
    [True],
    [-1],
    [10**9],
    5,
    {"a": 1},
    None,
]


@pytest.mark.parametrize("prompt", BAD_PROMPTS)
def test_sch_04_a_prompt_of_nothing_is_refused_before_the_engine_sees_it(script: World, prompt: Any) -> None:
    steps = script.gauge("engine_steps_total")
    start = time.monotonic()
    assert_refused(script.post("/v1/completions", prompt=prompt), param="prompt")
    assert time.monotonic() - start < 1
    assert script.gauge("engine_steps_total") == steps


@pytest.mark.parametrize("max_tokens", [-1, 1.5, True, "five", [5], 2**40])
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_sch_04_a_token_limit_that_is_none_is_refused(script: World, field: str, max_tokens: Any) -> None:
    for path, body in (("/v1/completions", {"prompt": "hi"}),
                       ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})):  # fmt: skip
        error = assert_refused(script.post(path, **body, **{field: max_tokens}))
        assert error["param"] in (field, "max_tokens")


def test_sch_04_small_prompts_and_limits_that_are_fine(script: World) -> None:
    assert script.chat("")["choices"]
    assert_refused(script.post("/v1/chat/completions", messages=[]), param="messages")
    assert script.complete(SPECIAL[1], max_tokens=1)["usage"]["prompt_tokens"] == 1
    assert script.complete([1], max_tokens=1)["usage"]["completion_tokens"] == 1
    none = script.complete("hi", max_tokens=0)
    assert none["usage"]["completion_tokens"] == 0 and none["choices"][0]["text"] == ""
    assert none["choices"][0]["finish_reason"] == "length"
    assert script.complete("hi", max_tokens="5")["usage"]["completion_tokens"] == 5
    assert [script.chat(max_tokens=limit)["usage"]["completion_tokens"] for limit in (0, 1, "5")] == [0, 1, 5]


def test_sch_04_a_good_request_beside_bad_ones_is_answered(script: World) -> None:
    def good(_: int) -> str:
        return str(text_of(script.complete("hi", max_tokens=20)))

    def bad(i: int) -> int:
        return script.post("/v1/completions", prompt=BAD_PROMPTS[i % len(BAD_PROMPTS)]).status_code

    with ThreadPoolExecutor(8) as pool:
        bads, goods = pool.map(bad, range(26)), pool.map(good, range(10))
        assert set(bads) == {400} and set(goods) == {SENTENCE}


def test_sch_06_a_big_request_is_not_starved_by_small_ones(cramped: World) -> None:
    # The case at a smaller scale: seconds are tenths of seconds.
    done: dict[str, float] = {}

    def ask(name: str, prompt: str, max_tokens: int) -> None:
        cramped.complete(prompt, max_tokens=max_tokens, **FOREVER)
        done[name] = time.monotonic()

    stop = threading.Event()

    def keep_asking() -> None:
        while not stop.wait(0.02):
            cramped.complete("s" * 20, max_tokens=4, **FOREVER)

    with ThreadPoolExecutor(24) as pool:
        running = pool.submit(ask, "running", "r" * 500, 200)
        wait_for(lambda: cramped.gauge("num_requests_running") > 0)
        big = pool.submit(ask, "big", "b" * 500, 12)
        small = [pool.submit(ask, f"small-{i}", f"{i}" * 20, 4) for i in range(10)]
        crowd = [pool.submit(keep_asking) for _ in range(3)]
        try:
            for future in (running, big, *small):
                future.result(30)
        finally:
            stop.set()
        for future in crowd:
            future.result(30)
    cramped.wait_until_idle()


def test_sch_06_a_higher_priority_goes_first(random_folder: Path) -> None:
    order: list[int] = []
    with serve_app(random_folder, max_num_seqs=1, scheduling_policy="priority") as world:

        def ask(priority: int) -> None:
            world.complete("x" * 20, max_tokens=100, priority=priority, **FOREVER)  # longer than a thread may sleep
            order.append(priority)

        with ThreadPoolExecutor(8) as pool:
            first = pool.submit(world.complete, "y", max_tokens=500, **FOREVER)
            wait_for(lambda: world.gauge("num_requests_running") == 1)
            futures = []
            for number, priority in enumerate((5, 3, 4, 0)):
                futures.append(pool.submit(ask, priority))
                wait_for(lambda number=number: world.gauge("num_requests_waiting") == number + 1)
            for future in (first, *futures):
                future.result(30)
    assert order == [0, 3, 4, 5]


def test_a_full_queue_is_answered_503_with_a_time_to_come_back(random_folder: Path) -> None:
    with serve_app(random_folder, max_num_seqs=1, max_num_queued_reqs=1) as world, ThreadPoolExecutor(2) as pool:
        running = pool.submit(world.complete, "y", max_tokens=400, **FOREVER)
        wait_for(lambda: world.gauge("num_requests_running") == 1)
        waiting = pool.submit(world.complete, "z", max_tokens=2, **FOREVER)
        wait_for(lambda: world.gauge("num_requests_waiting") == 1)
        for stream in (False, True):
            response = world.post("/v1/completions", prompt="w", stream=stream)
            assert_refused(response, 503)
            assert int(response.headers["retry-after"]) > 0
        assert running.result(30) and waiting.result(30)
        rejected = world.metrics()[
            'octavo:admission_rejections_total{engine="0",model_name="test",reason="queue_full"}'
        ]
        assert rejected == 2


def test_several_prompts_find_room_together_or_not_at_all(random_folder: Path) -> None:
    with serve_app(random_folder, max_num_seqs=1, max_num_queued_reqs=1) as world:
        for stream in (False, True):
            for _ in range(5):  # whether the first answers before the third is refused is a matter of time
                assert_refused(world.post("/v1/completions", prompt=["a", "b", "c"], stream=stream, max_tokens=1), 503)
        assert len(world.complete(["a", "b"], max_tokens=1)["choices"]) == 2
        world.wait_until_idle()
        labels = '{engine="0",model_name="test",reason="queue_full"}'
        assert world.metrics()[f"octavo:admission_rejections_total{labels}"] == 10


def test_new_requests_are_refused_while_the_server_drains(script_folder: Path) -> None:
    with serve_app(script_folder, ServerConfig()) as world:
        world.lifecycle.drain()
        response = world.post("/v1/completions", prompt="hi")
        assert_refused(response, 503)
        assert "retry-after" in response.headers
        assert world.http.get("/readyz").status_code == 503
        assert world.http.get("/health").status_code == 200
        assert world.http.get("/livez").status_code == 200
