"""/v1/messages and /v1/messages/count_tokens: Anthropic's form, its events in their order, its errors."""

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.config import ServerConfig
from tests.server.conftest import ARGUMENTS, SENTENCE, TEXT, THOUGHT
from tests.server.world import World, serve_app, strict_json

PATH = "/v1/messages"
USER = [{"role": "user", "content": "hi"}]
TOOL = {
    "name": "get_weather",
    "description": "Weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def ask(world: World, messages: Any = None, **body: Any) -> Any:
    return world.ok(
        PATH, **{"model": "test", "max_tokens": 300, "messages": messages or USER, "temperature": 0, **body}
    )


def events(world: World, **body: Any) -> list[Any]:
    return world.named_events(PATH, **{"model": "test", "max_tokens": 300, "messages": USER, "temperature": 0, **body})


def accumulated(found: list[Any]) -> Any:
    """What a client makes of the events, checking their order."""
    assert [event["type"] for event in found[:2]] == ["message_start", "ping"]
    assert [event["type"] for event in found[-2:]] == ["message_delta", "message_stop"]
    message = found[0]["message"]
    assert message["content"] == [] and message["stop_reason"] is None
    current: Any = None
    for event in found[2:-2]:
        assert event["index"] == len(message["content"]) - (0 if event["type"] == "content_block_start" else 1)
        if event["type"] == "content_block_start":
            assert current is None
            current = event["content_block"] | {"json": ""}
            message["content"].append(current)
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            field = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature",
                     "input_json_delta": "json"}[delta["type"]]  # fmt: skip
            current[field] += delta["partial_json" if field == "json" else field]
        else:
            text = current.pop("json")
            if current["type"] == "tool_use":
                current["input"] = json.loads(text)
            current = None
    assert current is None
    message |= found[-2]["delta"]
    message["usage"] |= found[-2]["usage"]
    return message


def test_a_text_answer(script: World) -> None:
    message = ask(script)
    assert message["type"] == "message" and message["role"] == "assistant" and message["model"] == "test"
    assert message["id"].startswith("msg")
    assert message["content"] == [{"type": "text", "text": SENTENCE}]
    assert message["stop_reason"] == "end_turn" and message["stop_sequence"] is None
    usage = message["usage"]
    assert usage["output_tokens"] == 6 and usage["cache_creation_input_tokens"] == 0
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == script.chat()["usage"]["prompt_tokens"]


def test_cached_tokens_are_told_apart(script: World) -> None:
    messages = [{"role": "user", "content": "a long beginning that fills some pages of the cache, said twice"}]
    first, second = ask(script, messages)["usage"], ask(script, messages)["usage"]
    assert first["cache_read_input_tokens"] < 32 <= second["cache_read_input_tokens"]
    assert sum(first.values()) == sum(second.values())


def test_a_stream_joins_to_the_whole_answer(script: World) -> None:
    for body in ({}, {"max_tokens": 2}, {"stop_sequences": ["brown"]}):
        whole, streamed = ask(script, **body), accumulated(events(script, **body))
        for message in (whole, streamed):
            message.pop("id")
            message["usage"].pop("cache_read_input_tokens")
            message["usage"].pop("input_tokens")
        assert streamed == whole


def test_why_it_ended(script: World) -> None:
    assert ask(script, max_tokens=2)["stop_reason"] == "max_tokens"
    stopped = ask(script, stop_sequences=["x", "brown"])
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "brown")
    assert stopped["content"] == [{"type": "text", "text": "The quick "}]


def test_output_in_a_schema(varied: World) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    config = {"format": {"type": "json_schema", "schema": schema}}
    message = ask(varied, output_config=config)
    assert set(json.loads(message["content"][0]["text"])) == {"ok"} and message["stop_reason"] == "end_turn"
    assert accumulated(events(varied, output_config=config))["content"] == message["content"]


def test_max_tokens_beyond_the_context_is_what_fits(varied: World) -> None:
    message = ask(varied, max_tokens=32_000, temperature=1, top_k=50)
    assert message["stop_reason"] in ("end_turn", "model_context_window_exceeded")


