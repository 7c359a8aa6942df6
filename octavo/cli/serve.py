"""`octavo serve`: the OpenAI API over one model."""

import argparse
import os
import signal
import sys
from contextlib import closing
from typing import TYPE_CHECKING

from octavo import envs
from octavo.cli.command import Command
from octavo.cli.options import SERVE_SECTIONS, add_option_flags, chosen_options, option_fields
from octavo.cli.progress import progress_bars
from octavo.cli.vllm_env import flags_of, warn_of_missed
from octavo.config import EngineConfig, ServerConfig
from octavo.engine.child import EngineChild
from octavo.engine.options import make_section, make_sections
from octavo.logging import configure, get_logger
from octavo.registry import load_object

if TYPE_CHECKING:
    from octavo.server.run import Banner

logger = get_logger(__name__)

MAKE_CONFIG, SERVE = "octavo.engine.resolve:make_config", "octavo.server.run:serve"
"""A second of imports, for the time that the engine's process takes for its own."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model as a positional argument too, and every option."""
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="the same as --model")
    add_option_flags(parser, SERVE_SECTIONS)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; the options are checked before the port is opened, the model after."""
    if args.model_tag is not None:
        args.model = args.model_tag
    options = {**flags_of(os.environ), **chosen_options(args, SERVE_SECTIONS, args.foreign)}
    warn_of_missed(os.environ)
    os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)  # one process serves; counts in files would outlive it
    server_names = {f.name for f in option_fields(ServerConfig)}
    server = make_section(ServerConfig, {name: options.pop(name) for name in server_names & options.keys()})
    make_sections(options, warn=False)  # a wrong flag is told before anything starts
    configure(server.log_level, server.log_format)
    signal.signal(signal.SIGTERM, _leave)  # until the server takes signals over
    with closing(EngineChild()) as child, progress_bars() as progress:

        def resolve() -> EngineConfig:
            config: EngineConfig = load_object(MAKE_CONFIG)(progress, **options)
            return config

        code: int = load_object(SERVE)(server, resolve, progress=progress, on_ready=_announce, child=child)
        return code


def _leave(number: int, _: object) -> None:
    sys.exit(128 + number)


def _announce(banner: "Banner") -> None:
    """For people, or as one line of a log that programs read."""
    if envs.LOG_FORMAT.get() == "json":
        logger.info("Octavo serves %s at %s", banner.model, banner.url, extra={"fields": banner._asdict()})
    else:
        _print_banner(banner)


def _print_banner(banner: "Banner") -> None:
    lines = (
        f"Octavo serves {banner.model} at {banner.url}",
        f"  device     {banner.device}, {banner.dtype}, loaded in {banner.load_s:.1f} s",
        f"  context    {banner.max_model_len:,} tokens",
        f"  KV pool    {banner.kv_pages:,} pages, {banner.kv_tokens:,} tokens, "
        f"{banner.full_length_requests:.1f} requests of full length",
        f"  sampling   {_sampling(banner)}",
        f"  try        curl {banner.url}/v1/models",
    )
    print("\n".join(lines), file=sys.stderr, flush=True)


def _sampling(banner: "Banner") -> str:
    if not banner.sampling:
        return "no defaults of the model's own"
    given = ", ".join(f"{name} {value:g}" for name, value in banner.sampling.items())
    return f"{given} unless a request says otherwise (--generation-config octavo ignores these)"


COMMAND = Command(add_arguments, run, takes_engine_options=True)
