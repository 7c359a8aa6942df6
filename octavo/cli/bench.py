"""`octavo bench`: throughput, latency, serve and scheduler print one JSON object, kernels and peers a table."""

import argparse
import json
from contextlib import closing
from pathlib import Path

import uvloop

from octavo.bench.offline import OfflineBench
from octavo.bench.online import run_online
from octavo.bench.scheduler import run_scheduler_bench
from octavo.bench.workload import WorkItem, random_workload, read_workload
from octavo.cli import bench_kernels, bench_peers
from octavo.cli.command import Command
from octavo.cli.options import ENGINE_SECTIONS, add_option_flags, chosen_options
from octavo.cli.progress import progress_bars
from octavo.cli.remote import fetch_model_card
from octavo.engine.resolve import make_config
from octavo.errors import ConfigError

WORKLOAD_HELP = 'lines of {"prompt": [token ids], "out": tokens}, with "at": seconds for one that arrives later'

SAFE_VOCAB_SIZE = 1000
"""Ids below this exist in any served vocabulary; used when only a URL is known."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of each benchmark."""
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    throughput = kinds.add_parser("throughput", help="run a workload on an engine in this process")
    _add_workload_flags(throughput)
    throughput.add_argument("--sequential", action="store_true", help="as --users 1: one request after the other")
    throughput.add_argument("--users", type=int, help="most requests open at once (default: no limit)")
    throughput.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default: 0)")
    throughput.add_argument("--top-p", type=float, default=1.0, help="(default: 1)")
    add_option_flags(throughput, ENGINE_SECTIONS)

    latency = kinds.add_parser("latency", help="time one fixed batch, several times")
    latency.add_argument("--batch-size", type=int, default=1, help="requests per batch (default: 1)")
    latency.add_argument("--input-len", type=int, default=32, help="prompt tokens (default: 32)")
    latency.add_argument("--output-len", type=int, default=128, help="generated tokens (default: 128)")
    latency.add_argument("--num-iters", type=int, default=3, help="timed repetitions (default: 3)")
    latency.add_argument("--json", metavar="FILE", help="write the figures to a file too")
    add_option_flags(latency, ENGINE_SECTIONS)

    serve = kinds.add_parser("serve", help="send a workload to a running server")
    _add_workload_flags(serve)
    serve.add_argument("--url", default="http://127.0.0.1:8000/v1", help="base of the API (default: %(default)s)")
    serve.add_argument("--base-url", help="the same without /v1, as vLLM's benchmark has it")
    serve.add_argument("--host", help="the server's address, in place of a URL (with --port: 127.0.0.1)")
    serve.add_argument("--port", type=int, help="its port, in place of a URL (with --host: 8000)")
    serve.add_argument("--model", help="model to ask for (default: the first one the server lists)")
    serve.add_argument("--api-key", help="key to present")
    serve.add_argument("--max-concurrency", type=int, help="most requests open at once (default: no limit)")
    serve.add_argument("--request-rate", type=float, help="requests per second; inf: as they arrive (the default)")
    serve.add_argument("--save-result", action="store_true", help="write the figures to --result-filename")
    serve.add_argument("--result-dir", metavar="FOLDER", default=".", help="(default: here)")
    serve.add_argument("--result-filename", metavar="FILE", default="octavo-bench.json", help="(default: %(default)s)")
    serve.add_argument("--backend", choices=("vllm", "openai"), help="both are the API that is measured")
    serve.add_argument("--dataset-name", choices=("random",), help="requests that are made are random")
    serve.add_argument("--ignore-eos", action="store_true", help="always so: every request has its full length")

    kernels = kinds.add_parser("kernels", help="time every native op against torch, beside what the machine can do")
    bench_kernels.add_arguments(kernels)

    peers = kinds.add_parser("peers", help="run other engines on a workload, in turn with this one")
    bench_peers.add_arguments(peers)

    scheduler = kinds.add_parser("scheduler", help="time the step loop without a model")
    scheduler.add_argument("--num-seqs", type=int, default=256, help="running sequences (default: 256)")
    scheduler.add_argument("--steps", type=int, default=300, help="timed steps per load (default: 300)")
    scheduler.add_argument("--json", metavar="FILE", help="write the figures to a file too")


