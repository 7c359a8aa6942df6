"""Statistics of an engine: one line while it is busy, and what stays when it is started again. Knows no requests."""

import time
from collections.abc import Callable
from operator import add

import msgspec

from octavo.logging import get_logger
from octavo.messages import SchedulerStats

logger = get_logger(__name__)


GAUGES = ("num_running", "num_waiting", "kv_usage", "kv_waste")
PEAKS = ("kv_peak_blocks", "kv_peak_waste", "peak_running")


def counters(stats: SchedulerStats) -> SchedulerStats:
    """What is left of a state when its engine is gone: nothing runs, but what was counted stays counted."""
    return msgspec.structs.replace(stats, **dict.fromkeys(GAUGES, 0))


def total(earlier: SchedulerStats, now: SchedulerStats) -> SchedulerStats:
    """The state of an engine whose predecessors left `earlier`."""
    if not earlier.steps:
        return now
    names = [name for name in SchedulerStats.__struct_fields__ if name not in GAUGES]
    joint = {name: (max if name in PEAKS else add)(getattr(earlier, name), getattr(now, name)) for name in names}
    return msgspec.structs.replace(now, **joint)


class StatsLogger:
    """Logs one line every `interval_s` while the engine is busy. Call `observe` with each new state of the core."""

    def __init__(self, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._latest = SchedulerStats()
        self._base = self._latest
        self._base_time_s = 0.0

    def observe(self, stats: SchedulerStats) -> None:
        """Take note of a state, and log if it is time to."""
        now = self._clock()
        if not self._latest.num_running and not self._latest.num_waiting:  # rates leave out the time without work
            self._base, self._base_time_s = self._latest, now
        self._latest = stats
        if now - self._base_time_s >= self._interval_s:
            logger.info("%s", summarize(self._base, stats, now - self._base_time_s))
            self._base, self._base_time_s = stats, now


def summarize(before: SchedulerStats, after: SchedulerStats, elapsed_s: float) -> str:
    """One line about the time between two states."""

    def rate(name: str) -> float:
        return float(getattr(after, name) - getattr(before, name)) / elapsed_s

    queries = after.prefix_cache_queries - before.prefix_cache_queries
    hits = after.prefix_cache_hits - before.prefix_cache_hits
    return (
        f"Avg prompt throughput: {rate('prompt_tokens'):.1f} tokens/s, "
        f"Avg generation throughput: {rate('generation_tokens'):.1f} tokens/s, "
        f"Running: {after.num_running} reqs, Waiting: {after.num_waiting} reqs, "
        f"GPU KV cache usage: {after.kv_usage:.1%}, Prefix cache hit rate: {hits / queries if queries else 0.0:.1%}"
    )
