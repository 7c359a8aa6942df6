"""`octavo pull NAME`: fetch a catalogue or hub model so that it can be used offline."""

import argparse

from octavo.cli.command import Command
from octavo.cli.progress import progress_bars
from octavo.config import ModelConfig
from octavo.loader.resolve import locate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, and which version of it."""
    parser.add_argument("model", help="a catalogue name (see `octavo models`) or a hub id org/name[:file.gguf]")
    parser.add_argument("--revision", help="branch, tag or commit of a hub model")


def run(args: argparse.Namespace) -> int:
    """Fetch it and print where it is."""
    with progress_bars() as progress:
        path = locate(ModelConfig(model=args.model, revision=args.revision), args.model, progress)
    print(path)
    return 0


COMMAND = Command(add_arguments, run)
