"""`octavo key new`: an API key, shown once, and its line for --api-key-file."""

import argparse
import os
import re
from typing import TYPE_CHECKING

from octavo.cli.command import Command
from octavo.errors import ConfigError
from octavo.registry import load_object

if TYPE_CHECKING:
    from octavo.server.keys import Key

NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`new NAME`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    new = actions.add_parser("new", help="make a key; it is shown this once", description="Make a key.")
    new.add_argument("name", metavar="NAME", help="who will use it; its requests share their part of the engine")
    new.add_argument(
        "--scope", nargs="+", choices=("infer", "admin"), default=["infer"], help="what it is good for (default: infer)"
    )
    new.add_argument("--file", metavar="FILE", help="append the line to this key file instead of printing it")


def run(args: argparse.Namespace) -> int:
    """Print the key, and its line unless a file takes it."""
    if not NAME.fullmatch(args.name):
        raise ConfigError(f"NAME is {args.name!r} but must be 1 to 64 letters, digits and ._@-")
    key: str = load_object("octavo.server.keys:new_key")()
    known: Key = load_object("octavo.server.keys:hashed")(args.name, key, args.scope)
    if args.file is not None:
        _append(args.file, known.line())
    print(f"key   {key}")
    if args.file is None:
        print(f"line  {known.line()}")
    return 0


def _append(path: str, line: str) -> None:
    """Add a line to a file that others must not read."""
    try:
        descriptor = os.open(os.path.expanduser(path), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "r+") as file:
            text = file.read()
            name = line.split()[0]
            if name in (known.partition(" ")[0] for known in text.splitlines()):  # such a file would stop a server
                raise ConfigError(f"--file {path!r} has a key for {name!r}; choose another NAME, or take its line out")
            file.write(("" if text.endswith("\n") or not text else "\n") + line + "\n")
    except OSError as err:
        raise ConfigError(f"--file {path!r} cannot be written: {err}") from None


COMMAND = Command(add_arguments, run)
