"""Calls and texts that must come, whatever the model would say (TOL-04), and from where thinking ends on (STO-07), over
HTTP, in one answer and streamed with 1 to 50 tokens per event.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from octavo.config import ServerConfig
from tests.script_model import write_random_model, write_script_model
from tests.server.test_cases_tools import TEMPLATE
from tests.server.turns import Answer, distinct_pieces, every_way
from tests.server.world import World, assert_refused, serve_app

CLOSED = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}
TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": CLOSED}},
    {"type": "function", "function": {"name": "g", "parameters": {"type": "object", "additionalProperties": False}}},
]
NAMED = {"type": "function", "function": {"name": "f"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": CLOSED}}


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Says abc</think>{"a":1}, in pieces that cut the marker, or prose after "p"."""
    used: set[bytes] = set()
    pieces = [b"ab", b"c", b"</", b"think", b">", b'{"', b'a":', b"1}"]
    prose = distinct_pieces("It is sunny, my friend, and warm.", used, 3)
    folder = write_script_model(
        tmp_path_factory.mktemp("thinker"), pieces, started_by={"p": prose}, chat_template=TEMPLATE
    )
    server = ServerConfig(reasoning_parser="deepseek_r1", disable_log_stats=True)
    with serve_app(folder, server) as world:
        yield world


