"""Time two ways to do the same thing, in turn, so that both meet the same machine. Knows no ops.

What the figures need to mean something (two thread pools, few cores, neighbours that come and go):

- torch and we take turns sample by sample, and the ratio is the median of the ratios of neighbours;
- a pause after each sample of torch: its OpenMP worker spins for a while when the work is done, and our next sample
  would run beside it on the same core;
- calls before each sample that nobody times, which wake the threads, let them part and load the code.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

TORCH_SLEEP_S = 0.03
"""By then libgomp's worker has given up spinning."""

SAMPLE_S = 0.002
"""Least time of a sample; short calls are repeated."""

WARM_UP_S = 0.025
"""Untimed calls before a sample take about this long (at least one is made). The system may wake a thread on the CPU of
the one that waits for it, and needs milliseconds to part them.
"""

MIN_PAIRS = 3

Call = Callable[[int], object]
"""One execution; its argument counts the calls, so that each can take operands of its own."""


class Pairs(NamedTuple):
    """Seconds per call: medians over the samples, and the median of the ratios theirs / ours of each pair."""

    ours_s: float
    theirs_s: float
    ratio: float
    pairs: int


class Sampler:
    """Takes samples of one call, always going on with the operands where the last sample stopped."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.done = 0
        self._run(1)
        call_s = max(self._run(1), 1e-7)
        self.calls = max(1, round(SAMPLE_S / call_s))
        self.warm_up_calls = max(1, round(WARM_UP_S / call_s))

    def sample_s(self) -> float:
        """Seconds per call."""
        self._run(self.warm_up_calls)
        return self._run(self.calls) / self.calls

    def _run(self, calls: int) -> float:
        call, first = self.call, self.done
        self.done += calls
        start_s = time.perf_counter()
        for i in range(first, self.done):
            call(i)
        return time.perf_counter() - start_s


def compare(ours: Call, theirs: Call, pairs: int, budget_s: float) -> Pairs:
    """Sample both in turn, `pairs` times or, if that takes longer than `budget_s`, fewer but at least `MIN_PAIRS`."""
    start_s = time.perf_counter()
    their_sampler = Sampler(theirs)
    time.sleep(TORCH_SLEEP_S)
    our_sampler = Sampler(ours)
    ours_s: list[float] = []
    theirs_s: list[float] = []
    while len(ours_s) < pairs:
        theirs_s.append(their_sampler.sample_s())
        time.sleep(TORCH_SLEEP_S)
        ours_s.append(our_sampler.sample_s())
        if len(ours_s) >= MIN_PAIRS and time.perf_counter() - start_s > budget_s:
            break
    ratio = median(their / our for our, their in zip(ours_s, theirs_s, strict=True))
    return Pairs(median(ours_s), median(theirs_s), ratio, len(ours_s))
