"""Pictures of a comparison, when matplotlib is there (the extra `bench`)."""

from pathlib import Path
from statistics import median
from typing import Any

from octavo.bench.peers.compare import PASS_METRICS, RUN_METRICS, Comparison, Metric, run_figures, value_at
from octavo.errors import ConfigError

DPI = 80


def write_plots(comparison: Comparison, folder: Path) -> list[Path]:
    """Write throughput.png (against users), latency.png and resources.png; medians over the rounds.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  an extra, and slow to import
    except ImportError:
        raise ConfigError("--plots needs matplotlib: pip install 'octavo[bench]'") from None
    folder.mkdir(parents=True, exist_ok=True)
    runs = {name: found for name, found in comparison.runs.items() if found}

    throughput = Figure(figsize=(6, 4), layout="constrained")
    _draw_over_users(throughput.subplots(), runs, PASS_METRICS[0])
    latency = Figure(figsize=(11, 7), layout="constrained")
    for axes, metric in zip(latency.subplots(2, 2).flat, PASS_METRICS[2:], strict=True):
        _draw_over_users(axes, runs, metric)
    resources = Figure(figsize=(9, 3), layout="constrained")
    for axes, metric in zip(resources.subplots(1, 2), RUN_METRICS, strict=True):
        heights = [median(float(run_figures(run)[metric.path[0]]) for run in found) for found in runs.values()]
        axes.bar_label(axes.bar(list(runs), heights), fmt="%.3g")
        axes.set_title(metric.title)

    written = []
    for name, figure in (("throughput", throughput), ("latency", latency), ("resources", resources)):
        written.append(folder / f"{name}.png")
        figure.savefig(written[-1], dpi=DPI)
    return written


def _draw_over_users(axes: Any, runs: dict[str, list[Any]], metric: Metric) -> None:
    """One line per engine; a single pass with all requests at once becomes one point."""
    for name, found in runs.items():
        users = [of_pass["users"] or of_pass["requests"] for of_pass in found[0].passes]
        heights = [_median([value_at(run.passes[i], metric.path) for run in found]) for i in range(len(users))]
        axes.plot(users, heights, marker="o", label=name)
    axes.set_title(metric.title)
    axes.set_xlabel("users")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()


def _median(values: list[float | None]) -> float:
    known = [value for value in values if value is not None]
    return median(known) if known else float("nan")
