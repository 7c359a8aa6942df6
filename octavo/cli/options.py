"""Command-line flags generated from the option fields of `octavo.config`, and `--config file.yaml`.

A flag that was not given leaves no value behind, so that "not given" and "given as the default" stay different.
"""

import argparse
import ast
import inspect
import json
import re
import textwrap
from collections.abc import Mapping
from dataclasses import Field, fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from octavo import config
from octavo.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, ServerConfig
from octavo.errors import ConfigError
from octavo.registry import load_object

ENGINE_SECTIONS: tuple[type, ...] = (ModelConfig, CacheConfig, SchedulerConfig, DeviceConfig)
SERVE_SECTIONS: tuple[type, ...] = (*ENGINE_SECTIONS, ServerConfig)

TITLES: dict[type, str] = {
    ModelConfig: "model",
    CacheConfig: "KV cache",
    SchedulerConfig: "scheduler",
    DeviceConfig: "device",
    ServerConfig: "server",
}


CHECKS = "octavo.engine.options:make_section", "octavo.engine.options:make_sections"
"""Imports that `octavo --help` does without."""


def normalize_flags(argv: list[str]) -> list[str]:
    """Accept `--max_model_len` for `--max-model-len`, and `true` and `false` as values of switches; other values stay
    as they are.
    """
    words: list[str] = []
    for word in argv:
        if words and words[-1] in _switches() and word.lower() in _TRUTH:
            words[-1] = _switched(words[-1], _TRUTH[word.lower()])
            continue
        dashed = _dashed(word) if word.startswith("--") else word
        flag, equals, value = dashed.partition("=")
        is_switched = bool(equals) and flag in _switches() and value.lower() in _TRUTH
        words.append(_switched(flag, _TRUTH[value.lower()]) if is_switched else dashed)
    return words


def add_option_flags(parser: argparse.ArgumentParser, sections: tuple[type, ...]) -> None:
    """Add a flag for every option of `sections`, grouped, and `--config`."""
    parser.add_argument("--config", metavar="FILE", help="YAML file of options by flag name; flags given here win")
    for section in sections:
        group = parser.add_argument_group(TITLES[section])
        for f in option_fields(section):
            group.add_argument(*flag_names(f), **_argument(f, option_help(section)[f.name]))


def chosen_options(
    args: argparse.Namespace, sections: tuple[type, ...], foreign: list[str] | None = None
) -> dict[str, object]:
    """The options given by flag or in the `--config` file, by field name.

    Args:
        foreign: words that no flag took; returned under their flag's name, for the engine to refuse with the reason.

    Raises:
        ConfigError: the file cannot be read or is not a mapping.
    """
    names = {f.name for section in sections for f in option_fields(section)}
    options = _read_config_file(args.config, sections) if args.config else {}
    options.update(_foreign_options(foreign or []))
    options.update({name: value for name, value in vars(args).items() if name in names})
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}


def option_fields(section: type) -> list["Field[Any]"]:
    """The fields of a section that are options."""
    return [f for f in fields(section) if f.metadata]


def flag_names(f: "Field[Any]") -> list[str]:
    """All flags of an option, the main one first."""
    return ["--" + f.name.replace("_", "-"), *f.metadata["aliases"]]


@cache
def option_help(section: type) -> dict[str, str]:
    """The docstring under each field of a section, on one line."""
    tree = ast.parse(inspect.getsource(config))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == section.__name__)
    texts: dict[str, str] = {}
    for field_node, doc_node in pairwise(body):
        is_doc = isinstance(doc_node, ast.Expr) and isinstance(doc_node.value, ast.Constant)
        if isinstance(field_node, ast.AnnAssign) and isinstance(field_node.target, ast.Name) and is_doc:
            text = str(doc_node.value.value)  # type: ignore[attr-defined]
            texts[field_node.target.id] = " ".join(textwrap.dedent(text).split())
    return texts