@pytest.fixture(scope="module")
def babbler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Says anything; no format is known."""
    folder = write_random_model(tmp_path_factory.mktemp("babbler"), chat_template="{{ messages[0].content }}")
    with serve_app(folder) as world:
        yield world


def test_sto_07_a_schema_holds_from_the_end_of_the_thinking_on(thinker: World) -> None:
    answer = every_way(thinker, "x", max_tokens=60, response_format=SCHEMA)
    assert (answer.reasoning, answer.content, answer.finish_reason) == ("abc", '{"a":1}', "stop")


def test_sto_07_with_thinking_off_it_holds_from_the_first_token(thinker: World) -> None:
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    answer = every_way(thinker, "x", max_tokens=60, response_format=SCHEMA, **off)
    assert answer.reasoning is None and answer.reasoning_tokens == 0
    assert answer.content is not None and json.loads(answer.content) == {"a": 1}


@pytest.mark.parametrize("choice", [NAMED, "required"])
def test_sto_07_a_call_comes_after_the_thinking(thinker: World, choice: Any) -> None:
    tools = TOOLS[:1] if choice == "required" else TOOLS
    answer = every_way(thinker, "x", max_tokens=150, tools=tools, tool_choice=choice)
    assert answer.reasoning == "abc" and answer.content is None and answer.finish_reason == "tool_calls"
    assert [(name, json.loads(arguments)) for name, arguments in answer.calls][:1] == [("f", {"a": 1})]


def test_sto_07_strict_tools_leave_the_thinking_alone(thinker: World) -> None:
    strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
    answer = every_way(thinker, "x", max_tokens=60, tools=strict)
    assert (answer.reasoning, answer.content, answer.calls) == ("abc", '{"a":1}', [])


@pytest.mark.parametrize(
    ("budget", "thoughts"), [(0, None), (1, "ab"), (2, "abc"), (3, "abc"), (4, "abc"), (30, "abc")]
)
def test_a_thinking_budget_ends_the_thinking(thinker: World, budget: int, thoughts: str | None) -> None:
    answer = every_way(thinker, "x", max_tokens=40, thinking_token_budget=budget)
    assert (answer.reasoning, answer.content, answer.finish_reason) == (thoughts, '{"a":1}', "stop")
    assert answer.reasoning_tokens <= budget + len("</think>")


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize("prompt", ["x", "hello"])
def test_tol_04_prose_cannot_come_where_a_call_is_required(babbler: World, choice: Any, prompt: str) -> None:
    body: dict[str, Any] = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
    answer = every_way(babbler, prompt, max_tokens=120, **body)
    assert answer.finish_reason == "tool_calls" and answer.content is None and len(answer.calls) == 1
    name, arguments = answer.calls[0]
    assert json.loads(arguments) == ({"a": 1} if name == "f" else {})
    assert name == "f" or choice == "required"
    cut = every_way(babbler, prompt, max_tokens=5, **body)
    assert cut.finish_reason == "length" and cut.completion_tokens == 5


def test_samples_of_a_required_call_are_all_calls(babbler: World) -> None:
    body = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 120}
    choices = babbler.chat("x", n=4, temperature=1.0, seed=3, **body)["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["tool_calls"] * 4
    assert {choice["message"]["tool_calls"][0]["function"]["name"] for choice in choices} <= {"f", "g"}


def test_a_required_call_goes_before_structured_text_and_that_before_strict_tools(babbler: World) -> None:
    forced = every_way(babbler, "x", max_tokens=120, tools=TOOLS, tool_choice=NAMED, response_format=SCHEMA)
    assert [name for name, _ in forced.calls] == ["f"]
    strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
    answer = every_way(babbler, "x", max_tokens=60, tools=strict, response_format=SCHEMA)
    assert answer.calls == [] and answer.content is not None and json.loads(answer.content) == {"a": 1}


def test_a_schema_that_cannot_be_enforced_is_refused_with_its_tool(babbler: World) -> None:
    for schema in ({"type": "object", "properties": {"a": {"type": "strng"}}}, {"properties": {"a": {"pattern": "["}}}):
        tools = [TOOLS[0], {"type": "function", "function": {"name": "h", "parameters": schema}}]
        for stream in (False, True):
            body = {"messages": [{"role": "user", "content": "x"}], "tools": tools, "stream": stream}
            refused = assert_refused(babbler.post("/v1/chat/completions", tool_choice="required", **body), 400, "tools")
            assert "(at /properties/a of the schema), which begins with" in refused["message"]
    assert babbler.chat("x", tools=tools)["choices"]


def test_a_budget_for_a_model_that_does_not_think_is_refused(babbler: World) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "thinking_token_budget": 5}
    assert_refused(babbler.post("/v1/chat/completions", **body), 400, "thinking_token_budget")


def test_the_answer_of_an_ordinary_request_is_as_before(thinker: World) -> None:
    answer = every_way(thinker, "p", max_tokens=60, chat_template_kwargs={"thinking": False})
    assert answer == Answer("It is sunny, my friend, and warm.", None, [], "stop", answer.completion_tokens, 0)


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def test_allowed_tools_are_the_only_ones_the_model_is_told_of(caller: World) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    length = caller.chat(tools=[named], max_tokens=1)["usage"]["prompt_tokens"]
    answer = caller.chat(tools=[*TOOLS, named], tool_choice=allowed("auto", "get_weather"), max_tokens=400)
    assert answer["usage"]["prompt_tokens"] == length
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "get_weather"


@pytest.mark.parametrize("name", ["f", "g"])
def test_allowed_tools_that_are_required_are_called_and_no_other(babbler: World, name: str) -> None:
    answer = every_way(babbler, "x", max_tokens=120, tools=TOOLS, tool_choice=allowed("required", name))
    assert {called for called, _ in answer.calls} == {name}
    flat = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": name}]}
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    body = {"input": "x", "tools": tools, "tool_choice": flat, "temperature": 0, "max_output_tokens": 120}
    calls = [item for item in babbler.ok("/v1/responses", **body)["output"] if item["type"] == "function_call"]
    assert calls and {call["name"] for call in calls} == {name}


@pytest.mark.parametrize(
    "wrong",
    [
        allowed("auto", "h"),
        allowed("auto"),
        allowed("none", "f"),
        {"type": "allowed_tools", "mode": "auto", "tools": [NAMED]},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ["f"]}},
    ],
)
def test_allowed_tools_that_are_malformed_or_unknown_are_refused(babbler: World, wrong: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "tool_choice": wrong}
    assert_refused(babbler.post("/v1/chat/completions", **body), param="tool_choice")


def tool(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **fields}}


@pytest.mark.parametrize("fields", [{}, {"parameters": {}}, {"parameters": {"type": "object", "properties": {}}}])
@pytest.mark.parametrize("choice", [NAMED, "required"])
def test_a_tool_without_parameters_gets_no_arguments(babbler: World, fields: dict[str, Any], choice: Any) -> None:
    for seed in range(3):
        body = {"tools": [tool(**fields)], "tool_choice": choice, "temperature": 2, "seed": seed, "max_tokens": 99}
        (call,) = babbler.chat("x", parallel_tool_calls=False, **body)["choices"][0]["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {}


@pytest.mark.parametrize(("strict", "choice"), [(False, NAMED), (False, "required"), (True, "auto")])
def test_a_tool_whose_arguments_are_no_object_is_refused_by_name(babbler: World, strict: bool, choice: Any) -> None:
    tools = [tool(parameters={"type": "string"}, strict=strict)]
    body = {"messages": [{"role": "user", "content": "x"}], "tools": tools, "tool_choice": choice}
    message = assert_refused(babbler.post("/v1/chat/completions", **body), 400, "tools")["message"]
    assert "'f'" in message and "'string'" in message and "arguments are an object" in message
