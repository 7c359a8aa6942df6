"""`octavo convert REF DIR`: write a model as a Transformers folder."""

import argparse

from octavo.cli.command import Command
from octavo.cli.progress import progress_bars
from octavo.loader.convert import convert


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to read, where to write."""
    parser.add_argument("model", help="a .gguf file, a folder, a hub id or a catalogue name")
    parser.add_argument("dir", help="folder to write; must not exist, or be empty")
    parser.add_argument(
        "--dtype", default="bfloat16", choices=("float32", "bfloat16", "float16"), help="(default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Convert and say what was written."""
    with progress_bars() as progress:
        convert(args.model, args.dir, dtype=args.dtype, progress=progress)
    print(args.dir)
    return 0


COMMAND = Command(add_arguments, run)
