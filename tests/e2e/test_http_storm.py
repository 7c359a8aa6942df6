"""A served model in bad weather: thousands of random requests, crowds, slow and leaving clients, too small a pool.
Afterwards everything is as before. `OCTAVO_TEST_MINUTES` lets the storm last; `OCTAVO_TEST_SEED` repeats one.
"""

import os
import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.served import Served, assert_no_more, growth, served
from tests.e2e.storm import CONTEXT_LENGTH, leave, send_bad, send_good
from tests.script_model import write_random_model
from tests.server.world import Client, assert_refused, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900 + 60 * 2 * int(os.environ.get("OCTAVO_TEST_MINUTES", "0")))]

CLIENTS = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(tmp_path_factory.mktemp("storm"), context_length=CONTEXT_LENGTH, spread=4.0)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    """Few seats, a short queue, and pages for one and a half requests of full length."""
    options = ("--max-num-seqs", "6", "--max-num-queued-reqs", "20", "--num-gpu-blocks-override", "48",
               "--max-num-batched-tokens", "64", "--scheduling-policy", "priority")  # fmt: skip
    with served(folder, *options) as it:
        yield it


def storm(server: Served, rng: random.Random, count: int) -> list[int]:
    """Run random requests; returns the memory after each tenth of them."""
    memory = []
    with server.crowd() as client, ThreadPoolExecutor(CLIENTS) as pool:
        for _ in range(10):
            jobs = [(rng.choice((send_good, send_good, send_bad, leave)), rng.random()) for _ in range(count // 10)]
            for future in [pool.submit(job, client, random.Random(seed)) for job, seed in jobs]:
                future.result()
            memory.append(server.holdings().private_bytes)
    return memory


def reference_answers(server: Served) -> list[Any]:
    """Greedy and seeded answers to be given the same for ever."""
    bodies: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0, "n": 2},
        {"temperature": 1, "seed": 4, "n": 3},
    ]
    answers = [server.complete("a fixed prompt", max_tokens=24, ignore_eos=True, **body) for body in bodies]
    return [[choice["text"] for choice in answer["choices"]] for answer in answers]


