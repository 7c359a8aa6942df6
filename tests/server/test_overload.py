"""More requests than there is room for, requests that take too long, and keys that share the engine."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.config import ServerConfig
from octavo.messages import SchedulerStats
from tests.server.world import World, assert_refused, serve_app, strict_json, wait_for

LONG = {"ignore_eos": True, "max_tokens": 400, "temperature": 0}


@pytest.fixture(scope="module")
def narrow(random_folder: Path) -> Iterator[World]:
    """One request at a time, two that wait, and three keys."""
    server = ServerConfig(api_key=("k1", "k2", "k3"), disable_log_stats=True)
    options = {"max_num_seqs": 1, "max_num_queued_reqs": 3, "max_num_queued_reqs_per_key": 2}
    with serve_app(random_folder, server, **options) as world:
        world.http.headers["Authorization"] = "Bearer k1"
        yield world


def retry_after(response: httpx.Response) -> int:
    return int(response.headers["Retry-After"])


def test_a_full_queue_is_answered_503_or_429_with_a_time_to_come_back(narrow: World) -> None:
    with ThreadPoolExecutor(8) as pool:

        def begin(key: str) -> Any:
            headers = {"Authorization": f"Bearer {key}"}
            return pool.submit(narrow.http.post, "/v1/completions", json={"prompt": "a", **LONG}, headers=headers)

        def waiting(count: int) -> Any:
            return lambda: narrow.gauge("num_requests_waiting") == count

        running = [begin("k1")]
        wait_for(lambda: narrow.gauge("num_requests_running") == 1)
        running += [begin("k1"), begin("k1")]
        wait_for(waiting(2))
        refused = narrow.post("/v1/completions", prompt="a", max_tokens=1)
        assert assert_refused(refused, 429)["type"] == "RateLimitError" and 1 <= retry_after(refused) <= 60
        running.append(begin("k2"))
        wait_for(waiting(3))
        refused = narrow.http.post("/v1/completions", json={"prompt": "a"}, headers={"Authorization": "Bearer k3"})
        assert assert_refused(refused, 503)["type"] == "ServiceUnavailableError" and 1 <= retry_after(refused) <= 60
        stream = narrow.post("/v1/completions", prompt="a", max_tokens=1, stream=True)
        assert_refused(stream, (429, 503))
        assert {one.result().status_code for one in running} == {200}
    narrow.wait_until_idle()


@pytest.mark.parametrize("count", [60, pytest.param(300, marks=pytest.mark.slow)])
def test_all_of_many_connections_at_once_are_served_or_told_to_come_back(narrow: World, count: int) -> None:
    def ask(i: int) -> httpx.Response:
        headers = {"Authorization": f"Bearer k{i % 3 + 1}"}
        body = {"messages": [{"role": "user", "content": f"q{i}"}], "max_tokens": 2, "stream": i % 2 == 0}
        return narrow.http.post("/v1/chat/completions", json=body, headers=headers)

    with ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(ask, range(count)))
    for answer in answers:
        if answer.status_code != 200:
            assert_refused(answer, (429, 503))
            assert 1 <= retry_after(answer) <= 60
    assert sum(answer.status_code == 200 for answer in answers) >= 4
    narrow.wait_until_idle()
    assert narrow.complete("a", max_tokens=1)["choices"]


def test_the_time_to_come_back_grows_with_the_queue_and_the_length_of_requests(narrow: World) -> None:
    assert narrow.lifecycle.loaded is not None
    metrics = narrow.lifecycle.loaded.metrics

    def estimate(waiting: int, running: int) -> int:
        return metrics.retry_after_s(SchedulerStats(num_waiting=waiting, num_running=running))

    for _ in range(100):
        metrics.note_latency(4.0)
    assert estimate(0, 0) == 4 and estimate(8, 8) == 4 and estimate(16, 8) == 8 and estimate(10**6, 8) == 60
    for _ in range(100):
        metrics.note_latency(0.01)
    assert estimate(8, 8) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_over_its_time_ends_with_504_or_an_error_event(varied: World, stream: bool) -> None:
    body = {"prompt": "a", **LONG, "n": 8, "stream": stream}
    start = time.monotonic()
    response = varied.http.post("/v1/completions", json=body, headers={"X-Request-Timeout": "0.15"})
    assert 0.1 < time.monotonic() - start < 3
    if response.status_code == 200:
        events = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
        assert stream and events[-1] != "[DONE]"
        error = strict_json(events[-1])["error"]
    else:
        error = assert_refused(response, 504)
    assert error["type"] == "RequestTimeoutError" and error["code"] == 504
    varied.wait_until_idle()


def test_waiting_counts_and_what_is_in_time_is_not_touched(narrow: World) -> None:
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(narrow.post, "/v1/completions", prompt="a", **LONG)
        wait_for(lambda: narrow.gauge("num_requests_running") == 1)
        headers = {"X-Request-Timeout": "0.05"}
        late = narrow.http.post("/v1/completions", json={"prompt": "b", "max_tokens": 1}, headers=headers)
        assert_refused(late, 504)
        assert first.result().status_code == 200
    body = {"prompt": "b", "max_tokens": 1, "temperature": 0, "seed": 1}
    in_time = narrow.http.post("/v1/completions", json=body, headers={"X-Request-Timeout": "20"})
    assert in_time.json()["choices"] == narrow.complete("b", max_tokens=1, seed=1)["choices"]
    narrow.wait_until_idle()


@pytest.mark.parametrize("value", ["0", "-1", "nan", "x", "1e-400"])
def test_a_time_that_is_none_is_refused(varied: World, value: str) -> None:
    response = varied.http.post("/v1/completions", json={"prompt": "a"}, headers={"X-Request-Timeout": value})
    assert "X-Request-Timeout" in assert_refused(response)["message"]


def test_the_servers_own_limit_holds_for_all(random_folder: Path) -> None:
    with serve_app(random_folder, ServerConfig(request_timeout=0.1, disable_log_stats=True)) as world:
        for headers in ({}, {"X-Request-Timeout": "inf"}):
            response = world.http.post("/v1/completions", json={"prompt": "a", "n": 8, **LONG}, headers=headers)
            assert_refused(response, 504)
        assert world.complete("a", max_tokens=1)["choices"]


def test_a_key_with_few_requests_is_served_beside_one_with_many(random_folder: Path) -> None:
    server = ServerConfig(api_key=("heavy", "light"), disable_log_stats=True)
    with serve_app(random_folder, server, max_num_seqs=2) as world, ThreadPoolExecutor(40) as pool:
        ended: list[str] = []

        def ask(key: str) -> None:
            body = {"prompt": "a", "max_tokens": 20, "ignore_eos": True}
            headers = {"Authorization": f"Bearer {key}"}
            assert world.http.post("/v1/completions", json=body, headers=headers).status_code == 200
            ended.append(key)

        heavy = [pool.submit(ask, "heavy") for _ in range(30)]
        wait_for(lambda: len(ended) >= 2)
        pool.submit(ask, "light").result()
        assert ended.index("light") < 15, ended
        for one in heavy:
            one.result()
