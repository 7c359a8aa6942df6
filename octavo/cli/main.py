"""The `octavo` command: finds the subcommand, parses its flags, runs it, turns our errors into a line and an exit code.

Importing this module must stay cheap: `octavo --help` answers before torch could be imported.
"""

import argparse
import sys
from typing import NoReturn

from octavo.cli.command import Command
from octavo.cli.options import normalize_flags
from octavo.errors import ClientError, EngineError, OctavoError
from octavo.registry import Registry
from octavo.version import VERSION

COMMANDS: Registry[Command] = Registry(
    "command",
    {
        "serve": "octavo.cli.serve:COMMAND",
        "chat": "octavo.cli.chat:COMMAND",
        "complete": "octavo.cli.complete:COMMAND",
        "run-batch": "octavo.cli.run_batch:COMMAND",
        "pull": "octavo.cli.pull:COMMAND",
        "models": "octavo.cli.models:COMMAND",
        "convert": "octavo.cli.convert:COMMAND",
        "bench": "octavo.cli.bench:COMMAND",
        "env": "octavo.cli.env:COMMAND",
        "collect-env": "octavo.cli.env:COMMAND",
        "key": "octavo.cli.key:COMMAND",
    },
)

SUMMARIES = {
    "serve": "serve a model over the OpenAI API",
    "chat": "chat with a model in the terminal",
    "complete": "complete a text",
    "run-batch": "answer a file of requests without a server",
    "pull": "fetch a catalogue model",
    "models": "list catalogue models and what this version supports",
    "convert": "write a model as a Transformers folder",
    "bench": "measure throughput, latency, a running server, kernels, other engines",
    "env": "describe this machine and installation, for bug reports",
    "collect-env": "the same as env",
    "key": "make API keys for octavo serve --api-key-file",
}

EXIT_FAILED = 1
EXIT_BAD_USAGE = 2


def main(argv: list[str] | None = None) -> NoReturn:
    """Entry point of the console script."""
    sys.exit(run(sys.argv[1:] if argv is None else argv))


def run(argv: list[str]) -> int:
    """Run one command line and return its exit code: 0 done, 1 failed, 2 wrong options or model, 130 interrupted."""
    argv = normalize_flags(argv)
    chosen = argv[0] if argv else None
    try:
        return _run(argv, chosen)
    except OctavoError as err:
        param = f" ({err.param})" if isinstance(err, ClientError) and err.param else ""
        print(f"octavo {chosen}: {err}{param}", file=sys.stderr)
        return EXIT_FAILED if isinstance(err, EngineError) else EXIT_BAD_USAGE
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return EXIT_FAILED


def _run(argv: list[str], chosen: str | None) -> int:
    parser = make_parser(chosen)
    args, foreign = parser.parse_known_args(argv)
    args.foreign = foreign
    if args.version:
        print(VERSION)
        return 0
    if args.command is None:
        parser.print_help()
        return EXIT_BAD_USAGE
    command = COMMANDS.load(args.command)
    if args.foreign and not command.takes_engine_options:
        parser.error(f"{args.command} does not take {' '.join(args.foreign)}; see octavo {args.command} --help")
    return command.run(args)


def sentence(summary: str) -> str:
    """A summary as a sentence: capitalized at its beginning only, and with a full stop."""
    return summary[:1].upper() + summary[1:] + "."


def make_parser(chosen: str | None) -> argparse.ArgumentParser:
    """The parser; only the `chosen` subcommand is imported and gets its flags."""
    parser = argparse.ArgumentParser(
        prog="octavo", description="Serve large language models: paged KV cache, continuous batching, OpenAI API."
    )
    parser.add_argument("-v", "--version", action="store_true", help="print the version and exit")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name in COMMANDS:
        summary = SUMMARIES.get(name, "")
        sub = subparsers.add_parser(
            name,
            help=summary,
            description=sentence(summary),
            allow_abbrev=False,
            conflict_handler="resolve",  # a command's own flag wins over an engine option's short form
        )
        if name == chosen:
            COMMANDS.load(name).add_arguments(sub)
    return parser
