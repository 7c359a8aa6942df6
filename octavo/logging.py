"""One log handler for the whole package: short lines on stderr. Other libraries' logging is left alone, and an
application that has set up logging of its own gets our records instead of our lines.
"""

import logging
import sys
from typing import TextIO

from octavo import envs

ROOT = "octavo"
FORMAT = "%(levelname).1s %(asctime)s %(short)s] %(message)s"
TIME_FORMAT = "%m-%d %H:%M:%S"


class _ShortFormatter(logging.Formatter):
    """Names a logger without the package: `octavo.engine.core` -> `engine.core`."""

    def format(self, record: logging.LogRecord) -> str:
        record.short = record.name.removeprefix(f"{ROOT}.")
        return super().format(record)


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to whatever `sys.stderr` is now, so that redirection and test capture work; silent when the application
    has handlers on the root logger, to which our records travel anyway.
    """

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(_ShortFormatter(FORMAT, TIME_FORMAT))

    def filter(self, record: logging.LogRecord) -> bool:
        return not logging.root.handlers

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def get_logger(name: str) -> logging.Logger:
    """The logger of a module (pass `__name__`). The first call sets the package's handler and level up."""
    root = logging.getLogger(ROOT)
    if not any(isinstance(handler, _StderrHandler) for handler in root.handlers):
        root.addHandler(_StderrHandler())
        root.setLevel(envs.LOG_LEVEL.get())
    return logging.getLogger(name)


def set_level(level: str) -> None:
    """Change the level of everything Octavo logs."""
    get_logger(ROOT).setLevel(level.upper())
