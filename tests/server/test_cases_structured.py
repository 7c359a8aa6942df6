"""The cases about structured output (STO): what is asked for is what comes, or 400; and nothing else is disturbed."""

import json
from typing import Any

import pytest

from tests.server.conftest import SENTENCE
from tests.server.world import World, assert_refused, finish_reasons, joined

CLOSED = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
STRINGS = ["é", "中文", 'q"b\\c', "😀", "\t"]


def schema_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


def answers(world: World, num: int, **body: Any) -> list[Any]:
    """Choices of a prompt, of which each has a seed of its own."""
    asked = {"prompt": "json:", "n": num, "seed": 7, "temperature": 1.5, "max_tokens": 300, **body}
    choices: list[Any] = world.ok("/v1/completions", **asked)["choices"]
    assert {choice["finish_reason"] for choice in choices} == {"stop"}
    return choices


def values(world: World, schema: dict[str, Any], num: int = 40, **body: Any) -> list[Any]:
    choices = answers(world, num, response_format=schema_format(schema), **body)
    return [json.loads(choice["text"]) for choice in choices]


BAD = [
    {"response_format": schema_format({"type": "strng"})},
    {"response_format": schema_format(5)},
    {"response_format": schema_format({"properties": {"a": {"pattern": "["}}})},
    {"response_format": schema_format({"uniqueItems": True})},
    {"response_format": {"type": "structural_tag", "structures": []}},
    {"structured_outputs": {"json": {"type": "strng"}}},
    {"structured_outputs": {"json": 5}},
    {"structured_outputs": {"json": {"not": {"type": "string"}}}},
    {"structured_outputs": {"regex": "foo**"}},
    {"structured_outputs": {"regex": "["}},
    {"structured_outputs": {"choice": []}},
    {"structured_outputs": {"choice": [1]}},
    {"structured_outputs": {"grammar": "root ::= undefined_rule"}},
    {"structured_outputs": {"grammar": "start: start"}},
    {"structured_outputs": {"grammar": "start: <nope>"}},
    {"structured_outputs": {"regex": "a", "choice": ["b"]}},
    {"structured_outputs": {"jsn": {}}},
    {"structured_outputs": {}},
    {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
    {"guided_json": {"type": "strng"}},
    {"guided_regex": "["},
    {"guided_choice": []},
    {"guided_grammar": "root ::= undefined_rule"},
    {"guided_json": {}, "guided_regex": "a"},
    {"guided_json": {}, "guided_whitespace_pattern": "[ ]*"},
]


@pytest.mark.parametrize("body", BAD, ids=lambda body: json.dumps(body)[:60])
def test_sto_01_a_bad_constraint_is_refused_before_anything_runs(script: World, body: dict[str, Any]) -> None:
    message = [{"role": "user", "content": "hi"}]
    for stream in (False, True):
        error = assert_refused(script.post("/v1/chat/completions", messages=message, stream=stream, **body))
        assert error["param"].partition(".")[0] in body
        assert_refused(script.post("/v1/completions", prompt="hi", stream=stream, **body))
    assert script.complete("hi", max_tokens=20)["choices"][0]["text"] == SENTENCE


@pytest.mark.parametrize(
    ("schema", "bound"),
    [
        ({"type": "integer", "minimum": -123, "maximum": 42}, lambda value: -123 <= value <= 42),
        ({"type": "integer", "minimum": 3}, lambda value: value >= 3),
        ({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10}, lambda value: 0 < value < 10),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3}, lambda v: 2 <= len(v) <= 3),
        ({"type": "number"}, lambda value: isinstance(value, int | float)),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}, "c": {"enum": [1, 2]}},
                "required": ["a", "b"],
                "additionalProperties": False,
            },
            lambda value: {"a", "b"} <= value.keys() <= {"a", "b", "c"},
        ),
    ],
)
def test_sto_03_numbers_arrays_and_objects_keep_to_their_bounds(varied: World, schema: Any, bound: Any) -> None:
    assert all(bound(value) for value in values(varied, schema))


@pytest.mark.parametrize("body", [{"response_format": schema_format(CLOSED)}, {"structured_outputs": {"json": CLOSED}}])
def test_sto_04_blanks_never_pad_an_answer(varied: World, body: dict[str, Any]) -> None:
    blanks = {str(ord(blank) + 3): 30 for blank in " \n\t\r"}
    for choice in answers(varied, 8, logit_bias=blanks, max_tokens=64, return_token_ids=True, **body):
        assert len(choice["token_ids"]) < 64
        assert json.loads(choice["text"]).keys() == {"a"}
        assert not any(blank * 17 in choice["text"] for blank in " \n\t")
        assert choice["text"].endswith("}")


