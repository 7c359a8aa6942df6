"""A served model in bad weather: a thousand random requests, crowds, slow and leaving clients, a pool that is too small.
Afterwards everything is as before. `OCTAVO_TEST_MINUTES` lets the storm last; `OCTAVO_TEST_SEED` repeats one.
"""

import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.served import Served, served, slope
from tests.e2e.storm import CONTEXT_LENGTH, leave, send_bad, send_good
from tests.script_model import write_random_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900 + 60 * 2 * int(os.environ.get("OCTAVO_TEST_MINUTES", "0")))]

CLIENTS = 24
LAZY_THREADS = 4 + (os.cpu_count() or 1)
"""asyncio's own pool starts its threads one by one."""


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


def test_a_thousand_random_requests_leave_everything_as_it_was(server: Served) -> None:
    seed = int(os.environ.get("OCTAVO_TEST_SEED") or random.SystemRandom().randrange(10**6))
    print(f"OCTAVO_TEST_SEED={seed}")
    rng = random.Random(seed)
    storm(server, rng, 200)  # caches and pools of every kind reach their size
    answers, before = reference_answers(server), server.settled()
    memory = []
    deadline = time.monotonic() + 60 * float(os.environ.get("OCTAVO_TEST_MINUTES", "0"))
    while not memory or time.monotonic() < deadline:
        memory += storm(server, rng, 1000)
    after = server.settled(5)
    assert server.http.get("/health").status_code == 200
    assert reference_answers(server) == answers
    assert after.files == before.files
    assert after.threads <= before.threads + LAZY_THREADS
    growth = slope(memory[len(memory) // 2 :]) / 100
    print("bytes per request:", growth, "memory:", memory)
    assert growth < 3000
    assert all(value >= 0 for value in server.metrics().values())
    server.assert_log_is_clean()
