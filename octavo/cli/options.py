"""Command-line flags generated from the option fields of `octavo.config`, and `--config file.yaml`.

A flag that was not given leaves no value behind, so that "not given" and "given as the default" stay different.
"""

import argparse
import ast
import inspect
import textwrap
from dataclasses import Field, fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from octavo import config
from octavo.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, ServerConfig
from octavo.errors import ConfigError

ENGINE_SECTIONS: tuple[type, ...] = (ModelConfig, CacheConfig, SchedulerConfig, DeviceConfig)
SERVE_SECTIONS: tuple[type, ...] = (*ENGINE_SECTIONS, ServerConfig)

TITLES: dict[type, str] = {
    ModelConfig: "model",
    CacheConfig: "KV cache",
    SchedulerConfig: "scheduler",
    DeviceConfig: "device",
    ServerConfig: "server",
}


def normalize_flags(argv: list[str]) -> list[str]:
    """Accept `--max_model_len` for `--max-model-len`; values stay as they are."""
    return [_dashed(word) if word.startswith("--") else word for word in argv]


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
    options = _read_config_file(args.config) if args.config else {}
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


def _int_or_text(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


def _dashed(word: str) -> str:
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value


def _read_config_file(path: str) -> dict[str, object]:
    import yaml  # noqa: PLC0415  only needed with --config

    try:
        loaded = yaml.safe_load(Path(path).read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as err:
        raise ConfigError(f"--config {path} cannot be read: {err}") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict) or not all(isinstance(key, str) for key in loaded):
        raise ConfigError(f"--config {path} must hold a mapping of option names to values")
    return {key.lstrip("-").replace("-", "_"): value for key, value in loaded.items()}


def _foreign_options(words: list[str]) -> dict[str, object]:
    """`--flag value`, `--flag=value` and `--flag` by name; the engine says what each means or why it cannot."""
    options: dict[str, object] = {}
    name: str | None = None
    for word in words:
        if word.startswith("-") and len(word) > 1 and not word[1].isdigit():
            flag, equals, value = word.lstrip("-").partition("=")
            name = flag.replace("-", "_")
            if name.startswith("no_") and not equals:
                options[name.removeprefix("no_")], name = False, None
            else:
                options[name] = value if equals else True
        elif name is not None and options[name] is True:
            options[name] = word
        else:
            raise ConfigError(f"unexpected argument {word!r}")
    return options