def _argument(f: "Field[Any]", help_text: str) -> dict[str, Any]:
    kinds = {f.type, *get_args(f.type)}
    argument: dict[str, Any] = {
        "dest": f.name,
        "default": argparse.SUPPRESS,
        "help": (help_text + _default_note(f)).replace("%", "%%"),
    }
    if f.type is bool:
        return argument | {"action": argparse.BooleanOptionalAction}
    if f.metadata["repeated"]:
        return argument | {"nargs": "+", "metavar": f.metadata["metavar"] or "NAME"}
    if f.metadata["choices"]:
        return argument | {"choices": f.metadata["choices"]}
    number = float if float in kinds else int
    if str in kinds:
        argument["type"] = _int_or_text if int in kinds else str
    else:
        argument["type"] = number
    return argument | {"metavar": f.metadata["metavar"] or ("TEXT" if str in kinds else "N")}


def _default_note(f: "Field[Any]") -> str:
    return "" if f.default is None or f.default == () else f" (default: {f.default})"


_LEVEL = re.compile(r"O\d")
_TRUTH = {"true": True, "false": False}


@cache
def _switches() -> frozenset[str]:
    """Flags that take no value."""
    return frozenset(
        flag
        for section in SERVE_SECTIONS
        for f in option_fields(section)
        if f.type is bool
        for flag in flag_names(f)
        if flag.startswith("--")
    )


def _switched(flag: str, on: bool) -> str:
    return flag if on else f"--no-{flag.removeprefix('--')}"


def _int_or_text(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


def _name(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


def _dashed(word: str) -> str:
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value


def _read_config_file(path: str, sections: tuple[type, ...]) -> dict[str, object]:
    """Options by name; what is wrong with one of them is told with the file's name."""
    import yaml  # noqa: PLC0415  only needed with --config

    try:
        loaded = yaml.safe_load(Path(path).expanduser().read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as err:
        raise ConfigError(f"--config {path} cannot be read: {err}") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict) or not all(isinstance(key, str) for key in loaded):
        raise ConfigError(f"--config {path} must hold a mapping of option names to values")
    names = {_name(flag): f.name for section in sections for f in option_fields(section) for flag in flag_names(f)}
    pairs = (_named(_name(key), value) for key, value in loaded.items())
    options = {names.get(name, name): value for name, value in pairs}
    if "model_tag" in options:
        options["model"] = options.pop("model_tag")
    try:
        check_options(options, sections)
    except ConfigError as err:
        raise ConfigError(f"--config {path}: {err}") from None
    return options


def check_options(options: Mapping[str, object], sections: tuple[type, ...]) -> None:
    """Check names, types and bounds, without a word about names that have no effect.

    Raises:
        ConfigError: of the first that is wrong.
    """
    make_section, make_sections = (load_object(name) for name in CHECKS)
    engine = dict(options)
    if ServerConfig in sections:
        names = [f.name for f in option_fields(ServerConfig)]
        make_section(ServerConfig, {name: engine.pop(name) for name in names if name in engine})
    make_sections(engine, warn=False)


def _named(name: str, value: object) -> tuple[str, object]:
    """`no-enable-prefix-caching: true` is the option enable_prefix_caching, off. A mapping is JSON."""
    if name.startswith("no_") and isinstance(value, bool):
        return name.removeprefix("no_"), not value
    return name, json.dumps(value) if isinstance(value, dict) else value


def _foreign_options(words: list[str]) -> dict[str, object]:
    """`--flag value`, `--flag=value` and `--flag` by name; the engine says what each means or why it cannot."""
    options: dict[str, object] = {}
    name: str | None = None
    for word in words:
        if word.startswith("-") and len(word) > 1 and not word[1].isdigit():
            flag, equals, value = word.lstrip("-").partition("=")
            name = flag.replace("-", "_")
            if _LEVEL.fullmatch(name):  # -O3
                options["optimization_level"], name = name[1:], None
            elif name.startswith("no_") and not equals:
                options[name.removeprefix("no_")], name = False, None
            else:
                options[name] = value if equals else True
        elif name is not None and options[name] is True:
            options[name] = word
        else:
            raise ConfigError(f"unexpected argument {word!r}")
    return options
