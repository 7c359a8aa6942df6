"""Fault cases of the class "tools", and thinking, over HTTP: each in one answer and streamed with 1 to 50 tokens per
event. The model writes what its script says; the format is found in the chat template.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from octavo.config import ServerConfig
from octavo.errors import ConfigError
from octavo.server.turns import check_formats
from tests.script_model import write_script_model
from tests.server.conftest import EMOJI_PIECES
from tests.server.turns import Answer, distinct_pieces, every_way, joined_answer, whole_answer
from tests.server.world import World, assert_refused, serve_app

TEMPLATE = "{# <tool_call> <think> </think> #}{% for message in messages %}{{ message.content }}{% endfor %}"
ODD = '{"id":42,"s":"a }{ </tool_call> \\"q\\"","o":{"k":[1,{"z":null}]}}'
WIDE = '{"city":"Münster","note":"中文😀"}'
SCRIPTS = {
    "a": f'Sure!<tool_call>\n{{"name":"f","arguments":{ODD}}}\n</tool_call>',
    "b": f'<tool_call>\n{{"name": "f", "arguments": {WIDE}}}</tool_call>',
    "c": '<tool_call>{"arguments": {"x": 1}, "name": "f"}\n</tool_call>\n\t<tool_call>  {"name":  "g"}</tool_call>\n\n',
    "d": "It is sunny today.",
    "e": '<think>\n I wonder; \n</think>\n\nHello, <tool_call>[{"name":   "g", "arguments":{}}]  </tool_call>',
    "f": "Say <tool_call> or {name: f} and so on </tool_call>!",
    "g": "<think>I have no end, <tool_call> neither",
    "h": '{"name":"f","arguments":   {"x": [oops]}}',
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("f", "g")
]


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A model that says SCRIPTS by the last letter of the prompt, and an emoji in parts after "!"."""
    used: set[bytes] = set()
    scripts = {start: distinct_pieces(text, used, seed) for seed, (start, text) in enumerate(SCRIPTS.items())}
    folder = write_script_model(
        tmp_path_factory.mktemp("tools"),
        ["main", "script"],
        started_by={**scripts, "!": EMOJI_PIECES},
        chat_template=TEMPLATE,
    )
    with serve_app(folder) as world:
        yield world


def ask(world: World, start: str, **body: Any) -> Answer:
    return every_way(world, start, **{"max_tokens": 200, "tools": TOOLS, **body})


def test_tol_01_a_call_with_braces_quotes_and_tags_in_it(tools: World) -> None:
    answer = ask(tools, "a")
    assert answer.content == "Sure!"
    assert answer.calls == [("f", ODD)]
    assert answer.finish_reason == "tool_calls"
    assert json.loads(ODD) == {"id": 42, "s": 'a }{ </tool_call> "q"', "o": {"k": [1, {"z": None}]}}


def test_tol_03_characters_of_several_tokens_in_arguments_come_once_and_unescaped(tools: World) -> None:
    answer = ask(tools, "b")
    assert answer.calls == [("f", WIDE)] and answer.content is None
    assert answer.finish_reason == "tool_calls"


def test_two_calls_and_only_one_without_parallel_tool_calls(tools: World) -> None:
    assert ask(tools, "c").calls == [("f", '{"x": 1}'), ("g", "{}")]
    answer = ask(tools, "c", parallel_tool_calls=False)
    assert answer.calls == [("f", '{"x": 1}')] and answer.finish_reason == "tool_calls"


@pytest.mark.parametrize("body", [{}, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "auto"}])
def test_prose_is_prose(tools: World, body: dict[str, Any]) -> None:
    answer = every_way(tools, "d", max_tokens=200, **body)
    assert answer == Answer(SCRIPTS["d"], None, [], "stop", answer.completion_tokens, 0)


