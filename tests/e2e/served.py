"""`octavo serve` as users run it, in processes of its own, and what those processes hold on to."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

import httpx

from tests.server.test_process_ends import Process, serving
from tests.server.world import Client

TIMEOUT_S = 60.0

LAZY_THREADS = 4 + (os.cpu_count() or 1)
"""asyncio's own pool starts its threads one by one, up to this many."""


class Holdings(NamedTuple):
    """What all processes of a server hold on to.

    Attributes:
        private_bytes: memory of their own, swapped out or not.
    """

    private_bytes: int
    files: int
    threads: int


@dataclass(frozen=True)
class Served(Client):
    """A running `octavo serve` of the model "test". Its own client keeps no connection open, so that files can be
    counted.
    """

    process: Process

    @contextmanager
    def crowd(self) -> Iterator[Client]:
        """A client that keeps its connections until the end, for threads to share."""
        with httpx.Client(base_url=self.url, timeout=TIMEOUT_S, limits=httpx.Limits(max_connections=None)) as http:
            yield Client(self.url, http)

    def holdings(self) -> Holdings:
        """Counted now."""
        pids = [self.process.popen.pid, *self.process.descendants()]
        status = [_status(pid) for pid in pids]
        return Holdings(
            private_bytes=sum(1024 * (each["RssAnon"] + each["VmSwap"]) for each in status),
            files=sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
            threads=sum(each["Threads"] for each in status),
        )

    def settled(self, timeout_s: float = 5.0) -> Holdings:
        """Once no request is open and connections that were left are gone, within `timeout_s`."""
        self.wait_until_idle(timeout_s)
        assert self.http.get("/load").json() == {"server_load": 0}
        deadline, holdings = time.monotonic() + timeout_s, self.holdings()
        while time.monotonic() < deadline:
            time.sleep(0.3)
            before, holdings = holdings, self.holdings()
            if holdings.files == before.files:
                break
        return holdings

    def assert_log_is_clean(self) -> None:
        """Nothing that an operator would have to look into."""
        wrong = [line for line in self.process.log if "Traceback" in line or line.startswith("E ") or "Error" in line]
        assert wrong == []


@contextmanager
def served(folder: Path, *options: str) -> Iterator[Served]:
    """Serve a folder until the block ends."""
    with serving(folder, None, *options) as process:
        process.wait_until_ready()
        url = f"http://127.0.0.1:{process.port}"
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        with httpx.Client(base_url=url, timeout=TIMEOUT_S, limits=limits) as http:
            yield Served(url, http, process)


def assert_no_more(after: Holdings, before: Holdings) -> None:
    """No file and no thread has been left open; memory is for `growth` to judge."""
    assert after.files == before.files
    assert after.threads <= before.threads + LAZY_THREADS


def growth(values: Sequence[float]) -> float:
    """Median growth per step: a leak grows in every one, a heap that gets one more arena grows in one."""
    return median(after - before for before, after in pairwise(values))


def _status(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    pairs = (line.split(":", 1) for line in lines)
    return {name: int(value.split()[0]) for name, value in pairs if name in ("RssAnon", "VmSwap", "Threads")}
