"""JSON schemas before llguidance compiles them: what it would ignore or overlook is refused, naming the place, and the
blanks between parts get a bound. Knows no tokens.

What llguidance implements and refuses itself: https://github.com/guidance-ai/llguidance/blob/main/docs/json_schema.md.
"""

import itertools
import json
import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, NamedTuple

from llguidance import LLMatcher

from octavo import limits
from octavo.errors import ClientError
from octavo.sampling_params import StructuredOutputsParams

BLANKS = r"[\x20\t]|\r?\n[\x20\t]{0,12}"
"""Between two parts of JSON: one blank, or a new line with its indentation. A model that is drawn to blanks comes to
the next part all the same."""

_OPTIONS = "x-guidance"
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SCHEMA_VALUES = ("items", "additionalProperties", "additionalItems", "not", "if", "then", "else", "contains",
                  "propertyNames", "unevaluatedItems", "unevaluatedProperties")  # fmt: skip
_IGNORED_BY_LLGUIDANCE = {
    "divisibleBy": "write multipleOf",
    "extends": "write allOf",
    "disallow": "list the types that are allowed",
}
_MAX_LOCATED = 256
"""Most parts of a faulty schema that are tried on their own to name the place of the fault."""


class Part(NamedTuple):
    """A schema inside a schema, and where: a JSON pointer."""

    pointer: str
    schema: dict[str, Any]


def load_json(name: str, text: str) -> Any:
    """Parse what a field has as text.

    Raises:
        ClientError: it is not JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as err:
        raise ClientError(f"{name} is not JSON: {err}") from None


def checked_schema(schema: Any, params: StructuredOutputsParams | None = None) -> dict[str, Any]:
    """A copy with the options for llguidance, as `params` say it.

    Raises:
        ClientError: it is no schema, nested too deeply, or has parts that would not be enforced; names the place.
    """
    if not isinstance(schema, dict):
        raise ClientError(f"the schema must be an object, got {json.dumps(schema)[:80]}")
    check_depth(schema)
    for part in parts_of(schema):
        _check_part(part)
    if params is not None and params.disable_additional_properties:
        schema = _closed(schema)
    # What a schema says itself stands, but nothing in it may be passed over.
    options = {**_blanks(params), **_object(schema.get(_OPTIONS)), "lenient": False}
    return {**schema, _OPTIONS: options}


def check_depth(value: Any) -> None:
    """Raise ClientError if lists and objects are nested twice as deeply as schemas may be."""
    level = [value]
    for _ in range(2 * limits.SCHEMA_LEVELS.value + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise _too_deep()


def parts_of(schema: dict[str, Any], pointer: str = "", depth: int = 1) -> Iterator[Part]:
    """The schema and all schemas inside it, innermost first."""
    if depth > limits.SCHEMA_LEVELS.value:
        raise _too_deep()
    for keyword, value in schema.items():
        inner: dict[str, Any] = {}
        if keyword in _SCHEMA_MAPS and isinstance(value, dict):
            inner = {f"/{_escaped(name)}": each for name, each in value.items()}
        elif keyword in _SCHEMA_LISTS and isinstance(value, list):
            inner = {f"/{index}": each for index, each in enumerate(value)}
        elif keyword in _SCHEMA_VALUES:
            inner = {"": value}
        for place, each in inner.items():
            if isinstance(each, dict):
                yield from parts_of(each, f"{pointer}/{_escaped(keyword)}{place}", depth + 1)
    yield Part(pointer, schema)


def schemas_of(lark: str) -> Iterator[dict[str, Any]]:
    """The schemas in a Lark grammar: those of tools, say."""
    for match in re.finditer(r"%json\s*", lark):
        try:
            schema, _ = json.JSONDecoder().raw_decode(lark, match.end())
        except (ValueError, RecursionError):  # the text of a terminal
            continue
        if isinstance(schema, dict):
            yield schema


def fault_of(schema: dict[str, Any]) -> str | None:
    """What llguidance says against a schema, and where; None if it takes it."""
    message = LLMatcher.validate_grammar(json.dumps({"grammars": [{"json_schema": schema}]}))
    return placed(message, schema) if message else None


def placed(message: str, schema: dict[str, Any]) -> str:
    """llguidance's message with the place in the schema, which it does not tell."""
    shown, place = " ".join(message.split())[:400], _faulty_part(schema, message)
    return shown if place is None else f"{shown} (at {place} of the schema)"


def _faulty_part(schema: dict[str, Any], message: str) -> str | None:
    """JSON pointer of the innermost part that llguidance refuses in the same words; None if there is no such part."""
    shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    for part in itertools.islice(parts_of(schema), _MAX_LOCATED):
        alone = json.dumps({"grammars": [{"json_schema": {**shared, **part.schema}}]})
        if LLMatcher.validate_grammar(alone) == message:
            return part.pointer or "/"
    return None


def check_repeats(name: str, pattern: str) -> None:
    """Refuse `a**` and the like: Rust's regular expressions take it for `a*`, others for a mistake."""
    repeats, in_class = False, 0
    for match in re.finditer(r"\\.|\{\d*,?\d*\}|.", pattern, re.DOTALL):
        token = match[0]
        if in_class:
            in_class += (token == "[") - (token == "]")
            repeats = False
        elif token == "[":
            in_class = 1
        elif token == "?":  # once or not at all, or the lazy form of the repetition before it
            repeats = True
            continue
        elif token in "*+" or (len(token) > 2 and token[0] == "{"):
            if repeats:
                raise ClientError(f"{name} repeats a repetition at position {match.start()}: {pattern[:80]!r}")
            repeats = True
            continue
        repeats = False


def _too_deep() -> ClientError:
    return ClientError(f"the schema is nested more than {limits.SCHEMA_LEVELS.value} levels deep; use $ref and $defs")


def _check_part(part: Part) -> None:
    place = part.pointer or "/"
    for keyword, instead in _IGNORED_BY_LLGUIDANCE.items():
        if keyword in part.schema:
            raise ClientError(f"the schema has {keyword} at {place}, which cannot be enforced; {instead}")
    patterns = part.schema.get("patternProperties")
    for pattern in [part.schema.get("pattern"), *(patterns if isinstance(patterns, dict) else ())]:
        if isinstance(pattern, str):
            check_repeats(f"the pattern at {place}", pattern)


def _blanks(params: StructuredOutputsParams | None) -> dict[str, Any]:
    if params is None:
        return {"whitespace_pattern": BLANKS}
    if params.disable_any_whitespace:
        return {"whitespace_flexible": False}
    if params.whitespace_pattern is None:
        return {"whitespace_pattern": BLANKS}
    if re.search(r"[*+]|\{\d*,\}", re.sub(r"\\.|\[(?:\\.|[^\]\\])*\]", "", params.whitespace_pattern)):
        raise ClientError(
            f"whitespace_pattern is {params.whitespace_pattern[:80]!r}, which has no upper bound: a model may go on "
            "with blanks for ever; write {0,8} instead of *",
            param="structured_outputs.whitespace_pattern",
        )
    return {"whitespace_pattern": params.whitespace_pattern}


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """With additionalProperties false wherever the schema leaves it open."""
    closed = deepcopy(schema)
    for part in list(parts_of(closed)):
        if part.schema.get("type") == "object" or "properties" in part.schema:
            part.schema.setdefault("additionalProperties", False)
    return closed


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
