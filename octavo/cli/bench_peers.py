"""`octavo bench peers`: Octavo beside other engines on one workload."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from octavo.bench import peers as runners
from octavo.bench.peers.bf16_gguf import write_bf16_gguf
from octavo.bench.peers.compare import OURS, Comparison, Line, compare
from octavo.bench.peers.plots import write_plots
from octavo.bench.peers.process import Peer
from octavo.bench.workload import WorkItem, read_workload
from octavo.cli.bench_kernels import parse_numbers
from octavo.cli.options import ENGINE_SECTIONS, add_option_flags, chosen_options
from octavo.cli.progress import progress_bars
from octavo.config import EngineConfig
from octavo.engine.resolve import make_config
from octavo.errors import ConfigError
from octavo.loader.convert import convert

SCRIPTS = {
    "transformers": "transformers_runner.py",
    "vllm": "vllm_runner.py",
    "llama.cpp": "llama_cpp_runner.py",
}
"""Peers by name, and the scripts beside `octavo.bench.peers` that drive them."""

GGUF_PEERS = ("llama.cpp",)
FOLDER = Path(runners.__path__[0])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Whom to compare with, on what, and how often."""
    parser.add_argument("--workload", metavar="FILE", required=True, help="as for throughput")
    parser.add_argument("--requests", type=int, metavar="N", help="use only the first N lines")
    parser.add_argument(
        *("--peer", "--peers"),
        action="append",
        metavar="NAME[=PYTHON]",
        help=f"{', '.join(SCRIPTS)}, with the interpreter that has it (default: this one); may be repeated"
        " (default: transformers)",
    )
    parser.add_argument("--peer-env", action="append", metavar="NAME:VAR=VALUE", help="environment of one peer")
    parser.add_argument(
        "--peer-option",
        action="append",
        metavar="NAME:KEY=VALUE",
        help="argument of vllm.LLM, of Transformers' from_pretrained or field of llama.cpp's context parameters",
    )
    parser.add_argument("--gguf", metavar="FILE", help="model for llama.cpp (default: made from --model's GGUF)")
    parser.add_argument("--pairs", type=int, default=3, help="rounds in which each engine runs once (default: 3)")
    parser.add_argument("--users", metavar="N,...", help="requests open at once, a pass for each (default: all)")
    parser.add_argument("--requests-per-user", type=int, metavar="N", help="a pass is N x users lines (default: all)")
    parser.add_argument("--run-timeout", type=float, default=1800, metavar="S", help="(default: %(default)s seconds)")
    parser.add_argument("--plots", metavar="DIR", help="write throughput, latency and resources .png (matplotlib)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to a file too")
    add_option_flags(parser, ENGINE_SECTIONS)


def run(args: argparse.Namespace) -> dict[str, object]:
    """Compare, print the table, write the plots, and return all figures; "errors" counts peers that failed.

    Raises:
        ConfigError: flags that do not fit.
    """
    config = make_config(**chosen_options(args, ENGINE_SECTIONS, args.foreign))
    wanted = dict(parse_peer(text) for text in args.peer or ["transformers"])
    env = parse_settings("--peer-env", args.peer_env or [], wanted)
    peer_options = parse_settings("--peer-option", args.peer_option or [], wanted)
    workload = read_workload(args.workload)[: args.requests]
    with _models(config, args.gguf, "llama.cpp" in wanted) as (folder, gguf), progress_bars() as progress:
        ours = Peer(OURS, sys.executable, FOLDER / "octavo_runner.py", folder)
        theirs = [
            Peer(
                name,
                python,
                FOLDER / SCRIPTS[name],
                gguf if name in GGUF_PEERS else folder,
                env.get(name, {}),
                peer_options.get(name, {}),
            )
            for name, python in wanted.items()
        ]
        options = chosen_options(args, ENGINE_SECTIONS)
        job = make_job(config, options | {"model": folder}, workload, args)
        comparison = compare([ours, *theirs], job, args.pairs, args.run_timeout, progress)
    lines = comparison.lines()
    _print_table(lines, comparison)
    if args.plots:
        print(*write_plots(comparison, Path(args.plots)), sep="\n")
    return {
        "model": config.served_model_name,
        "dtype": config.dtype,
        "workload": args.workload,
        "requests": len(workload),
        "lines": [line._asdict() for line in lines],
        "runs": {name: [found._asdict() for found in runs] for name, runs in comparison.runs.items()},
        "failed": comparison.failed,
        "errors": len(comparison.failed),
    }