def test_thinking_text_and_a_call_are_blocks(caller: World) -> None:
    message = ask(caller, tools=[TOOL])
    thinking, text, call = message["content"]
    assert thinking["type"] == "thinking" and thinking["thinking"] == THOUGHT and thinking["signature"]
    assert text == {"type": "text", "text": TEXT}
    assert call["type"] == "tool_use" and call["name"] == "get_weather" and call["input"] == ARGUMENTS
    assert call["id"] and message["stop_reason"] == "tool_use"
    streamed = accumulated(events(caller, tools=[TOOL]))
    streamed["content"][2]["id"] = call["id"]
    assert streamed["content"] == message["content"] and streamed["stop_reason"] == "tool_use"


def test_a_call_that_is_cut_has_no_input(caller: World) -> None:
    whole = ask(caller, tools=[TOOL])["usage"]["output_tokens"]
    for length in range(1, whole - 1):
        message = ask(caller, tools=[TOOL], max_tokens=length)
        assert message["stop_reason"] == "max_tokens"
        assert all(block.get("input", {}) in ({}, ARGUMENTS) for block in message["content"])


def test_the_conversation_of_an_agent_reaches_the_template(caller: World) -> None:
    answer = ask(caller, tools=[TOOL])
    messages = [
        *USER,
        {"role": "assistant", "content": answer["content"]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": answer["content"][2]["id"],
                 "content": [{"type": "text", "text": "sunny"}], "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "and now?"},
            ],
        },
    ]  # fmt: skip
    system = [{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, {"type": "text", "text": "Be brief."}]
    count = caller.ok(f"{PATH}/count_tokens", model="test", messages=messages, system=system, tools=[TOOL])
    function = {"name": TOOL["name"], "parameters": TOOL["input_schema"], "description": TOOL["description"]}
    rendered = caller.ok(
        "/tokenize",
        tools=[{"type": "function", "function": function}],
        messages=[
            {"role": "system", "content": "Be brief."},
            *USER,
            {
                "role": "assistant",
                "content": TEXT,
                "reasoning_content": THOUGHT,
                "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": TOOL["name"], "arguments": ARGUMENTS}}
                ],
            },
            {"role": "tool", "content": "sunny"},
            {"role": "user", "content": "and now?"},
        ],
    )
    assert count == {"input_tokens": rendered["count"]}
    assert ask(caller, messages, system=system, tools=[TOOL])["usage"]["input_tokens"] > 0


def test_an_answer_goes_on_where_the_last_message_ends(script: World) -> None:
    count = script.ok(f"{PATH}/count_tokens", model="test", messages=[*USER, {"role": "assistant", "content": "So"}])
    open_turn = script.ok("/tokenize", messages=[*USER, {"role": "assistant", "content": "So"}],
                          continue_final_message=True)  # fmt: skip
    assert count["input_tokens"] == open_turn["count"]
    assert ask(script, [*USER, {"role": "assistant", "content": "So"}])["content"][0]["text"] == SENTENCE


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "robot"),
        ({"messages": [{"role": "user", "content": 5}]}, "content"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id"),
        ({"messages": [{"role": "user", "content": "x" * 3000}]}, "512"),
        ({"system": [{"type": "audio"}]}, "audio"),
        ({"temperature": -1}, "temperature"),
        ({"stop_sequences": [""]}, "stop"),
        ({"tools": [{"name": "x", "type": "web_search_20250305"}]}, "web_search"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "x"}, "tools": [TOOL]}, "x"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "budget_tokens"),
    ],
)
def test_errors_are_in_anthropics_form(script: World, changed: dict[str, Any], named: str) -> None:
    body = {"model": "test", "max_tokens": 5, "messages": USER, **changed}
    for stream in (False, True):
        response = script.post(PATH, **body, stream=stream)
        answer = strict_json(response.content)
        assert response.status_code == 400 and answer["type"] == "error", answer
        assert answer["error"]["type"] == "invalid_request_error" and named in answer["error"]["message"], answer


def test_an_unknown_model_is_not_found(script: World) -> None:
    response = script.post(PATH, model="claude", max_tokens=5, messages=USER)
    assert response.status_code == 404 and response.json()["error"]["type"] == "not_found_error"


def test_the_key_may_come_in_anthropics_header(script_folder: Path) -> None:
    with serve_app(script_folder, ServerConfig(api_key=("secret",), disable_log_stats=True)) as world:
        body = {"model": "test", "max_tokens": 5, "messages": USER}
        assert world.http.post(PATH, json=body, headers={"x-api-key": "secret"}).status_code == 200
        assert world.http.post(PATH, json=body, headers={"x-api-key": "wrong"}).status_code == 401
