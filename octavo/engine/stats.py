"""The statistics line of a busy engine. Turns counters into rates; knows no requests."""

import time
from collections.abc import Callable

from octavo.logging import get_logger
from octavo.messages import SchedulerStats

logger = get_logger(__name__)


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
