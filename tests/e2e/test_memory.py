"""The fault case of the class "memory": what a server holds does not grow with the requests it has answered.

The 3000 schemas of the case need structured output. A tenth of its requests here; all of them with
`OCTAVO_TEST_MINUTES`, which is the nightly size.
"""

import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.served import Served, assert_no_more, growth, served
from tests.script_model import write_random_model
from tests.server.world import Client, assert_refused

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SCALE = 1.0 if os.environ.get("OCTAVO_TEST_MINUTES") else 0.1
SAMPLES = 20
BYTES_PER_REQUEST = 300


def prompt(number: int) -> list[int]:
    """50 tokens that no other request has."""
    return random.Random(number).choices(range(3, 259), k=50)


def one_token(client: Client, number: int) -> None:
    assert client.complete(prompt(number), max_tokens=1)["choices"]


def left_early(client: Client, number: int) -> None:
    stream = client.events("/v1/completions", prompt=prompt(number), max_tokens=400, ignore_eos=True)
    next(stream)
    stream.close()


def refused(client: Client, number: int) -> None:
    assert_refused(client.post("/v1/completions", prompt=prompt(number), temperature=-1))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(write_random_model(tmp_path_factory.mktemp("memory")), "--max-num-seqs", "8") as it:
        with it.crowd() as client:
            run(it, client, one_token, range(500), samples=1)
        yield it


def run(
    server: Served, client: Client, job: Callable[[Client, int], None], numbers: range, samples: int = SAMPLES
) -> list[int]:
    """Do the job for each number, four at a time; returns the memory after each of `samples` equal parts."""
    memory = []
    size = len(numbers) // samples
    with ThreadPoolExecutor(4) as pool:
        for start in range(0, size * samples, size):
            for future in [pool.submit(job, client, number) for number in numbers[start : start + size]]:
                future.result()
            memory.append(server.holdings().private_bytes)
    return memory


@pytest.mark.parametrize(("job", "count"), [(one_token, 20_000), (left_early, 3_000), (refused, 3_000)])
def test_mem_01_memory_does_not_grow_with_requests(
    server: Served, job: Callable[[Client, int], None], count: int
) -> None:
    before, size = server.settled(), round(max(1000, count * SCALE))
    with server.crowd() as client:
        run(server, client, job, range(10**6, 10**6 + 200), samples=1)
        memory = run(server, client, job, range(size))
    leak = growth(memory[SAMPLES // 2 :]) / (size // SAMPLES)
    assert leak < BYTES_PER_REQUEST, memory
    assert_no_more(server.settled(), before)
    server.assert_log_is_clean()