def run(args: argparse.Namespace) -> int:
    """Run the chosen benchmark."""
    if args.foreign and args.kind not in WITH_ENGINE:
        words = " ".join(args.foreign)
        raise ConfigError(f"bench {args.kind} does not take {words}; see octavo bench {args.kind} --help")
    figures = RUNS[args.kind](args)
    text = json.dumps(figures)
    if args.kind not in WITH_TABLE:
        print(text)
    if args.json:
        Path(args.json).write_text(text + "\n")
    return 1 if figures.get("errors") else 0


def _add_workload_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workload", metavar="FILE", help=WORKLOAD_HELP)
    count = "use only the first N lines; without a file, make N (default: 32)"
    parser.add_argument("--requests", "--num-prompts", type=int, help=count)
    lengths = (("input", "prompt tokens of made requests"), ("output", "generated tokens of made requests"))
    for kind, what in lengths:
        names = (f"--{kind}-len", f"--random-{kind}-len")
        parser.add_argument(*names, dest=f"{kind}_len", type=int, default=128, help=f"{what} (default: 128)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to a file too")


def _throughput(args: argparse.Namespace) -> dict[str, object]:
    config = make_config(**chosen_options(args, ENGINE_SECTIONS, args.foreign))
    workload = _read_or_make(args, config.spec.vocab_size)
    with progress_bars() as progress, closing(OfflineBench(config, progress)) as bench:
        figures = bench.run(
            workload,
            users=1 if args.sequential else args.users,
            temperature=args.temperature,
            top_p=args.top_p,
            on_progress=progress,
        )
    return {"model": config.served_model_name, "dtype": config.dtype, **figures}


def _latency(args: argparse.Namespace) -> dict[str, object]:
    config = make_config(**chosen_options(args, ENGINE_SECTIONS, args.foreign))
    batches = [
        random_workload(args.batch_size, args.input_len, args.output_len, config.spec.vocab_size, seed)
        for seed in range(args.num_iters + 1)
    ]
    with progress_bars() as progress, closing(OfflineBench(config, progress)) as bench:
        runs = [bench.run(batch, on_progress=progress) for batch in batches][1:]  # the first one warms up
    median = sorted(runs, key=lambda figures: figures["elapsed_s"])[len(runs) // 2]  # type: ignore[arg-type,return-value]
    latencies = [figures["elapsed_s"] for figures in runs]
    return {"model": config.served_model_name, "dtype": config.dtype, "latencies_s": latencies, "median": median}


def _serve(args: argparse.Namespace) -> dict[str, object]:
    url = args.url
    if args.base_url or args.host or args.port:
        url = (args.base_url or f"http://{args.host or '127.0.0.1'}:{args.port or 8000}").rstrip("/") + "/v1"
    if args.save_result and not args.json:
        args.json = str(Path(args.result_dir, args.result_filename))
    card = fetch_model_card(url, args.api_key, args.model)
    workload = _read_or_make(args, SAFE_VOCAB_SIZE)
    with progress_bars() as progress:
        figures = uvloop.run(  # a third less of the CPU time that the server could use
            run_online(
                url,
                card["id"],
                workload,
                api_key=args.api_key,
                max_concurrency=args.max_concurrency,
                request_rate=args.request_rate,
                on_progress=progress,
            )
        )
    return {"model": card["id"], "url": url, **figures}


def _scheduler(args: argparse.Namespace) -> dict[str, object]:
    return run_scheduler_bench(args.num_seqs, args.steps)


def _read_or_make(args: argparse.Namespace, vocab_size: int) -> list[WorkItem]:
    if args.workload:
        return read_workload(args.workload)[: args.requests]
    return random_workload(args.requests or 32, args.input_len, args.output_len, vocab_size, seed=0)


RUNS = {
    "throughput": _throughput,
    "latency": _latency,
    "serve": _serve,
    "kernels": bench_kernels.run,
    "peers": bench_peers.run,
    "scheduler": _scheduler,
}
WITH_ENGINE = ("throughput", "latency", "peers")
WITH_TABLE = ("kernels", "peers")

COMMAND = Command(add_arguments, run, takes_engine_options=True)
