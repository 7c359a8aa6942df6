"""From what a request asks for to one grammar, as llguidance reads it: JSON text with a list of grammars, of which the
first describes the answer and may name the others. Refuses what llguidance lets pass. Knows no tokenizer and no model.
"""

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from octavo import limits
from octavo.errors import ClientError
from octavo.grammar.json_schema import check_repeats, checked_schema, load_json
from octavo.grammar.structural_tag import tag_grammar
from octavo.grammar.thinking import GrammarList
from octavo.sampling_params import StructuredOutputsParams

JSON_OPTIONS = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")

_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_GBNF_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)
_LARK_PLACE = re.compile(r"%json\b\s*|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)


def build_grammar(params: StructuredOutputsParams) -> str:
    """The grammar of an answer.

    Raises:
        ClientError: it is malformed, too large, or asks for what cannot be enforced; `param` names the field.
    """
    kind = params.kind
    try:
        grammar = _BUILDERS[kind](params)
    except ClientError as err:
        err.param = err.param or f"structured_outputs.{kind}"
        raise
    limits.GRAMMAR_BYTES.check(f"structured_outputs.{kind}", len(grammar.encode("utf-8", "surrogatepass")))
    return grammar


def lark_grammar(text: str) -> str:
    """A grammar in llguidance's dialect of Lark; JSON schemas in it get blanks of bounded length, unless they say how.

    Raises:
        ClientError: a JSON schema in it cannot be enforced.
    """
    return grammar_list([{"lark_grammar": _with_bounded_json(text)}])


def grammar_list(grammars: Iterable[dict[str, Any]]) -> str:
    """The form in which grammars travel; those but the first have a `name`."""
    return json.dumps({"grammars": list(grammars)})


def _from_json(params: StructuredOutputsParams) -> str:
    assert params.json is not None
    schema = load_json("json", params.json) if isinstance(params.json, str) else params.json
    return grammar_list([{"json_schema": checked_schema(schema, params)}])


def _from_json_object(params: StructuredOutputsParams) -> str:
    return grammar_list([{"json_schema": checked_schema({"type": "object"}, params)}])


def _from_regex(params: StructuredOutputsParams) -> str:
    assert params.regex is not None
    check_repeats("regex", params.regex)
    return grammar_list(json.loads(LLMatcher.grammar_from_regex(params.regex))["grammars"])


def _from_choice(params: StructuredOutputsParams) -> str:
    assert params.choice is not None
    # One terminal: as a rule, each choice would be an item of the parser's row, whose number is bounded.
    return lark_grammar("start: CHOICE\nCHOICE: " + " | ".join(map(json.dumps, dict.fromkeys(params.choice))))


def _from_grammar(params: StructuredOutputsParams) -> str:
    assert params.grammar is not None
    text = params.grammar
    if text.lstrip().startswith("{"):
        return _checked_list(text)
    if _GBNF_RULE.search(text):
        text = _gbnf_to_lark(text)
    return lark_grammar(text)


def _from_structural_tag(params: StructuredOutputsParams) -> str:
    assert params.structural_tag is not None
    tag = params.structural_tag
    wanted = load_json("structural_tag", tag) if isinstance(tag, str) else tag

    def build(kind: str, value: Any) -> list[dict[str, Any]]:
        how = {name: getattr(params, name) for name in JSON_OPTIONS}
        grammars: list[dict[str, Any]] = json.loads(build_grammar(StructuredOutputsParams(**{kind: value}, **how)))[
            "grammars"
        ]
        return grammars

    lark, named = tag_grammar(wanted, build)
    return grammar_list([{"lark_grammar": lark}, *named])


def _checked_list(text: str) -> str:
    """A grammar that has the form of `grammar_list` already."""
    try:
        given = msgspec.json.decode(text, type=GrammarList)
    except (msgspec.DecodeError, RecursionError) as err:
        raise ClientError(f"grammar begins like a list of grammars in JSON, but is none: {err}") from None
    grammars = [
        {
            **each,
            **({"lark_grammar": _with_bounded_json(lark)} if isinstance(lark := each.get("lark_grammar"), str) else {}),
            **({"json_schema": checked_schema(schema)} if (schema := each.get("json_schema")) is not None else {}),
        }
        for each in given.grammars
    ]
    return msgspec.json.encode(msgspec.structs.replace(given, grammars=grammars)).decode()


_BUILDERS: dict[str, Callable[[StructuredOutputsParams], str]] = {
    "json": _from_json,
    "json_object": _from_json_object,
    "regex": _from_regex,
    "choice": _from_choice,
    "grammar": _from_grammar,
    "structural_tag": _from_structural_tag,
}


def _gbnf_to_lark(text: str) -> str:
    try:
        lark: str = gbnf_to_lark(_GBNF_ESCAPE.sub(_plain_escape, text))
    except Exception as err:  # the converter raises what it happens to run into
        raise ClientError(f"grammar is not GBNF: {str(err) or type(err).__name__}") from None
    return lark


def _plain_escape(match: re.Match[str]) -> str:
    r"""The converter loses the zeros of \u00e9: say the character itself, or \x22 if it is ASCII."""
    digits = match[1] or match[2]
    if digits is None:
        return match[0]
    code = int(digits, 16)
    return f"\\x{code:02x}" if code < 0x80 else chr(code)


def _with_bounded_json(text: str) -> str:
    """Check the schemas after `%json`, wherever it does not stand in a comment or a string."""
    parts, position = [], 0
    while match := _LARK_PLACE.search(text, position):
        parts.append(text[position : match.end()])
        position = match.end()
        if match[0].startswith("%json"):
            try:
                schema, position = json.JSONDecoder().raw_decode(text, position)
            except (ValueError, RecursionError) as err:
                raise ClientError(f"grammar has a %json that is not followed by JSON: {err}") from None
            parts.append(json.dumps(checked_schema(schema)))
    return "".join(parts) + text[position:]
