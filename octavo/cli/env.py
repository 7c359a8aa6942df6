"""`octavo env`: versions, machine and settings, to paste into a bug report. Prints no secrets."""

import argparse
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from octavo import envs
from octavo.cli.command import Command
from octavo.errors import ConfigError
from octavo.kernels.cpu import native
from octavo.platforms.registry import select_platform

PACKAGES = [
    "octavo",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "gguf",
    "huggingface_hub",
    "numpy",
    "msgspec",
    "pyzmq",
    "fastapi",
    "uvicorn",
    "uvloop",
    "pydantic",
    "jinja2",
    "llguidance",
    "prometheus-client",
    "rich",
    "httpx",
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No flags."""


def run(args: argparse.Namespace) -> int:
    """Print one `name: value` line each."""
    rows = [("python", sys.version.split()[0]), ("system", platform.platform()), ("cpu", _cpu_name())]
    rows.append(("cores usable", str(len(os.sched_getaffinity(0)))))
    rows.append(("device", select_platform("auto").describe()))
    kernels = native.load()
    rows.append(("native kernels", "not installed" if kernels is None else f"tier {kernels.tier()}"))
    rows += [(name, _version(name)) for name in PACKAGES]
    for variable in envs.VARIABLES:
        rows.append((variable.name, _setting(variable)))
    for name, value in rows:
        print(f"{name}: {value}")
    return 0


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _setting(variable: "envs.EnvVar[object]") -> str:
    if not any(os.environ.get(name) for name in (variable.name, *variable.aliases)):
        return "unset"
    if variable is envs.API_KEY:
        return "set"
    try:
        return str(variable.get())
    except ConfigError as err:
        return str(err)


COMMAND = Command(add_arguments, run)
