"""The fault case of the class "memory": what a server holds does not grow with the requests it has answered.

`scripts/soak --requests N` runs it in the case's size; test_memory.py runs a tenth of it. Each phase sends requests of
one kind, four at a time, and looks at the whole process tree after every twentieth part: memory may grow by less than
`BYTES_PER_REQUEST`, files and threads not at all, and no KV page stays in use.
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tests.e2e.served import Served, assert_no_more, growth, served
from tests.script_model import write_random_model
from tests.server.world import Client, assert_refused

SAMPLES = 20
BYTES_PER_REQUEST = 300
NUM_WARM_UP = 500


def prompt(number: int) -> list[int]:
    """50 tokens that no other request has."""
    return random.Random(number).choices(range(3, 259), k=50)


def one_token(client: Client, number: int) -> None:
    """A prompt that nobody sent before."""
    assert client.complete(prompt(number), max_tokens=1)["choices"]


def left_early(client: Client, number: int) -> None:
    """A stream whose client goes after the first chunk."""
    stream = client.events("/v1/completions", prompt=prompt(number), max_tokens=400, ignore_eos=True)
    next(stream)
    stream.close()


def refused(client: Client, number: int) -> None:
    """A request that is answered 400."""
    assert_refused(client.post("/v1/completions", prompt=prompt(number), temperature=-1))


def own_schema(client: Client, number: int) -> None:
    """An answer in JSON by a schema that nobody sent before."""
    schema = {"type": "object", "properties": {f"p{number}": {"type": "boolean"}}, "required": [f"p{number}"],
              "additionalProperties": False}  # fmt: skip
    wanted = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}
    assert client.complete(prompt(number), max_tokens=4, response_format=wanted)["choices"]


class Phase(NamedTuple):
    """So many requests of one kind, in the case's size.

    Attributes:
        cache_bytes: what caches that have a cap may take in all, beside the growth per request.
    """

    job: Callable[[Client, int], None]
    count: int
    cache_bytes: int = 0


GRAMMAR_BYTES = 8 << 20
"""256 compiled grammars, and the heaps of the threads that compile them: level after some 6,000 schemas."""

PHASES = (
    Phase(one_token, 20_000),
    Phase(own_schema, 3_000, GRAMMAR_BYTES),
    Phase(left_early, 3_000),
    Phase(refused, 3_000),
)


@contextmanager
def warm_server(folder: Path) -> Iterator[Served]:
    """A server that has had its first requests."""
    with served(write_random_model(folder), "--max-num-seqs", "8") as server:
        with server.crowd() as client:
            _run(server, client, one_token, range(NUM_WARM_UP), 1, lambda: None)
        yield server


def soak(server: Served, phase: Phase, count: int, tick: Callable[[], None]) -> float:
    """Run `count` requests of a phase and check what is left behind. Returns the growth of memory in bytes per request.

    Args:
        tick: called for each request.
    """
    with server.crowd() as client:
        _run(server, client, phase.job, range(10**6, 10**6 + 200), 1, lambda: None)
    before = server.settled()
    with server.crowd() as client:
        memory = _run(server, client, phase.job, range(count), SAMPLES, tick)
    if phase.cache_bytes:
        leak = max(0, memory[-1] - memory[0] - phase.cache_bytes) / count
    else:
        leak = growth(memory[SAMPLES // 2 :]) / (count // SAMPLES)
    assert leak < BYTES_PER_REQUEST, memory
    assert_no_more(server.settled(), before)
    server.assert_log_is_clean()
    return leak


def _run(
    server: Served,
    client: Client,
    job: Callable[[Client, int], None],
    numbers: range,
    samples: int,
    tick: Callable[[], None],
) -> list[int]:
    """Do the job for each number, four at a time; returns the memory after each of `samples` equal parts."""

    def one(number: int) -> None:
        job(client, number)
        tick()

    memory = []
    size = len(numbers) // samples
    with ThreadPoolExecutor(4) as pool:
        for start in range(0, size * samples, size):
            for future in [pool.submit(one, number) for number in numbers[start : start + size]]:
                future.result()
            memory.append(server.holdings().private_bytes)
    return memory


def main() -> None:
    """All phases, in the proportions of the case."""
    parser = argparse.ArgumentParser(prog="scripts/soak", description="Look for what grows with requests.")
    parser.add_argument("--requests", type=int, default=sum(phase.count for phase in PHASES), metavar="N",
                        help="of all phases together (default: %(default)s)")  # fmt: skip
    scale = parser.parse_args().requests / sum(phase.count for phase in PHASES)
    columns = (TextColumn("{task.description:12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TimeRemainingColumn(), TextColumn("{task.fields[result]}"))  # fmt: skip
    with (
        tempfile.TemporaryDirectory() as folder,
        warm_server(Path(folder)) as server,
        Progress(*columns, console=Console(stderr=True)) as bars,
    ):
        for phase in PHASES:
            count = max(SAMPLES, round(phase.count * scale))
            bar = bars.add_task(phase.job.__name__, total=count // SAMPLES * SAMPLES, result="")
            try:
                leak = soak(server, phase, count, lambda bar=bar: bars.advance(bar))  # type: ignore[misc]
            except AssertionError as err:
                sys.exit(f"{phase.job.__name__}: {err}")
            bars.update(bar, result=f"{leak:+.0f} bytes per request")


if __name__ == "__main__":
    main()
