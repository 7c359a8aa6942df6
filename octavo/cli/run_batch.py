"""`octavo run-batch`: answer a JSONL file of requests, and go on with it after a break."""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from octavo.cli.command import Command
from octavo.cli.options import ENGINE_SECTIONS, add_option_flags, chosen_options
from octavo.cli.progress import progress_bars
from octavo.engine.resolve import make_config
from octavo.files.fetch import Fetcher
from octavo.server.offline import check_input, run_batch

MAX_INPUT_BYTES = 1 << 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Both files, and every engine option."""
    parser.add_argument(
        "-i",
        "--input-file",
        required=True,
        metavar="FILE",
        help="requests in OpenAI's batch form, or a public URL of them",
    )
    parser.add_argument(
        "-o", "--output-file", required=True, metavar="FILE", help="answers; lines that have one already are not run"
    )
    add_option_flags(parser, ENGINE_SECTIONS)


def run(args: argparse.Namespace) -> int:
    """Returns 1 if some lines were answered with an error."""
    with _local(args.input_file) as source, progress_bars() as progress:
        lines = check_input(source)  # before a model is loaded
        config = make_config(progress, **chosen_options(args, ENGINE_SECTIONS, args.foreign))
        counts = asyncio.run(run_batch(config, source, lines, Path(args.output_file), progress))
    print(json.dumps(counts._asdict()), file=sys.stderr)
    return 1 if counts.failed else 0


@contextmanager
def _local(source: str) -> Iterator[Path]:
    """The file, fetched if it is a URL."""
    if not source.startswith(("http://", "https://")):
        yield Path(source)
        return
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        fetcher = Fetcher(max_bytes=MAX_INPUT_BYTES, timeout_s=600)
        file.write(asyncio.run(fetcher.fetch(source)).content)
        file.flush()
        yield Path(file.name)


COMMAND = Command(add_arguments, run, takes_engine_options=True)
