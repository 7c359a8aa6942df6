"""The grammar of each format's calls, on single bytes: it takes what the family writes, and whatever it lets a model
write is read as calls of known tools, with arguments that their schemas allow.
"""

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from octavo.grammar.build import build_grammar
from octavo.parsers.calls import Tool
from octavo.parsers.lark import required_calls, strict_calls
from octavo.parsers.registry import TOOL_FORMATS
from octavo.sampling_params import StructuredOutputsParams
from tests.parsers.samples import STYLES, format_of, read

BYTES = LLTokenizer("byte")
SPECIAL = {"[ARGS]": 300}  # a model of this marker; its id stands for nothing here
TOOLS = (
    Tool(
        "weather",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"enum": ["C", "F"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
                "exact": {"type": "boolean"},
                "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
        strict=True,
    ),
    Tool("now", {"type": "object", "properties": {}, "additionalProperties": False}),
)
EVERY = pytest.mark.parametrize("name", sorted({format_of(style) for style in STYLES}))
ARGUMENTS = {"city": 'Ulm "ü"', "unit": "C", "days": 3, "exact": True}


def matcher_of(lark: str) -> LLMatcher:
    grammar = build_grammar(StructuredOutputsParams(grammar=lark))
    matcher = LLMatcher(BYTES, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def accepts(lark: str, text: str) -> bool:
    """Whether the whole text matches."""
    matcher, data = matcher_of(lark), list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


def required(name: str, tools: Any = TOOLS, *, parallel: bool = True) -> str:
    return required_calls(TOOL_FORMATS.load(name), tools, {}, parallel=parallel)


def generated(lark: str, seed: int, markers: Sequence[str] = (), lead: str = "") -> str:
    """A text that the grammar allows: random bytes among the allowed ones, sometimes a marker, and an early end."""
    matcher, rng = matcher_of(lark), random.Random(seed)
    out = list(lead.encode())
    assert matcher.consume_tokens(out)
    while not (matcher.is_accepting() and (rng.random() < 0.7 or matcher.is_stopped())):
        marker = list(rng.choice(markers).encode()) if markers and rng.random() < 0.3 else []
        count = matcher.try_consume_tokens(marker)
        out += marker[:count]
        if count:
            continue
        mask = matcher.compute_bitmask()
        allowed = [i for i in range(256) if mask[i // 8] >> (i % 8) & 1 and (i >= 32 or i == 10)]
        closing = [i for i in allowed if chr(i) in '"}]),<`|']
        # Drawn to what ends things, or texts would go on for ever.
        token = rng.choice(closing if closing and rng.random() < 0.5 else allowed)
        assert matcher.consume_token(token)
        out.append(token)
        assert len(out) < 4000
    return bytes(out).decode(errors="replace")


def conforms(arguments: dict[str, Any]) -> bool:
    """Whether they are arguments of `weather`."""
    return (
        set(arguments) <= {"city", "unit", "days", "exact", "tags"}
        and isinstance(arguments["city"], str)
        and arguments.get("unit", "C") in ("C", "F")
        and 1 <= arguments["days"] <= 9
        and isinstance(arguments.get("exact", True), bool)
        and all(isinstance(tag, str) for tag in arguments.get("tags", []))
    )


@pytest.mark.parametrize(
    "style", [s for s in STYLES if s not in ("mistral", "phi4_mini_json", "jamba", "openai", "generic")]
)
def test_what_the_family_writes_is_in_the_grammar(style: str) -> None:
    if style in ("deepseek_v32", "deepseek_v4", "minimax_m2", "llama4_pythonic", "lfm2", "pythonic", "olmo3"):
        calls = [("weather", {"city": "Ulm", "days": 3})]
    else:
        calls = [("weather", {**ARGUMENTS, "city": "Ulm"})]
    text = STYLES[style].answer(*calls)
    if "pythonic" in style or style in ("lfm2", "olmo3"):
        text = text.replace("'", '"').replace("True", "true")
    assert accepts(required(format_of(style)), text)


@EVERY
def test_whatever_a_required_grammar_allows_is_calls_with_good_arguments(name: str) -> None:
    lark = required(name)
    for seed in range(12):
        text = generated(lark, seed, TOOL_FORMATS.load(name).markers)
        said = read(text, name, functions=TOOLS)
        assert said.names and set(said.names) <= {"weather", "now"}, text
        assert said.complete == [True] * len(said.names), text
        assert said.content == "", text
        for called, arguments in zip(said.names, said.values, strict=True):
            assert conforms(arguments) if called == "weather" else arguments == {}, text


@EVERY
def test_a_named_function_is_the_only_one_and_comes_once(name: str) -> None:
    lark = required(name, TOOLS[1:], parallel=False)
    for seed in range(3):
        assert read(generated(lark, seed, TOOL_FORMATS.load(name).markers), name, functions=TOOLS).names == ["now"]


@pytest.mark.parametrize("name", sorted({format_of(style) for style in STYLES} - {"openai"}))
def test_a_strict_grammar_leaves_text_free_and_holds_once_a_call_has_begun(name: str) -> None:
    form = TOOL_FORMATS.load(name)
    lark = strict_calls(form, TOOLS, {}, parallel=True)
    assert accepts(lark, "Just text, é.")
    for seed in range(6):
        if form.opener:
            text = generated(lark, seed, form.markers, f"Well: {form.opener}")
        else:
            text = generated(lark, seed, (), "[" if "pythonic" in name or name == "xlam" else "{")
        said = read(text, name, functions=TOOLS)
        assert said.names and all(said.complete), text
        assert all(conforms(a) for n, a in zip(said.names, said.values, strict=True) if n == "weather"), text


@EVERY
def test_a_tool_without_a_schema_takes_any_arguments(name: str) -> None:
    tools = (Tool("any", {}),)
    lark = required(name, tools, parallel=False)
    found = [read(generated(lark, seed, TOOL_FORMATS.load(name).markers), name, functions=tools) for seed in range(8)]
    assert all(said.names == ["any"] and said.complete == [True] for said in found)
    assert any(said.values != [{}] for said in found)


def test_a_marker_that_is_a_special_token_is_written_as_one() -> None:
    form = TOOL_FORMATS.load("mistral")
    lark = required_calls(form, TOOLS, {"[TOOL_CALLS]": 7, "[ARGS]": 8}, parallel=False)
    assert "<[7]>" in lark and "<[8]>" in lark and "TOOL_CALLS" not in lark
    lark = strict_calls(form, TOOLS, {"[TOOL_CALLS]": 7, "[ARGS]": 8}, parallel=True)
    assert "<[^7]>*" in lark


def test_a_json_call_in_the_grammar_is_json() -> None:
    text = generated(required("generic", parallel=False), 3)
    assert json.loads(text)["name"] in ("weather", "now")