def test_sto_04_json_object_ends_with_its_brace(varied: World) -> None:
    blanks = {str(ord(blank) + 3): 30 for blank in " \n"}
    body = {"response_format": {"type": "json_object"}, "logit_bias": {**blanks, str(ord("}") + 3): 60}}
    for choice in answers(varied, 8, max_tokens=200, **body):
        assert isinstance(json.loads(choice["text"]), dict)
        assert choice["text"].endswith("}")


def test_sto_06_strings_come_out_exactly(varied: World) -> None:
    const = "\n" + 30 * " "
    assert values(varied, {"const": const}, num=3) == [const] * 3
    key = 'q"ü'
    closed = {"type": "object", "properties": {key: {"const": 1}}, "required": [key], "additionalProperties": False}
    assert values(varied, closed, num=3) == [{key: 1}] * 3
    assert set(values(varied, {"enum": STRINGS}, num=200, temperature=6)) == set(STRINGS)
    sampled = answers(varied, 200, structured_outputs={"choice": STRINGS}, temperature=6)
    chosen = {choice["text"] for choice in sampled}
    assert chosen == set(STRINGS)


@pytest.mark.parametrize(
    "body",
    [
        {"structured_outputs": {"regex": "[a-c]{3}"}},
        {"guided_regex": "[a-c]{3}"},
        {"guided_choice": ["abc", "cab"]},
        {"guided_grammar": "root ::= [a-c]{3}"},
        {"guided_json": {"enum": ["abc"]}, "guided_whitespace_pattern": " ?"},
        {"response_format": schema_format({"const": "abc"})},
    ],
)
def test_every_spelling_is_honoured_streamed_and_whole(varied: World, body: dict[str, Any]) -> None:
    asked = {"max_tokens": 40, "seed": 5, "temperature": 1.2, **body}
    whole = varied.chat("hi", **asked)["choices"][0]
    chunks = varied.stream_chat("hi", **asked)
    assert joined(chunks) == whole["message"]["content"]
    assert finish_reasons(chunks) == [whole["finish_reason"]] == ["stop"]
    assert len(whole["message"]["content"].strip('"')) == 3


def test_a_choice_of_one_token_has_finite_logprobs(varied: World) -> None:
    chat = varied.chat("hi", structured_outputs={"choice": ["x"]}, logprobs=True, top_logprobs=5, temperature=1)
    (position, *_) = chat["choices"][0]["logprobs"]["content"]
    assert position["token"] == "x" and position["logprob"] <= 0
    whole = varied.complete("hi", structured_outputs={"choice": ["x"]}, logprobs=5, temperature=0.01)["choices"][0]
    assert whole["text"] == "x" and whole["logprobs"]["token_logprobs"][0] <= 0


@pytest.mark.parametrize(
    "body",
    [
        {"min_tokens": 20},
        {"ignore_eos": True},
        {"bad_words": ["z"]},
        {"stop": ["z"]},
        {"frequency_penalty": 2.0, "repetition_penalty": 1.5, "presence_penalty": 1.0},
        {"logit_bias": {str(ord("z") + 3): 100}},
        {"n": 3},
        {"stop_token_ids": [ord("!") + 3]},
    ],
)
def test_other_parameters_keep_their_meaning_and_never_break_the_grammar(varied: World, body: dict[str, Any]) -> None:
    asked = {"prompt": "x", "structured_outputs": {"choice": ["abca", "bcab"]}, "temperature": 1.0, "max_tokens": 50}
    for choice in varied.ok("/v1/completions", **asked, **body)["choices"]:
        assert choice["text"] in ("abca", "bcab")
        assert choice["finish_reason"] == "stop"


def test_what_contradicts_the_grammar_ends_that_request_alone(varied: World) -> None:
    response = varied.post(
        "/v1/completions", prompt="x", structured_outputs={"choice": ["abc"]}, allowed_token_ids=[ord("z") + 3]
    )
    assert "no token is left" in assert_refused(response, 400)["message"]
    assert answers(varied, 2, structured_outputs={"choice": ["abc"]})[0]["text"] == "abc"
