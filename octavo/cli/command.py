"""The shape of a subcommand."""

import argparse
from collections.abc import Callable
from typing import NamedTuple


class Command(NamedTuple):
    """One subcommand: what `octavo.cli.main` needs to run it.

    Attributes:
        add_arguments: declares its flags.
        run: does it and returns the exit code: 0 done, 1 failed.
        takes_engine_options: words that no flag took arrive as `args.foreign`, for the engine to explain; otherwise
            they are an error.
    """

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    takes_engine_options: bool = False