def parse_peer(text: str) -> tuple[str, str]:
    """`NAME` or `NAME=PYTHON` as (name, interpreter)."""
    name, _, python = text.partition("=")
    if name not in SCRIPTS:
        raise ConfigError(f"--peer {name!r} is unknown; known: {', '.join(SCRIPTS)}")
    return name, python or sys.executable


def parse_settings(flag: str, texts: list[str], peers: dict[str, str]) -> dict[str, dict[str, str]]:
    """`NAME:KEY=VALUE` words as settings by peer."""
    found: dict[str, dict[str, str]] = {}
    for text in texts:
        name, _, setting = text.partition(":")
        key, equals, value = setting.partition("=")
        if name not in peers or not equals:
            raise ConfigError(f"{flag} {text!r} must be NAME:KEY=VALUE with one of the peers {', '.join(peers)}")
        found.setdefault(name, {})[key] = value
    return found


def make_job(
    config: EngineConfig, options: dict[str, object], workload: list[WorkItem], args: argparse.Namespace
) -> dict[str, object]:
    """What every runner is told; see `octavo.bench.peers.runner.serve_job`."""
    longest = max(len(item.prompt_token_ids) + item.output_tokens for item in workload)
    users = parse_numbers("--users", args.users) if args.users else None
    return {
        "dtype": config.dtype,
        "max_model_len": longest,
        "max_seqs": min(config.scheduler.max_num_seqs, max(users) if users else len(workload)),
        "threads": config.device.threads,
        "prefix_caching": config.cache.enable_prefix_caching,
        "options": options,
        "requests": [{"prompt": i.prompt_token_ids, "out": i.output_tokens, "at": i.at_s} for i in workload],
        "users": list(users) if users else [None],
        "requests_per_user": args.requests_per_user,
    }


@contextmanager
def _models(config: EngineConfig, gguf: str | None, wants_gguf: bool) -> Iterator[tuple[str, str]]:
    """The same weights as a Transformers folder and, if wanted, as a GGUF in BF16; what has to be made is temporary."""
    path = Path(config.spec.path)
    with TemporaryDirectory(prefix="octavo-bench-") as made:
        folder = path
        if path.is_file():
            folder = convert(str(path), Path(made, "model"), dtype=config.dtype)
        if wants_gguf and gguf is None:
            if not path.is_file():
                raise ConfigError("llama.cpp needs a GGUF of the same model: give --gguf FILE")
            gguf = str(Path(made, "model.gguf"))
            write_bf16_gguf(path, Path(gguf))
        yield str(folder), gguf or ""


def _print_table(lines: list[Line], comparison: Comparison) -> None:
    from rich.console import Console  # noqa: PLC0415  as in `progress_bars`
    from rich.table import Table  # noqa: PLC0415

    table = Table(title="Octavo beside its peers: medians (ratio: above 1 Octavo is better)")
    for column in ("peer", "users", "figure"):
        table.add_column(column)
    for column in ("octavo", "peer's", "ratio"):
        table.add_column(column, justify="right")
    for line in lines:
        ratio = "" if line.ratio is None else f"{line.ratio:.2f}"
        users = "" if line.users is None else str(line.users)
        table.add_row(line.peer, users, line.metric, f"{line.ours:.4g}", f"{line.theirs:.4g}", ratio)
    console = Console()
    console.print(table)
    for name, reason in comparison.failed.items():
        console.print(f"{name} failed: {reason}", markup=False)
