"""From the times at which tokens arrived to the figures every benchmark prints."""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from octavo.bench.peers.runner import RequestTimes

PERCENTILES = (50, 95, 99)


class Wait(NamedTuple):
    """From when a request was sent to its first token."""

    begin_s: float
    end_s: float


def percentiles(values: Iterable[float]) -> dict[str, float | None]:
    """p50, p95 and p99 by the nearest rank; None without values."""
    ordered = sorted(values)
    if not ordered:
        return {f"p{p}": None for p in PERCENTILES}
    return {f"p{p}": round(ordered[min(len(ordered) - 1, -(-p * len(ordered) // 100) - 1)], 5) for p in PERCENTILES}


def summarize(requests: list[RequestTimes], elapsed_s: float) -> dict[str, object]:
    """Throughput, time to first token and inter-token latency of a run that took `elapsed_s` seconds.

    `itl_beside_prompts_s` is of the gaps in which another request waited for its first token: what streams feel when a
    prompt arrives.
    """
    done = [r for r in requests if r.error is None]
    output_tokens = sum(len(r.token_times_s) for r in done)
    prompt_tokens = sum(r.prompt_tokens for r in done)
    gaps = [gap for r in done for gap in pairwise(r.token_times_s)]
    waits = _merged_waits(done)
    errors = [r.error for r in requests if r.error is not None]
    return {
        "requests": len(done),
        "errors": len(errors),
        **({"first_error": errors[0]} if errors else {}),
        "elapsed_s": round(elapsed_s, 4),
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "output_tokens_per_s": round(output_tokens / elapsed_s, 2),
        "total_tokens_per_s": round((output_tokens + prompt_tokens) / elapsed_s, 2),
        "ttft_s": percentiles(r.token_times_s[0] - r.sent_s for r in done if r.token_times_s),
        "itl_s": percentiles(b - a for a, b in gaps),
        "itl_beside_prompts_s": percentiles(b - a for a, b in gaps if _overlaps(a, b, waits)),
    }


def _merged_waits(requests: list[RequestTimes]) -> list[Wait]:
    """When some request waited for its first token: disjoint spans in order."""
    merged: list[Wait] = []
    for begin, end in sorted((r.sent_s, r.token_times_s[0]) for r in requests if r.token_times_s):
        if merged and begin <= merged[-1].end_s:
            merged[-1] = Wait(merged[-1].begin_s, max(end, merged[-1].end_s))
        else:
            merged.append(Wait(begin, end))
    return merged


def _overlaps(begin_s: float, end_s: float, waits: list[Wait]) -> bool:
    last = bisect_right(waits, end_s, key=lambda wait: wait.begin_s) - 1  # the last that began before the end
    return last >= 0 and waits[last].end_s > begin_s
