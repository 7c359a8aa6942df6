"""Run peers in turn, and say how they compare. Deals in figures; knows no processes beyond `run_peer`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from octavo.bench.peers.process import Peer, PeerError, Run, run_peer

OURS = "octavo"


class Metric(NamedTuple):
    """A figure of a run: what it is called, where it is, and whether more is better."""

    title: str
    path: tuple[str, ...]
    more_is_better: bool


PASS_METRICS = (
    Metric("output tokens/s", ("output_tokens_per_s",), True),
    Metric("total tokens/s", ("total_tokens_per_s",), True),
    Metric("TTFT p50 s", ("ttft_s", "p50"), False),
    Metric("TTFT p99 s", ("ttft_s", "p99"), False),
    Metric("ITL p50 s", ("itl_s", "p50"), False),
    Metric("ITL p99 s", ("itl_s", "p99"), False),
)
RUN_METRICS = (
    Metric("start to ready s", ("start_s",), False),
    Metric("peak memory GiB", ("peak_gib",), False),
)


class Line(NamedTuple):
    """One line of the comparison.

    Attributes:
        users: None: all requests are sent at once, or the figure is of the whole run.
        ours, theirs: medians over the rounds.
        ratio: above 1 we are better: the median of the ratios of each round. None when there is nothing to divide by.
    """

    peer: str
    users: int | None
    metric: str
    ours: float
    theirs: float
    ratio: float | None


@dataclass
class Comparison:
    """Runs by peer, one per round, in step with each other; `failed` says why a peer has fewer."""

    runs: dict[str, list[Run]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def lines(self) -> list[Line]:
        """Every figure of every peer beside ours."""
        ours = self.runs.get(OURS, [])
        found = []
        for name, theirs in self.runs.items():
            rounds = list(zip(ours, theirs, strict=False))
            if name == OURS or not rounds:
                continue
            for number, of_pass in enumerate(rounds[0][0].passes):
                pairs = [(a.passes[number], b.passes[number]) for a, b in rounds]
                found += [_line(name, of_pass["users"], metric, pairs) for metric in PASS_METRICS]
            whole = [(run_figures(a), run_figures(b)) for a, b in rounds]
            found += [_line(name, None, metric, whole) for metric in RUN_METRICS]
        return [line for line in found if line is not None]


def run_figures(run: Run) -> dict[str, Any]:
    """The figures of a whole run, as `RUN_METRICS` looks for them."""
    return {"start_s": run.start_s, "peak_gib": run.peak_bytes / 2**30}


def compare(
    peers: list[Peer],
    job: dict[str, Any],
    rounds: int,
    timeout_s: float,
    on_progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
    run: Callable[[Peer, dict[str, Any], float], Run] = run_peer,
) -> Comparison:
    """Run all peers one after the other (A B C, A B C, ...). One that fails is left out of the rounds that follow."""
    found = Comparison({peer.name: [] for peer in peers})
    for number in range(rounds):
        for place, peer in enumerate(peers):
            on_progress("runs", number * len(peers) + place, rounds * len(peers))
            if peer.name in found.failed:
                continue
            try:
                found.runs[peer.name].append(run(peer, job, timeout_s))
            except PeerError as err:
                found.failed[peer.name] = str(err)
    return found


def value_at(figures: dict[str, Any], path: tuple[str, ...]) -> float | None:
    """The figure at a path of keys; None where there is none."""
    found: Any = figures
    for key in path:
        found = found[key]
    return None if found is None else float(found)


def _line(
    peer: str, users: int | None, metric: Metric, pairs: list[tuple[dict[str, Any], dict[str, Any]]]
) -> Line | None:
    values = [(value_at(a, metric.path), value_at(b, metric.path)) for a, b in pairs]
    known = [(a, b) for a, b in values if a is not None and b is not None]
    if not known:
        return None
    better = [(a, b) if metric.more_is_better else (b, a) for a, b in known]
    ratio = median(top / bottom for top, bottom in better) if all(bottom > 0 for _, bottom in better) else None
    return Line(peer, users, metric.title, median(a for a, _ in known), median(b for _, b in known), ratio)
