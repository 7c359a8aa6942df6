"""The runner's side of the protocol (see this package), and the loop that sends requests. Python's own library only: it
also runs, by its path, in interpreters that have no Octavo.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Protocol

WARM_UP = {"prompt": 16, "out": 4}
"""Tokens of the request that comes before anything is timed."""


class Item(Protocol):
    """One request of a workload: `at_s` seconds after the start it arrives."""

    @property
    def prompt_token_ids(self) -> list[int]: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def at_s(self) -> float: ...


class Line(NamedTuple):
    """An `Item` as a job spells it."""

    prompt_token_ids: list[int]
    output_tokens: int
    at_s: float = 0.0


class Output(NamedTuple):
    """What one step gave a request, named by its index."""

    request: int
    num_tokens: int
    finished: bool
    error: str | None = None


class Stepper(Protocol):
    """An engine that works on all its requests at once, step by step."""

    def add(self, index: int, item: Item) -> None:
        """Start a request; greedy, exactly `item.output_tokens` tokens."""
        ...

    def step(self) -> Sequence[Output]:
        """Go on with the requests that run."""
        ...


@dataclass(slots=True)
class RequestTimes:
    """When one request was sent and when its tokens came, in seconds of one clock."""

    sent_s: float
    prompt_tokens: int = 0
    token_times_s: list[float] = field(default_factory=list)
    error: str | None = None


class Pass(NamedTuple):
    """One pass over a workload, the times in the order of its requests."""

    times: list[RequestTimes]
    elapsed_s: float


def run_steps(
    engine: Stepper,
    items: Sequence[Item],
    users: int | None = None,
    on_finished: Callable[[int], None] = lambda finished: None,
) -> Pass:
    """Send the items in order, each when it has arrived and one of at most `users` is free; step until all ended."""
    start_s = time.perf_counter()
    times: list[RequestTimes] = []
    finished = 0
    while finished < len(items):
        now_s = time.perf_counter()
        while len(times) < len(items) and (users is None or len(times) - finished < users):
            item = items[len(times)]
            if now_s < start_s + item.at_s:
                break
            # Who arrives during a step has waited since.
            sent_s = start_s + item.at_s if item.at_s else time.perf_counter()
            times.append(RequestTimes(sent_s, len(item.prompt_token_ids)))
            engine.add(len(times) - 1, item)
        if len(times) == finished:
            time.sleep(max(start_s + items[finished].at_s - time.perf_counter(), 0.0))
            continue
        outputs = engine.step()
        now_s = time.perf_counter()
        for output in outputs:
            times[output.request].token_times_s.extend([now_s] * output.num_tokens)
            if output.finished:
                times[output.request].error = output.error
                finished += 1
        on_finished(finished)
    return Pass(times, time.perf_counter() - start_s)


class Loaded(NamedTuple):
    """A runner's engine: its version, and what runs items for a number of users (None: all are sent at once)."""

    version: str
    run: Callable[[list[Line], int | None], Pass]


def value_of(text: str) -> Any:
    """An option's value: what it is as JSON (true, 4, null), else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def serve_job(load: Callable[[dict[str, Any]], Loaded]) -> None:
    """Be a runner: read the job, load, run every pass, leave when the parent says so.

    A job: `model`, `dtype`, `max_model_len`, `max_seqs`, `threads`, `prefix_caching`, `options` (Octavo's),
    `peer_options` (text by name, see `value_of`), `requests` (lines of a workload), `users` (numbers or null), and
    `requests_per_user` (null: every pass takes all lines).
    """
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print what they like; only the protocol goes to the pipe
    job = json.loads(sys.stdin.readline())
    items = [Line(line["prompt"], line["out"], line.get("at", 0.0)) for line in job["requests"]]
    version, run = load(job)
    print(json.dumps({"version": version}), file=pipe)
    run([Line(items[0].prompt_token_ids[: WARM_UP["prompt"]], WARM_UP["out"])], 1)
    for users in job["users"]:
        count = users * job["requests_per_user"] if users and job["requests_per_user"] else len(items)
        times, elapsed_s = run(items[:count], users)
        figures = {"users": users, "elapsed_s": elapsed_s, "times": [asdict(t) for t in times]}
        print(json.dumps(figures), file=pipe)
    sys.stdin.read()