def test_thinking_text_and_a_call_in_one_answer(tools: World) -> None:
    answer = ask(tools, "e")
    assert (answer.reasoning, answer.content, answer.calls) == ("I wonder;", "Hello,", [("g", "{}")])
    assert answer.finish_reason == "tool_calls"
    assert 0 < answer.reasoning_tokens < answer.completion_tokens
    hidden = ask(tools, "e", include_reasoning=False)
    assert hidden.reasoning is None and hidden.content == "Hello,"
    assert hidden.reasoning_tokens == answer.reasoning_tokens


def test_thinking_that_has_no_end_is_all_thinking(tools: World) -> None:
    answer = ask(tools, "g")
    assert answer.reasoning == "I have no end, <tool_call> neither" and answer.content is None
    assert answer.finish_reason == "stop" and answer.reasoning_tokens == answer.completion_tokens - 1  # EOS


@pytest.mark.parametrize("name", ["enable_thinking", "thinking"])
def test_with_thinking_off_all_text_is_content(tools: World, name: str) -> None:
    answer = ask(tools, "g", chat_template_kwargs={name: False})
    assert answer.reasoning is None and answer.content == SCRIPTS["g"] and answer.reasoning_tokens == 0


def test_what_is_no_call_stays_in_the_text(tools: World) -> None:
    assert ask(tools, "f") == Answer(SCRIPTS["f"], None, [], "stop", ask(tools, "f").completion_tokens)


@pytest.mark.parametrize("start", ["a", "b", "c"])
def test_tol_04_none_gives_no_calls_and_the_text_as_it_is(tools: World, start: str) -> None:
    for body in ({"tools": TOOLS, "tool_choice": "none"}, {}):
        answer = every_way(tools, start, max_tokens=200, **body)
        assert answer.calls == [] and answer.content == SCRIPTS[start] and answer.finish_reason == "stop"


def test_tol_04_a_call_that_max_tokens_cuts_ends_with_length(tools: World) -> None:
    whole = ask(tools, "b").calls[0][1]
    seen = set()
    for limit in range(1, 25):
        answer = ask(tools, "b", max_tokens=limit)
        assert answer.finish_reason == ("length" if answer.completion_tokens == limit else "tool_calls")
        for _, arguments in answer.calls:
            assert whole.startswith(arguments.rstrip("\ufffd"))
            seen.add(arguments)
    assert len(seen) > 3


def test_tol_04_wrong_tools_and_choices_are_refused(tools: World) -> None:
    unknown = {"type": "function", "function": {"name": "h"}}
    for wrong, param in (
        ({"tools": []}, "tools"),
        ({"tools": TOOLS, "tool_choice": unknown}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}]}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
    ):
        for stream in (False, True):
            body = {"messages": [{"role": "user", "content": "a"}], "stream": stream, **wrong}
            assert_refused(tools.post("/v1/chat/completions", **body), 400, param)


@pytest.mark.parametrize(("max_tokens", "text"), [(1, "\ufffd"), (2, "\ufffd"), (3, "\U0001f600")])
def test_str_02_with_tools_on_a_cut_character_is_one_replacement(tools: World, max_tokens: int, text: str) -> None:
    answer = ask(tools, "!", max_tokens=max_tokens)
    assert answer.content == text and answer.finish_reason == "length" and answer.completion_tokens == max_tokens
    assert tools.http.get("/health").status_code == 200


def test_a_stop_string_is_found_in_calls_and_thinking_too(tools: World) -> None:
    answer = ask(tools, "a", stop=['"s"'])
    assert answer.calls == [("f", '{"id":42,')] and answer.finish_reason == "stop"
    assert ask(tools, "e", stop=["onder"]).reasoning == "I w"
    assert ask(tools, "e", stop=["</tool_call>"]).finish_reason == "tool_calls"


def test_logprobs_are_those_of_all_tokens_whatever_they_say(tools: World) -> None:
    body: dict[str, Any] = {"logprobs": True, "max_tokens": 200}
    plain = tools.chat("e", **body)["choices"][0]["logprobs"]
    assert tools.chat("e", tools=TOOLS, **body)["choices"][0]["logprobs"] == plain
    chunks = tools.stream_chat("e", tools=TOOLS, stream_interval=3, **body)
    streamed = [entry for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]
                for entry in choice["logprobs"]["content"]]  # fmt: skip
    assert streamed == plain["content"]
    assert bytes(byte for entry in streamed for byte in entry["bytes"]).decode() == SCRIPTS["e"]


