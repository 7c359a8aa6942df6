"""`octavo complete`: print what follows a text."""

import argparse
import sys

from octavo.cli.command import Command
from octavo.cli.talk import add_talk_flags, open_answerer, sampling_of
from octavo.errors import ClientError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The text, and the shared flags."""
    add_talk_flags(parser)
    parser.add_argument("prompt", nargs="?", help="the text to continue (default: standard input)")
    parser.add_argument("-q", "--quick", metavar="TEXT", help="the same as the positional text")


def run(args: argparse.Namespace) -> int:
    """Stream the completion to standard output."""
    prompt = args.quick or args.prompt or sys.stdin.read()
    if not prompt:
        raise ClientError("there is no text to continue; give it as an argument or on standard input", param="prompt")
    with open_answerer(args) as answerer:
        for piece in answerer.complete(prompt, sampling_of(args)):
            print(piece, end="", flush=True)
    print()
    return 0


COMMAND = Command(add_arguments, run, takes_engine_options=True)
