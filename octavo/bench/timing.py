"""From the times at which tokens arrived to the figures every benchmark prints."""

from collections.abc import Iterable
from dataclasses import dataclass, field

PERCENTILES = (50, 95, 99)


@dataclass(slots=True)
class RequestTimes:
    """When one request was sent and when its tokens came, in seconds of one clock."""

    sent_s: float
    prompt_tokens: int = 0
    token_times_s: list[float] = field(default_factory=list)
    error: str | None = None


def percentiles(values: Iterable[float]) -> dict[str, float | None]:
    """p50, p95 and p99 by the nearest rank; None without values."""
    ordered = sorted(values)
    if not ordered:
        return {f"p{p}": None for p in PERCENTILES}
    return {f"p{p}": round(ordered[min(len(ordered) - 1, -(-p * len(ordered) // 100) - 1)], 5) for p in PERCENTILES}


def summarize(requests: list[RequestTimes], elapsed_s: float) -> dict[str, object]:
    """Throughput, time to first token and inter-token latency of a run that took `elapsed_s` seconds."""
    done = [r for r in requests if r.error is None]
    output_tokens = sum(len(r.token_times_s) for r in done)
    prompt_tokens = sum(r.prompt_tokens for r in done)
    gaps = (b - a for r in done for a, b in zip(r.token_times_s, r.token_times_s[1:], strict=False))
    return {
        "requests": len(done),
        "errors": len(requests) - len(done),
        "elapsed_s": round(elapsed_s, 4),
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "output_tokens_per_s": round(output_tokens / elapsed_s, 2),
        "total_tokens_per_s": round((output_tokens + prompt_tokens) / elapsed_s, 2),
        "ttft_s": percentiles(r.token_times_s[0] - r.sent_s for r in done if r.token_times_s),
        "itl_s": percentiles(gaps),
    }
