"""Run by the Python of the clients' environment: `litellm` against a server (URL, model)."""

import json
import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # fetch nothing

import litellm

URL, MODEL = sys.argv[1:3]
USER = [{"role": "user", "content": "hi"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


def ask(provider: str = "openai", **fields: Any) -> Any:
    base = {"openai": f"{URL}/v1", "anthropic": URL}[provider]
    return litellm.completion(
        model=f"{provider}/{MODEL}", api_base=base, api_key="secret", messages=USER, max_tokens=200, **fields
    )


def chat() -> None:
    message = ask().choices[0].message
    assert message.content.startswith("Let me look.") and message.reasoning_content == "hmm, is it?", message


def tools() -> None:
    (call,) = ask(tools=TOOLS).choices[0].message.tool_calls
    assert call.function.name == "get_weather" and json.loads(call.function.arguments)["city"] == "Paris", call


def stream() -> None:
    whole = ask(tools=TOOLS)
    chunks = list(ask(tools=TOOLS, stream=True, stream_options={"include_usage": True}))
    built = litellm.stream_chunk_builder(chunks, messages=USER)
    assert built.choices[0].message.content == whole.choices[0].message.content
    (call,) = built.choices[0].message.tool_calls
    assert call.function.arguments == whole.choices[0].message.tool_calls[0].function.arguments
    assert built.choices[0].finish_reason == "tool_calls"


def structured_output() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    content = ask(response_format=wanted).choices[0].message.content
    assert set(json.loads(content)) == {"ok"}, content


def anthropic_form() -> None:
    message = ask("anthropic", tools=TOOLS).choices[0].message
    assert message.content.startswith("Let me look."), message
    assert json.loads(message.tool_calls[0].function.arguments)["city"] == "Paris", message


def errors() -> None:
    for fields, kind in (({"temperature": -1}, litellm.BadRequestError), ({"n": 0}, litellm.BadRequestError)):
        try:
            ask(**fields)
        except kind:
            continue
        raise AssertionError(fields)


for check in (chat, tools, stream, structured_output, anthropic_form, errors):
    check()
    print(check.__name__, "passed")
