"""Run by the Python of the clients' environment: the official `anthropic` client against a server (URL, model)."""

import sys
from typing import Any

import anthropic

URL, MODEL = sys.argv[1:3]
USER: Any = [{"role": "user", "content": "hi"}]
TOOLS: Any = [
    {
        "name": "get_weather",
        "description": "Weather of a city",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
]


def chat(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model=MODEL, max_tokens=200, messages=USER)
    kinds = [block.type for block in message.content]
    assert kinds == ["thinking", "text"] and message.stop_reason == "end_turn", message
    assert message.content[1].text.startswith("Let me look."), message
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) > 0


def tools(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model=MODEL, max_tokens=200, messages=USER, tools=TOOLS)
    assert message.stop_reason == "tool_use", message
    call = message.content[-1]
    assert call.type == "tool_use" and call.name == "get_weather" and call.input == {"city": "Paris", "days": 2}, call
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    history: Any = [*USER, message.to_param(), {"role": "user", "content": [result]}]
    assert client.messages.create(model=MODEL, max_tokens=200, messages=history, tools=TOOLS).content
    count = client.messages.count_tokens(model=MODEL, messages=history, tools=TOOLS)
    assert count.input_tokens > client.messages.count_tokens(model=MODEL, messages=USER, tools=TOOLS).input_tokens


def stream(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(model=MODEL, max_tokens=200, messages=USER, tools=TOOLS)
    with client.messages.stream(model=MODEL, max_tokens=200, messages=USER, tools=TOOLS) as events:
        kinds = [event.type for event in events]
        final = events.get_final_message()
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    made, expected = (
        [block.model_dump(include={"type", "text", "thinking", "name", "input"}) for block in message.content]
        for message in (final, whole)
    )
    assert made == expected and final.stop_reason == "tool_use", (made, expected)
    with client.messages.stream(model=MODEL, max_tokens=200, messages=USER) as events:
        assert "".join(events.text_stream).startswith("Let me look.")


def errors(client: anthropic.Anthropic) -> None:
    for wrong, kind in (
        ({"model": "nobody"}, anthropic.NotFoundError),
        ({"stop_sequences": [""]}, anthropic.BadRequestError),
    ):
        fields: Any = {"model": MODEL, "max_tokens": 5, "messages": USER, **wrong}
        for call in (client.messages.create, lambda **given: client.messages.create(stream=True, **given)):
            try:
                call(**fields)
            except kind as err:
                assert err.body["type"] == "error" and err.body["error"]["message"], err.body  # type: ignore[index]
            else:
                raise AssertionError(wrong)


with anthropic.Anthropic(base_url=URL, api_key="secret", max_retries=0) as made:
    for check in (chat, tools, stream, errors):
        check(made)
        print(check.__name__, "passed")
