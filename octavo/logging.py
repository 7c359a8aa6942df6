"""One log handler for the whole package: short lines on stderr, or JSON. Other libraries' logging is left alone, and an
application that has set up logging of its own gets our records instead of our lines.
"""

import json
import logging
import logging.config
import os
import sys
import time
from pathlib import Path
from typing import TextIO

from octavo import envs
from octavo.errors import ConfigError

ROOT = "octavo"
FORMAT = "%(levelname).1s %(asctime)s %(short)s] %(message)s"
TIME_FORMAT = "%m-%d %H:%M:%S"


class _ShortFormatter(logging.Formatter):
    """Names a logger without the package: `octavo.engine.core` -> `engine.core`."""

    def format(self, record: logging.LogRecord) -> str:
        record.short = record.name.removeprefix(f"{ROOT}.")
        return super().format(record)


class _JsonFormatter(logging.Formatter):
    """One object a line. What a record carries in `fields` is part of it."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to whatever `sys.stderr` is now, so that redirection and test capture work; silent when the application
    has handlers on the root logger, to which our records travel anyway.
    """

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        is_json = envs.LOG_FORMAT.get() == "json"
        self.setFormatter(_JsonFormatter() if is_json else _ShortFormatter(FORMAT, TIME_FORMAT))

    def filter(self, record: logging.LogRecord) -> bool:
        return not logging.root.handlers

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def get_logger(name: str) -> logging.Logger:
    """The logger of a module (pass `__name__`). The first call sets the package's handler and level up."""
    root = logging.getLogger(ROOT)
    if not getattr(root, "octavo_is_set_up", False):
        _set_up(root)
        root.octavo_is_set_up = True  # type: ignore[attr-defined]
    return logging.getLogger(name)


def set_level(level: str) -> None:
    """Change the level of everything Octavo logs."""
    get_logger(ROOT).setLevel(level.upper())


def configure(level: str | None, log_format: str | None) -> None:
    """Change level and form of everything Octavo logs, here and in processes that are started from now on."""
    if level is not None:
        os.environ[envs.LOG_LEVEL.name] = level.upper()
        set_level(level)
    if log_format is not None:
        os.environ[envs.LOG_FORMAT.name] = log_format
        root = get_logger(ROOT)
        for handler in [handler for handler in root.handlers if isinstance(handler, _StderrHandler)]:
            root.removeHandler(handler)
            root.addHandler(_StderrHandler())


def adopt(name: str, level: str) -> logging.Logger:
    """Have another library's logger write as ours do."""
    logger = logging.getLogger(name)
    logger.setLevel(level.upper())
    logger.handlers = list(get_logger(ROOT).handlers)
    logger.propagate = not logger.handlers
    return logger


def _set_up(root: logging.Logger) -> None:
    path = envs.LOG_CONFIG.get()
    if path is not None:
        _apply_file(path)
        return
    root.addHandler(_StderrHandler())
    root.setLevel(envs.LOG_LEVEL.get())


def _apply_file(path: Path) -> None:
    """Configurations written for vLLM say what to do with its records; ours are treated alike."""
    try:
        config = json.loads(path.read_text())
        loggers = config.get("loggers", {})
        if "vllm" in loggers:
            loggers.setdefault(ROOT, loggers["vllm"])
        logging.config.dictConfig({"disable_existing_loggers": False, **config})
    except (OSError, ValueError, AttributeError, TypeError) as err:
        raise ConfigError(f"{envs.LOG_CONFIG.name}: {path} is no configuration of logging: {err}") from None
