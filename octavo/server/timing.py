"""Where the time of one request went, for its own answer. Knows no metrics and no API form."""

import time
from typing import NamedTuple

from octavo.outputs import RequestOutput
from octavo.server.responses import RequestTimes


class Timing:
    """Give `see` every output of a request, of all its prompts; `times` is right once it has ended."""

    def __init__(self) -> None:
        self._arrival_s: float | None = None
        self._scheduled_s: float | None = None
        self._first_s: float | None = None
        self._samples: dict[tuple[int, int], _Sample] = {}

    def see(self, prompt_index: int, output: RequestOutput) -> None:
        """Take in one output."""
        now, metrics = time.monotonic(), output.metrics
        self._arrival_s = _earlier(self._arrival_s, metrics.arrival_time_s)
        self._scheduled_s = _earlier(self._scheduled_s, metrics.scheduled_time_s)
        self._first_s = _earlier(self._first_s, metrics.first_token_time_s)
        for sample in output.outputs:
            if sample.token_ids:
                # Counted from the engine's clock: several tokens may be seen at once.
                first_s = metrics.first_token_time_s or now
                self._samples[prompt_index, sample.index] = _Sample(first_s, now, len(sample.token_ids))

    def times(self) -> RequestTimes:
        """In milliseconds."""
        gaps = sum(sample.num_tokens - 1 for sample in self._samples.values())
        spent_s = sum(max(0.0, sample.last_s - sample.first_s) for sample in self._samples.values())
        generation_s = None if self._first_s is None else max(0.0, time.monotonic() - self._first_s)
        return RequestTimes(
            time_to_first_token_ms=_ms(self._arrival_s, self._first_s),
            generation_time_ms=None if generation_s is None else round(generation_s * 1000, 3),
            queue_time_ms=_ms(self._arrival_s, self._scheduled_s),
            mean_itl_ms=round(spent_s / gaps * 1000, 3) if gaps else None,
            tokens_per_second=round(gaps / generation_s, 3) if gaps and generation_s else None,
        )


class _Sample(NamedTuple):
    """Tokens of one sample; when the request had its first, and this sample its last one."""

    first_s: float
    last_s: float
    num_tokens: int


def _earlier(known_s: float | None, seen_s: float) -> float | None:
    """The earlier of two times; 0 is unknown."""
    if not seen_s:
        return known_s
    return seen_s if known_s is None else min(known_s, seen_s)


def _ms(begin_s: float | None, end_s: float | None) -> float | None:
    return None if begin_s is None or end_s is None else round(max(0.0, end_s - begin_s) * 1000, 3)