def test_random_requests_leave_everything_as_it_was(server: Served) -> None:
    seed = int(os.environ.get("OCTAVO_TEST_SEED") or random.SystemRandom().randrange(10**6))
    print(f"OCTAVO_TEST_SEED={seed}")
    rng = random.Random(seed)
    storm(server, rng, 500)  # caches and pools of every kind reach their size
    answers, before = reference_answers(server), server.settled()
    memory = []
    deadline = time.monotonic() + 60 * float(os.environ.get("OCTAVO_TEST_MINUTES", "0"))
    while len(memory) < 20 or time.monotonic() < deadline:
        memory += storm(server, rng, 1000)
    assert_no_more(server.settled(5), before)
    assert server.http.get("/health").status_code == 200
    assert reference_answers(server) == answers
    assert growth(memory[len(memory) // 2 :]) / 100 < 2000, memory  # bytes per request
    assert all(value >= 0 for value in server.metrics().values())
    server.assert_log_is_clean()


# ---------------------------------------------------------------- PFX-03: a pool that holds a quarter of the prompts

SYSTEM = "You are a patient assistant who answers in one short sentence and never repeats what was asked before. OK!\n"
MARKERS = [
    f"<{name}-{i * 37 % 97:02d}>" for i, name in enumerate(["amber", "birch", "cedar", "delta", "ember", "frost"] * 4)
]
PROMPTS = [f"{SYSTEM}Remember the word {marker}, then tell me about day {i}." for i, marker in enumerate(MARKERS)]
BLOCK_SIZE = 16


def num_common(a: str, b: str) -> int:
    """Length of the common beginning of two different prompts of bytes."""
    return next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)


def ask_for_top5(client: Client, prompt: str) -> Any:
    return client.complete(prompt, max_tokens=12, logprobs=5, ignore_eos=True)


def first_token(answer: Any) -> dict[str, float]:
    top: dict[str, float] = answer["choices"][0]["logprobs"]["top_logprobs"][0]
    return top


def test_pfx_03_reused_pages_never_show_another_prompt(folder: Path) -> None:
    with served(folder, "--no-enable-prefix-caching") as plain:
        expected = {prompt: ask_for_top5(plain, prompt) for prompt in PROMPTS}
    pages = 6 * -(-(len(PROMPTS[0]) + 12) // BLOCK_SIZE)
    with served(folder, "--num-gpu-blocks-override", str(pages), "--max-num-seqs", "8") as server:
        rng, seen = random.Random(3), set()

        def ask(prompt: str, leaves: bool) -> None:
            if leaves:
                with server.send_and_hold("/v1/completions", prompt=prompt, max_tokens=300, stream=True) as sock:
                    sock.settimeout(0.05)
                    with suppress(TimeoutError):
                        sock.recv(200)
                return
            answer, reference = ask_for_top5(server, prompt), expected[prompt]
            assert first_token(answer) == pytest.approx(first_token(reference), abs=5e-3)
            assert answer["choices"][0]["text"] == reference["choices"][0]["text"]
            assert not any(marker in answer["choices"][0]["text"] for marker in MARKERS)
            shared = max(num_common(prompt, other) for other in PROMPTS if other != prompt)
            most = len(prompt) - 1 if prompt in seen else shared
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] <= most

        with ThreadPoolExecutor(8) as pool:
            for _ in range(5):
                order = rng.sample(PROMPTS, len(PROMPTS))
                for future in [pool.submit(ask, prompt, rng.random() < 0.2) for prompt in order]:
                    future.result()
                seen |= set(order)
        server.settled()
        server.assert_log_is_clean()


# ---------------------------------------------------------------- SCH-06: a big request among small ones


def test_sch_06_a_big_request_gets_its_turn_and_small_ones_wait_no_longer_than_they_must(tmp_path: Path) -> None:
    # 64 pages hold 1024 tokens: the running request takes up to 70% of them, the big one 50%.
    folder = write_random_model(tmp_path, context_length=1024)
    with served(folder, "--num-gpu-blocks-override", "64") as server, ThreadPoolExecutor(32) as pool:
        times: dict[str, tuple[float, float]] = {}

        def ask(name: str, prompt: str, max_tokens: int) -> None:
            start = time.monotonic()
            answer = server.complete(prompt, max_tokens=max_tokens, ignore_eos=True)
            assert answer["usage"]["completion_tokens"] == max_tokens
            times[name] = start, time.monotonic()

        running = pool.submit(ask, "running", "r" * 100, 600)
        wait_for(lambda: server.gauge("num_requests_running") == 1)
        big = pool.submit(ask, "big", "b" * 500, 12)
        small = [pool.submit(ask, f"small {i}", f"small one {i}", 4) for i in range(10)]
        later = []
        while not big.done():  # small ones keep coming
            later.append(pool.submit(ask, f"later {len(later)}", f"later one {len(later)}", 4))
            time.sleep(0.2)
        for future in (running, big, *small, *later):
            future.result(60)
        freed = times["running"][1]
        assert times["big"][1] - times["big"][0] < 60
        for name, (start, end) in times.items():
            if name.startswith("small"):
                assert end - start < max(0, freed - start) + 5, name
        server.settled()


# ---------------------------------------------------------------- MET-01: everybody leaves at once


@pytest.mark.parametrize("seats", [20, 2])
def test_met_01_gauges_are_idle_soon_after_all_clients_left(tmp_path: Path, seats: int) -> None:
    folder = write_random_model(tmp_path, context_length=4096)
    body = {"prompt": "x" * 30, "max_tokens": 4000, "ignore_eos": True}
    with served(folder, "--max-num-seqs", str(seats), "--num-gpu-blocks-override", "5200") as server:
        before = server.settled()
        with ExitStack() as clients:
            for number in range(20):
                clients.enter_context(server.send_and_hold("/v1/completions", **body, stream=number % 2 == 0))
            wait_for(lambda: server.gauge("num_requests_running") == seats)
            wait_for(lambda: server.gauge("num_requests_waiting") == 20 - seats)
            start = time.monotonic()
            server.metrics()
            assert time.monotonic() - start < 1
        time.sleep(1)
        assert all(value >= 0 for value in server.metrics().values())
        assert_no_more(server.settled(4), before)


# ---------------------------------------------------------------- API-07: crowds


def test_api_07_three_hundred_connections_at_once_and_then_one_for_all(server: Served) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "temperature": 0}

    def ask(client: Client) -> str:
        for _ in range(2000):
            response = client.post("/v1/chat/completions", **body)
            if response.status_code == 200:
                return str(response.json()["choices"][0]["message"]["content"])
            assert_refused(response, 503)  # the queue is short
            time.sleep(0.05)
        raise AssertionError("no turn in 100 s")

    with ThreadPoolExecutor(300) as pool:
        answers = set(pool.map(lambda _: ask(server), range(300)))
    assert len(answers) == 1
    with server.crowd() as client:
        assert {ask(client) for _ in range(300)} == answers
    server.settled()


def test_api_07_clients_that_dribble_do_not_hold_up_others(server: Served) -> None:
    url = httpx.URL(server.url)
    with ExitStack() as stack:
        request = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
        slow = [stack.enter_context(socket.create_connection((url.host, int(url.port or 0)))) for _ in range(50)]
        for position in range(len(request)):
            for sock in slow:
                sock.sendall(request[position : position + 1])
            time.sleep(0.03)
            if position % 10 == 0:
                start = time.monotonic()
                assert server.complete("hi", max_tokens=4)["choices"]
                assert time.monotonic() - start < 5
    server.settled()
