"""`metrics` of single answers: there when asked for, plausible, and the last thing a stream tells."""

from pathlib import Path
from typing import Any

import pytest

from octavo.config import ServerConfig
from tests.server.world import World, serve_app

NAMES = {"time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms", "tokens_per_second"}


def check(times: dict[str, Any], num_gaps: int) -> None:
    assert set(times) == NAMES
    assert 0 <= times["queue_time_ms"] <= times["time_to_first_token_ms"] < 10_000
    assert times["generation_time_ms"] > 0
    assert times["tokens_per_second"] * times["generation_time_ms"] / 1000 == pytest.approx(num_gaps, rel=1e-2)
    assert 0 < times["mean_itl_ms"] <= times["generation_time_ms"]


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_an_answer_tells_its_times_when_asked(varied: World, route: str) -> None:
    body: dict[str, Any] = {"max_tokens": 8, "ignore_eos": True, "temperature": 1, "n": 2}
    body |= {"prompt": "hi"} if route == "/v1/completions" else {"messages": [{"role": "user", "content": "hi"}]}
    assert "metrics" not in varied.ok(route, **body)
    check(varied.ok(route, **body, return_metrics=True)["metrics"], 14)
    for options in ({}, {"stream_options": {"include_usage": True}}):
        *before, last = varied.stream(route, **body, **options, return_metrics=True)
        check(last["metrics"], 14)
        assert not any("metrics" in chunk for chunk in before)


def test_every_prompt_counts(varied: World) -> None:
    answer = varied.complete(["a", "b", "c"], max_tokens=4, ignore_eos=True, return_metrics=True)
    check(answer["metrics"], 9)


def test_a_single_token_has_no_gaps(varied: World) -> None:
    times = varied.complete("a", max_tokens=1, return_metrics=True)["metrics"]
    assert times["mean_itl_ms"] is None and times["tokens_per_second"] is None
    assert times["time_to_first_token_ms"] > 0


def test_a_server_can_tell_times_and_usage_unasked(script_folder: Path) -> None:
    config = ServerConfig(enable_per_request_metrics=True, enable_force_include_usage=True)
    with serve_app(script_folder, config) as world:
        assert set(world.chat(max_tokens=3)["metrics"]) == NAMES
        last = world.stream_chat(max_tokens=3)[-1]
        assert last["choices"] == [] and last["usage"]["completion_tokens"] == 3
        assert set(last["metrics"]) == NAMES
