"""Tokenizer files of a Transformers folder.

tokenizer.json is taken as it is, since it is what the model's authors published: its post-processor decides about BOS,
not `add_bos_token` of tokenizer_config.json (as in Transformers), and its normalizer and pre-tokenizer stay
(Transformers rebuilds those of some classes). A folder without it (tokenizer.model, vocab.json with merges.txt, ...)
is converted by Transformers.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from octavo.errors import ModelError
from octavo.tokenizer.parts import SPECIAL_NAMES, TokenizerParts, mark_special

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def read_folder(folder: Path) -> TokenizerParts:
    """Read the tokenizer of a model folder.

    Raises:
        ModelError: no tokenizer there, or a file that cannot be read; names it.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        return _through_transformers(folder)
    try:
        backend = Backend.from_file(str(file))
    except Exception as err:  # the library raises nothing narrower
        raise ModelError(f"{file}: not a tokenizer that can be read: {err}") from err
    config = _read_json(folder / "tokenizer_config.json")
    named = _read_json(folder / "special_tokens_map.json") | config
    _add_missing(backend, config.get("added_tokens_decoder") or {})
    texts = {name: _text(named[name]) for name in SPECIAL_NAMES if named.get(name)}
    special_tokens = {name: text for name, text in texts.items() if backend.token_to_id(text) is not None}
    mark_special(backend, special_tokens)
    return TokenizerParts(backend, special_tokens, _chat_templates(folder, config))


def _add_missing(backend: Backend, entries: dict[str, dict[str, Any]]) -> None:
    """Add the tokens that only tokenizer_config.json knows, in the order of their ids."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    tokens = [entry for _, entry in sorted(entries.items(), key=lambda item: int(item[0]))]
    backend.add_tokens(
        [
            AddedToken(entry["content"], **{flag: entry[flag] for flag in _FLAGS if flag in entry})
            for entry in tokens
            if entry["content"] not in known
        ]
    )


def _chat_templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Templates by name. A file of its own wins over tokenizer_config.json, as in Transformers."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        extra = {path.stem: _read_text(path) for path in sorted(folder.glob("additional_chat_templates/*.jinja"))}
        return {"default": _read_text(file), **extra}
    found = _read_json(folder / "chat_template.json").get("chat_template") or config.get("chat_template") or {}
    return templates_by_name(found)


def templates_by_name(found: str | list[dict[str, str]] | dict[str, str]) -> dict[str, str]:
    """The forms in which chat templates are stored: one source, [{name, template}], or a dict."""
    if isinstance(found, str):
        return {"default": found}
    if isinstance(found, list):
        return {entry["name"]: entry["template"] for entry in found}
    return dict(found)


def _through_transformers(folder: Path) -> TokenizerParts:
    from transformers import AutoTokenizer  # noqa: PLC0415 (2 s, and only folders without tokenizer.json need it)

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        backend: Backend = tokenizer.backend_tokenizer
    except Exception as err:  # foreign code that may fail in any way
        raise ModelError(
            f"{folder}: no tokenizer.json, and Transformers cannot make a fast tokenizer of what is there: {err}"
        ) from err
    named = {name: getattr(tokenizer, name) for name in SPECIAL_NAMES}
    special_tokens = {
        name: str(text) for name, text in named.items() if text and backend.token_to_id(str(text)) is not None
    }
    return TokenizerParts(backend, special_tokens, templates_by_name(tokenizer.chat_template or {}))


def _read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file, empty if there is no such file."""
    if not file.is_file():
        return {}
    try:
        found = json.loads(_read_text(file))
    except json.JSONDecodeError as err:
        raise ModelError(f"{file}: not JSON: {err}") from err
    if not isinstance(found, dict):
        raise ModelError(f"{file}: a JSON object is expected, not {type(found).__name__}")
    return found


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise ModelError(f"{file}: {err}") from err


def _text(token: str | dict[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])
