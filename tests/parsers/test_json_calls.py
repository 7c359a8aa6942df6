"""JSON calls in the many ways that models bend them."""

import json

import pytest

from tests.parsers.samples import read


def hermes(inside: str) -> str:
    return f"<tool_call>{inside}</tool_call>"


@pytest.mark.parametrize(
    ("inside", "arguments"),
    [
        ('{"arguments": {"city": "Ulm"}, "name": "weather"}', '{"city": "Ulm"}'),
        ('{"name": "weather", "parameters": {"city":"Ulm"}}', '{"city":"Ulm"}'),
        ('{"name": "weather", "arguments": {}, "id": "abc"}', "{}"),
        ('{"id": 5, "name": "weather", "arguments": null}', "{}"),
        ('{"name": "weather"}', "{}"),
        ('{"name": "weather", "arguments": "{\\"city\\": \\"Ulm\\"}"}', '{"city": "Ulm"}'),
        ('{"name": "weather", "arguments": ""}', "{}"),
        ('{"type": "function", "function": {"name": "weather", "arguments": {"a": 1}}}', '{"a": 1}'),
        ('{"function": "weather", "arguments": {"a": 1}}', '{"a": 1}'),
        ('{"name": "weather", "arguments": {"a": 1}', '{"a": 1}'),
        ('{"name": "weather", "arguments": {"a": 1.50e+3, "b": "\\u00e9"}}', '{"a": 1.50e+3, "b": "\\u00e9"}'),
        ('{"name": "weather", "arguments": {"a": "two\nlines\t"}}', '{"a": "two\\nlines\\t"}'),
        ('[{"name": "weather", "arguments": {"a": 1}}]', '{"a": 1}'),
    ],
)
def test_a_call_in_any_shape_is_read_and_its_json_stays_as_it_was(inside: str, arguments: str) -> None:
    said = read(hermes(inside), "hermes")
    assert (said.names, said.arguments, said.complete, said.content) == (["weather"], [arguments], [True], "")


@pytest.mark.parametrize(
    "inside",
    ["", "hello", "{", "{}", '{"name": 5}', '{"name": null, "arguments": {}}', '{"name": "", "arguments": {}}', "[]",
     '{"name": "a b", "arguments": {}}', '{"name" "weather"}', '{"arguments": {"a": 1}}', '{"names": "weather"}', "5",
     '{"name": "weather", "arguments": oops}', '{"arguments": {"a": }, "name": "weather"}', '{"name": "\\ud800"}'],
)  # fmt: skip
def test_what_is_no_call_is_text_as_it_stands(inside: str) -> None:
    text = f"a {hermes(inside)} b"
    said = read(text, "hermes")
    assert (said.content, said.names) == (text, [])


@pytest.mark.parametrize(
    "arguments", ["{oops}", '{"a": tru}', '{"a": 01}', '{"a" 1}', '{"a": 1,}', "{'a': 1}", '{"a": "\\x"}', '{"a": [1}']
)
def test_arguments_that_stop_being_json_are_passed_on_and_the_call_is_not_complete(arguments: str) -> None:
    said = read(hermes(f'{{"name": "weather", "arguments": {arguments}}}') + " after", "hermes")
    assert said.names == ["weather"] and said.complete == [False]
    assert said.arguments == [arguments + "}"] and said.content == "after"


def test_a_second_call_follows_one_that_is_broken() -> None:
    good = '{"name": "now", "arguments": {}}'
    said = read(hermes('{"name": "weather", "arguments": {"a": }}') + hermes(good), "hermes")
    assert said.names == ["weather", "now"] and said.complete == [False, True]
    assert read(hermes("{") + hermes(good), "hermes").names == ["now"]


@pytest.mark.parametrize("form", ["generic", "llama3_json", "xlam"])
def test_without_markers_only_a_known_tool_is_called(form: str) -> None:
    assert read('{"name": "weather", "arguments": {}}', form).names == ["weather"]
    for text in ('{"name": "Ulm", "arguments": {}}', '{"name": "Bob", "age": 5}', '{"a": 1}', "[1, 2]", "{ hello"):
        assert read(text, form).content == text
    assert read('I say {"name": "weather", "arguments": {}}', form).names == []


def test_a_fenced_call_is_read_by_the_generic_format() -> None:
    said = read('So:\n```json\n{"name": "weather", "arguments": {"city": "Ulm"}}\n```\n', "generic")
    assert (said.names, said.content) == (["weather"], "So:")
    code = '```json\n{"a": 1}\n```'
    assert read(code, "generic").content == code


def test_a_python_tag_before_llamas_json_is_a_marker_and_before_code_is_text() -> None:
    assert read('<|python_tag|>{"name": "weather", "parameters": {"a": 1}}', "llama3_json").values == [{"a": 1}]
    assert read("<|python_tag|>print(1)", "llama3_json").content == "<|python_tag|>print(1)"


def test_mistrals_other_dialects() -> None:
    assert read("[TOOL_CALLS]weather{}", "mistral").names == ["weather"]
    said = read("[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{}", "mistral")
    assert said.names == ["weather"] and said.ids == ["abcdefghi"]
    made = read('[TOOL_CALLS][{"name": "weather", "arguments": {}}]', "mistral").ids[0]
    assert len(made) == 9 and made.isalnum()


def test_kimis_ids_are_kept() -> None:
    said = read("<|tool_call_begin|>functions.weather:7<|tool_call_argument_begin|>{}<|tool_call_end|>", "kimi_k2")
    assert (said.names, said.ids) == (["weather"], ["functions.weather:7"])


def test_long_arguments_are_read_in_linear_time() -> None:
    long = json.dumps({"text": "x\n" * 100_000})
    said = read(
        [f'<tool_call>{{"name": "weather", "arguments": {long}}}'[i : i + 7] for i in range(0, 40_000, 7)], "hermes"
    )
    assert len(said.arguments[0]) > 35_000 and said.complete == [False]
    many = "<tool_call>{" * 20_000
    assert read(many, "hermes").content == many
