"""What a turn must be: calls that are asked for, strict arguments, structured text, after the thinking and within its
budget, as one grammar. Knows no API form.
"""

from collections.abc import Mapping
from typing import Any

from octavo.errors import ClientError
from octavo.grammar.build import build_grammar
from octavo.grammar.json_schema import checked_schema
from octavo.grammar.thinking import after_thinking
from octavo.parsers.calls import Tool
from octavo.parsers.formats import ReasoningFormat, ToolFormat
from octavo.parsers.lark import ANY_OBJECT, GrammarWriter, required_calls, strict_calls
from octavo.sampling_params import StructuredOutputsParams
from octavo.server.tools import ToolUse

NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}

_SAYS_NOTHING = frozenset(["type", "properties", "required", "title", "description", "$schema"])


def calls_grammar(
    form: ToolFormat, use: ToolUse, level: str, special: Mapping[str, int]
) -> StructuredOutputsParams | None:
    """The grammar of the calls that a request asks for; None if the model may say what it likes.

    Args:
        level: as --tool-strict-level says.
        special: ids of special tokens, by text.

    Raises:
        ClientError: the schema of a tool cannot be enforced.
    """
    forced = use.mode == "required"
    if not forced and level == "auto" and not any(function.strict for function in use.functions):
        return None
    if not forced and form.whole_answer:  # its calls have no marker that could not be text of another channel
        return None
    functions = []
    for function in use.functions:
        if forced or function.strict or level == "parameter":
            try:
                checked_schema(function.parameters)
            except ClientError as err:
                raise ClientError(f"parameters of {function.name[:80]!r}: {err.message}", param="tools") from None
            functions.append(_as_enforced(function))
        else:
            functions.append(function._replace(parameters=ANY_OBJECT))
    write = required_calls if forced else strict_calls
    return StructuredOutputsParams(grammar=write(form, functions, special, parallel=use.parallel))


def _as_enforced(function: Tool) -> Tool:
    """A function that says nothing of arguments takes none, though as JSON schema it would take any.

    Raises:
        ClientError: its arguments would be no object.
    """
    kind = function.parameters.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise ClientError(
            f"parameters of {function.name[:80]!r} have the type {str(kind)[:80]!r} but arguments are an object; "
            'write {"type": "object", "properties": {...}}',
            param="tools",
        )
    if function.parameters.keys() <= _SAYS_NOTHING and not function.properties and not function.required:
        return function._replace(parameters=NO_ARGUMENTS)
    return function


def turn_grammar(
    wanted: StructuredOutputsParams | None,
    reasoning: ReasoningFormat | None,
    special: Mapping[str, int],
    *,
    inside: bool,
    is_call: bool,
    budget: int | None,
) -> StructuredOutputsParams | None:
    """`wanted` from the end of the thinking on, if the model thinks.

    Args:
        inside: the answer begins with thinking; if not, it may.
        is_call: `wanted` describes calls, which have their own channel where there are channels.
        budget: most tokens of thinking.
    """
    if reasoning is None or (wanted is None and budget is None):
        return wanted
    writer = GrammarWriter(special)
    end = reasoning.closes + ("" if is_call or wanted is None else reasoning.answer_begins)
    grammar = None if wanted is None else build_grammar(wanted)
    begins = inside or reasoning.begins_inside or reasoning.whole_answer
    begin = [] if begins else writer.parts(reasoning.opens)
    return StructuredOutputsParams(grammar=after_thinking(grammar, writer.parts(end), budget, begin))
