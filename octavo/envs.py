"""Every environment variable Octavo reads of its own, in one place. An option that has a flag is not repeated here.

`CACHE.get()` reads the environment at the time of the call, so that tests and child processes see what is set then.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from octavo.errors import ConfigError

T = TypeVar("T")

VARIABLES: "list[EnvVar[object]]" = []


class EnvVar(Generic[T]):
    """One variable: its name, the value when unset, how its text is read, what it does, other accepted names."""

    def __init__(
        self, name: str, default: T, parse: Callable[[str], T], doc: str, *, aliases: tuple[str, ...] = ()
    ) -> None:
        self.name = name
        self.default = default
        self.parse = parse
        self.doc = doc
        self.aliases = aliases
        VARIABLES.append(self)  # type: ignore[arg-type]

    def get(self) -> T:
        """The value now; an empty text counts as unset.

        Raises:
            ConfigError: the text cannot be read; names the variable.
        """
        for name in (self.name, *self.aliases):
            text = os.environ.get(name)
            if not text:
                continue
            try:
                return self.parse(text)
            except ValueError as err:
                raise ConfigError(f"environment variable {name} is {text!r}: {err}") from None
        return self.default


def _path(text: str) -> Path:
    return Path(text).expanduser()


def _level(text: str) -> str:
    level = {"WARN": "WARNING", "FATAL": "CRITICAL"}.get(text.upper(), text.upper())
    known = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
    if level not in known:
        raise ValueError(f"must be one of {', '.join(known)}")
    return level


def _log_format(text: str) -> str:
    if text not in ("text", "json"):
        raise ValueError("must be text or json")
    return text


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError("must be a positive number of seconds")
    return value


CACHE = EnvVar(
    "OCTAVO_CACHE",
    Path("~/.cache/octavo").expanduser(),
    _path,
    "Folder for catalogue models and other files that can be made again.",
    aliases=("VLLM_CACHE_ROOT",),
)
API_KEY = EnvVar(
    "OCTAVO_API_KEY",
    "",
    str,
    "Key that clients must present, as with --api-key.",
    aliases=("VLLM_API_KEY",),
)
LOG_LEVEL = EnvVar(
    "OCTAVO_LOG_LEVEL",
    "INFO",
    _level,
    "DEBUG, INFO, WARNING, ERROR or CRITICAL.",
    aliases=("VLLM_LOGGING_LEVEL",),
)
LOG_FORMAT = EnvVar(
    "OCTAVO_LOG_FORMAT",
    "text",
    _log_format,
    "text, or json: one object a line.",
)
LOG_CONFIG: "EnvVar[Path | None]" = EnvVar(
    "OCTAVO_LOG_CONFIG",
    None,
    _path,
    "JSON file with a configuration of Python's logging (logging.config.dictConfig), in place of our own lines.",
    aliases=("VLLM_LOGGING_CONFIG_PATH",),
)
LOG_STATS_INTERVAL = EnvVar(
    "OCTAVO_LOG_STATS_INTERVAL",
    10.0,
    _seconds,
    "Seconds between two statistics lines while the engine is busy.",
    aliases=("VLLM_LOG_STATS_INTERVAL",),
)
READY_TIMEOUT = EnvVar(
    "OCTAVO_READY_TIMEOUT",
    600.0,
    _seconds,
    "Seconds without news from a loading engine process after which its start counts as failed.",
    aliases=("VLLM_ENGINE_READY_TIMEOUT_S",),
)
KEEP_ALIVE = EnvVar(
    "OCTAVO_HTTP_KEEP_ALIVE",
    75.0,
    _seconds,
    "Seconds that a connection stays open without a request. The default outlasts the 60 s of load balancers, so that "
    "they never use one that is being closed.",
    aliases=("VLLM_HTTP_TIMEOUT_KEEP_ALIVE",),
)
CPU_TIER = EnvVar(
    "OCTAVO_CPU_TIER",
    "",
    str,
    "Instruction-set tier of the CPU kernels (portable, avx2, avx512, avx512_bf16, amx). Default: the best there is.",
)
