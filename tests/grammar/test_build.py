"""What a request asks for as a grammar, tried on single bytes: llguidance's own byte vocabulary, no model."""

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from octavo import limits
from octavo.errors import ClientError
from octavo.grammar.build import build_grammar, lark_grammar
from octavo.grammar.check import GrammarChecker
from octavo.grammar.thinking import after_thinking
from octavo.sampling_params import SamplingParams, StructuredOutputsParams

BYTES = LLTokenizer("byte")
CLOSED = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


def accepts(grammar: str, text: str) -> bool:
    """Whether the whole text matches."""
    matcher = LLMatcher(BYTES, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


def grammar(**kind: Any) -> str:
    return build_grammar(StructuredOutputsParams(**kind))


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ({"json": CLOSED}, '{"a": -7}', '{"a": 07}'),
        ({"json": json.dumps(CLOSED)}, '{"a":1}', '{"b":1}'),
        ({"json": {"type": "object"}, "disable_additional_properties": True}, "{}", '{"b":1}'),
        ({"json": CLOSED, "disable_any_whitespace": True}, '{"a":1}', '{"a": 1}'),
        ({"json": CLOSED, "whitespace_pattern": " {3}"}, '{"a":   1}', '{"a":  1}'),
        ({"json_object": True}, '{"x": [1, {"y": null}]}', "[1]"),
        ({"regex": r"\d{3}-(a|b)/c"}, "123-b/c", "12-b/c"),
        ({"regex": "^(yes|no)$"}, "no", "nope"),
        ({"choice": ["yes", 'q"b\\c', "é\t😀"]}, "é\t😀", "ye"),
        ({"choice": [f"no. {i}" for i in range(4000)]}, "no. 3999", "no. 4000"),
        ({"choice": ['q"b\\c']}, 'q"b\\c', '"q"'),
        ({"grammar": 'start: "a" b+\nb: /[0-9]/ ";"'}, "a1;2;", "a"),
        ({"grammar": 'root ::= "\\u00e9" item{2,3} # two or three\nitem ::= [\\u00e0-\\u00ef] | "-"'}, "éè-", "éè"),
        ({"grammar": 'start: "x" %json {"type": "object"} // %json here'}, "x{}", "x[]"),
        (
            {"structural_tag": {"structures": [{"begin": "<f=a>", "schema": CLOSED, "end": "<"}], "triggers": ["<"]}},
            'see <f=a>{"a": 1}< and so on',
            "see <f=b>",
        ),
    ],
)  # fmt: skip
def test_each_kind_accepts_what_it_describes_and_nothing_else(kind: dict[str, Any], good: str, bad: str):
    made = grammar(**kind)
    assert accepts(made, good)
    assert not accepts(made, bad)


@pytest.mark.parametrize(
    "make", [lambda: grammar(json=CLOSED), lambda: lark_grammar("start: %json " + json.dumps(CLOSED))]
)
def test_json_may_be_indented_but_not_padded(make: Any):
    made = make()
    assert accepts(made, json.dumps({"a": 1}, indent=4))
    assert accepts(made, '{\r\n\t"a" : 1\r\n}')
    for blanks in ("  ", "\n\n", "\n" + 13 * " ", " \n"):
        assert not accepts(made, "{" + blanks + '"a":1}')


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ({"json": {"properties": {"a": {"pattern": "x**"}}}}, "/properties/a"),
        ({"json": {"items": {"divisibleBy": 3}}}, "divisibleBy at /items"),
        ({"json": "{"}, "not JSON"),
        ({"json": "5"}, "must be an object"),
        ({"json": 5}, "must be text or an object, got int"),
        ({"json": CLOSED, "whitespace_pattern": "[ \n]*"}, "no upper bound"),
        ({"regex": "foo**"}, "position 4"),
        ({"regex": "a{2}+"}, "repeats a repetition"),
        ({"choice": []}, "choice is empty"),
        ({"choice": ["a", 1]}, r"choice\[1\] is 1"),
        ({"choice": "ab"}, "must be a list"),
        ({"grammar": "root ::= undefined_rule"}, "undefined_rule"),
        ({"grammar": 'root ::= "a'}, "GBNF"),
        ({"grammar": "root ::= " + 5000 * "("}, "GBNF"),
        ({"grammar": "start: %json 5x"}, "schema must be an object"),
        ({"grammar": '{"grammars": 5}'}, "list of grammars"),
        ({"structural_tag": {"structures": [], "triggers": []}}, "must have the form"),
        ({"regex": "a", "choice": ["b"]}, "regex and choice"),
        ({}, "it has none"),
        ({"json_object": False}, "it has none"),
        ({"choice": ["x" * limits.GRAMMAR_BYTES.value]}, "the limit is"),
    ],
)
def test_what_cannot_be_enforced_is_refused_with_its_place(kind: dict[str, Any], words: str):
    with pytest.raises(ClientError, match=words) as caught:
        grammar(**kind)
    assert caught.value.param.startswith("structured_outputs")


@pytest.mark.parametrize("wrap", [lambda s: {"type": "array", "items": s}, lambda s: {"properties": {"a": s}}])
@pytest.mark.parametrize("depth", [64, 5000])
def test_a_schema_nested_too_deeply_is_refused(wrap: Any, depth: int):
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = wrap(schema)
    with pytest.raises(ClientError, match="nested more than 64"):
        grammar(json=schema)


def test_a_schema_cannot_switch_off_what_is_enforced():
    made = grammar(json={"x-guidance": {"lenient": True}, "type": "string", "not": {}})
    assert "not" in LLMatcher.validate_grammar(made)


def test_quantifiers_in_classes_and_escapes_are_no_repetitions():
    assert accepts(grammar(regex=r"[*+]*\*+a+?(?:b)?"), "*+**ab")


@pytest.mark.parametrize("marker", ["</think>", ["</th", "ink>"]])
def test_the_grammar_holds_from_the_end_of_the_thinking_on(marker: Any):
    made = after_thinking(grammar(json=CLOSED), marker)
    assert accepts(made, 'I think {"x" so</think>{"a": 1}')
    assert not accepts(made, '{"a": 1}')
    assert not accepts(made, 'so</think>{"b": 1}')


def test_special_tokens_can_end_the_thinking():
    special = next(token_id for token_id in range(256, BYTES.vocab_size) if BYTES.is_special_token(token_id))
    matcher = LLMatcher(BYTES, after_thinking(grammar(choice=["yes"]), [special, "!"]))
    assert matcher.consume_tokens([*b"hm", special, *b"!yes"])
    assert matcher.is_accepting()


def test_a_grammar_behind_thinking_is_itself_a_grammar_that_a_request_may_send():
    made = after_thinking(grammar(choice=["yes"]), "</think>", budget=3)
    assert json.loads(grammar(grammar=made)) == json.loads(made)


def test_sampling_params_take_nothing_but_structured_outputs_params():
    with pytest.raises(ClientError, match="StructuredOutputsParams, got dict"):
        SamplingParams(structured_outputs={"regex": "a"})  # type: ignore[arg-type]


def test_a_number_that_no_message_can_carry_is_refused_at_the_door():
    schema = {"type": "integer", "maximum": 10**30}
    with pytest.raises(ClientError, match="cannot be JSON: can't serialize ints"):
        GrammarChecker(pytest.fail).check(StructuredOutputsParams(json=schema))