def test_samples_of_one_request_are_read_apart(tools: World) -> None:
    body = tools.chat("e", tools=TOOLS, n=3, max_tokens=200)
    messages = [choice["message"] for choice in body["choices"]]
    assert [message["reasoning"] for message in messages] == ["I wonder;"] * 3
    assert len({message["tool_calls"][0]["id"] for message in messages}) == 3
    one = whole_answer(tools.chat("e", tools=TOOLS, max_tokens=200)).reasoning_tokens
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 3 * one


def test_a_model_of_no_known_format_calls_with_bare_json(tools: World, tmp_path: Path) -> None:
    text = '{"name": "f", "parameters": {"x": 1}}'
    folder = write_script_model(tmp_path, distinct_pieces(text, set(), 1), chat_template="{{ messages[0].content }}")
    with serve_app(folder) as world:
        assert ask(world, "x") == Answer(
            None, None, [("f", '{"x": 1}')], "tool_calls", ask(world, "x").completion_tokens
        )
        assert every_way(world, "x", max_tokens=99).content == text


def test_the_formats_can_be_chosen(tmp_path: Path) -> None:
    text = 'abc</think>[TOOL_CALLS]f[ARGS]{"x":  "[ARGS]"}'
    folder = write_script_model(tmp_path, distinct_pieces(text, set(), 5), chat_template=TEMPLATE)
    server = ServerConfig(tool_call_parser="mistral", reasoning_parser="deepseek_r1", disable_log_stats=True)
    with serve_app(folder, server) as world:
        answer = ask(world, "x")
        assert (answer.reasoning, answer.content, answer.calls) == ("abc", None, [("f", '{"x":  "[ARGS]"}')])
        made = world.chat("x", tools=TOOLS, max_tokens=99)["choices"][0]["message"]["tool_calls"][0]["id"]
        assert len(made) == 9  # as Mistral's templates want it


def test_calls_stay_in_the_text_if_the_server_is_told_so(tmp_path: Path) -> None:
    text = '<tool_call>{"name": "f"}</tool_call>'
    folder = write_script_model(tmp_path, distinct_pieces(text, set(), 5), chat_template=TEMPLATE)
    with serve_app(folder, ServerConfig(enable_auto_tool_choice=False, disable_log_stats=True)) as world:
        assert ask(world, "x").content == text


@pytest.mark.parametrize("wrong", [{"tool_call_parser": "hermess"}, {"reasoning_parser": "qwen"}])
def test_a_wrong_name_of_a_format_stops_the_start_and_names_the_known_ones(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"--\w+-.*known: .*(hermes|qwen3)"):
        check_formats(ServerConfig(**wrong))


def test_the_official_client_puts_streamed_calls_together(tools: World) -> None:
    with openai.OpenAI(base_url=f"{tools.url}/v1", api_key="any", max_retries=0) as client:
        asked: Any = {"model": "test", "messages": [{"role": "user", "content": "c"}], "tools": TOOLS, "max_tokens": 99}
        whole = client.chat.completions.create(**asked).choices[0]
        with client.chat.completions.stream(**asked) as stream:
            streamed = stream.get_final_completion().choices[0]
    for choice in (whole, streamed):
        assert choice.finish_reason == "tool_calls" and choice.message.content in (None, "")
        calls = [
            (call.function.name, call.function.arguments)
            for call in choice.message.tool_calls or []
            if call.type == "function"
        ]
        assert calls == [("f", '{"x": 1}'), ("g", "{}")]


def test_usage_tells_reasoning_tokens_all_along(tools: World) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = tools.stream_chat("e", tools=TOOLS, max_tokens=200, stream_options=options)
    counts = [chunk["usage"]["completion_tokens_details"]["reasoning_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == joined_answer(chunks).reasoning_tokens
