"""`octavo bench kernels`: the table of native ops against torch."""

import argparse
from typing import NamedTuple

from octavo.bench.kernels.cases import DTYPES, SUBJECTS, Case, Selection, select_cases
from octavo.bench.kernels.ceilings import Ceilings, measure_ceilings
from octavo.bench.kernels.measure import Pairs, compare
from octavo.cli.progress import progress_bars
from octavo.errors import ConfigError
from octavo.kernels.cpu import native
from octavo.ops.dispatch import use_providers
from octavo.platforms.cpu import CpuPlatform

CASE_BUDGET_S = 0.25
"""A case gets fewer pairs of samples when they take longer than this."""

WIDTH = 120
"""Columns of the table where there is no terminal."""


class Figures(NamedTuple):
    """One line of the table, as it is written to a file."""

    op: str
    dtype: str
    shape: str
    m: int
    memory: str
    pairs: int
    ours_s: float
    torch_s: float
    ratio: float
    gb_per_s: float
    tflops: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to narrow the table to."""
    parser.add_argument("--op", action="append", choices=tuple(SUBJECTS), help="only this op; may be repeated")
    shapes = "; ".join(f"{name} {subject.axes}" for name, subject in SUBJECTS.items())
    parser.add_argument("--shapes", help=f"such as 4096x4096,1024x4096, for ops of as many numbers: {shapes}")
    parser.add_argument("--m", help="numbers of rows (tokens; for decode, requests), e.g. 1,16,256")
    parser.add_argument("--dtype", action="append", choices=tuple(DTYPES), help="may be repeated (default: both)")
    parser.add_argument("--memory", choices=("cold", "warm"), help="operands from memory or caches (default: by op)")
    parser.add_argument("--pairs", type=int, default=5, help="samples of each side per case (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="threads of both sides (default: the CPUs this process may use)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to a file too")


def run(args: argparse.Namespace) -> dict[str, object]:
    """Print the table, each line as soon as it is known, and return its figures.

    Raises:
        ConfigError: flags that leave nothing to compare, or no native kernels.
    """
    selection = Selection(
        tuple(args.op or ()),
        tuple(parse_numbers("--shapes", shape, "x") for shape in args.shapes.split(",")) if args.shapes else (),
        parse_numbers("--m", args.m) if args.m else (),
        tuple(args.dtype or DTYPES),
        (args.memory,) if args.memory else (),
    )
    platform = CpuPlatform()
    threads = platform.set_threads(args.threads)
    native.set_num_threads(threads)
    use_providers(platform.providers)
    before = measure_ceilings()
    rows = []
    with progress_bars() as progress:
        for number, case in enumerate(select_cases(selection)):
            progress("cases", number, 0)
            rows.append(_figures(case, compare(case.ours, case.theirs, args.pairs, CASE_BUDGET_S)))
    ceilings = Ceilings(*map(max, before, measure_ceilings()))
    _print_table(rows, ceilings)
    return {
        "device": platform.describe(),
        "tier": getattr(native.load(), "tier", lambda: None)(),
        "threads": threads,
        "ceilings": ceilings._asdict(),
        "cases": [row._asdict() for row in rows],
    }


def _figures(case: Case, pairs: Pairs) -> "Figures":
    return Figures(
        case.op,
        case.dtype,
        "x".join(map(str, case.shape)),
        case.m,
        case.memory,
        pairs.pairs,
        pairs.ours_s,
        pairs.theirs_s,
        round(pairs.ratio, 3),
        round(case.num_bytes / pairs.ours_s / 1e9, 2),
        round(case.flops / pairs.ours_s / 1e12, 4),
    )


def _print_table(rows: list[Figures], ceilings: Ceilings) -> None:
    from rich.console import Console  # noqa: PLC0415  as in `progress_bars`
    from rich.table import Table  # noqa: PLC0415

    read, flops = ceilings.read_bytes_per_s / 1e9, ceilings.flops_per_s / 1e12
    table = Table(title="native ops against torch (ratio: torch's time / ours)")
    for column in ("op", "dtype", "shape", "memory"):
        table.add_column(column)
    for column in ("M", "us", "torch us", "ratio", "GB/s", "of read", "TFLOP/s", "of FMA"):
        table.add_column(column, justify="right")
    for row in rows:
        computes = row.tflops > 0
        table.add_row(
            *(row.op, row.dtype, row.shape, row.memory, str(row.m)),
            *(f"{row.ours_s * 1e6:.1f}", f"{row.torch_s * 1e6:.1f}", f"{row.ratio:.2f}"),
            *(f"{row.gb_per_s:.1f}", f"{row.gb_per_s / read:.0%}" if row.memory == "cold" else ""),
            *((f"{row.tflops:.3f}", f"{row.tflops / flops:.0%}") if computes else ("", "")),
        )
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    console.print(table)
    console.print(f"ceilings in this run: {read:.1f} GB/s read, {flops:.3f} TFLOP/s of float32 multiply-adds")


def parse_numbers(flag: str, text: str, separator: str = ",") -> tuple[int, ...]:
    """Whole numbers above 0. Raises ConfigError that names the flag."""
    words = text.split(separator)
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ConfigError(f"{flag} has {text!r} where numbers above 0 are wanted, separated by {separator!r}")
    return tuple(map(int, words))
