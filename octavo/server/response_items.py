"""Fields of the responses API, and its items as messages of the chat form. Knows no engine and no store."""

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field

from octavo.errors import ClientError, UnsupportedError
from octavo.server.requests import SAMPLING_FIELDS, Body, ChatRequest, Int, SamplingBody

Item = dict[str, Any]

INCLUDABLE = ("message.output_text.logprobs", "reasoning.encrypted_content")
"""What `include` may ask for. Thinking is sent in plain, so its encrypted form is never needed."""

SAME_NAME = (
    *SAMPLING_FIELDS, "chat_template_kwargs", "parallel_tool_calls", "priority", "cache_salt", "model",
    "stream_interval", "return_metrics",
)  # fmt: skip
"""Fields that the chat form has too."""


class TextFormat(Body):
    """What the text must match."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None
    description: str | None = None


class TextConfig(Body):
    """Form of the text."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningConfig(Body):
    """How much to think."""

    effort: str | None = None
    summary: str | None = None


class ResponsesRequest(SamplingBody):
    """Body of POST /v1/responses."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool = True
    background: bool = False
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    max_tool_calls: Int | None = Field(None, ge=1)
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    max_output_tokens: Int | None = Field(None, ge=1)
    include: list[str] = []
    truncation: Literal["auto", "disabled"] = "disabled"
    top_logprobs: Int | None = Field(None, ge=0, le=20)
    metadata: dict[str, str] | None = Field(None, max_length=16)
    service_tier: str | None = None
    user: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


def check_responses(body: ResponsesRequest) -> None:
    """Refuse what is not there.

    Raises:
        ClientError: `param` names the field.
    """
    extra = body.model_extra or {}
    for name, way_out in (("prompt", "send the text itself"), ("conversation", "use previous_response_id")):
        if extra.get(name) is not None:
            raise UnsupportedError(f"{name} is not supported by this version; {way_out}", param=name)
    if body.truncation == "auto":
        raise UnsupportedError("truncation auto is not supported; send fewer items", param="truncation")
    for wanted in body.include:
        if wanted not in INCLUDABLE:
            raise UnsupportedError(
                f"include has {wanted[:80]!r}; this server can include {', '.join(INCLUDABLE)}", param="include"
            )
    if body.background and not body.store:
        raise ClientError("background needs store: true, or nobody could fetch the answer", param="background")
    if body.background and body.stream:
        raise UnsupportedError("a background response is not streamed; fetch it when it is done", param="background")


def own_field(body: ResponsesRequest, param: str | None) -> str | None:
    """The field of this form for one of the chat form, which is all that the code below knows."""
    if param is not None and param.startswith("structured_outputs") and body.structured_outputs is None:
        return "tools" if body.text is None or body.text.format is None else "text.format"
    return {"prompt": "input", "messages": "input", "max_tokens": "max_output_tokens"}.get(param or "", param)


def input_items(given: str | list[dict[str, Any]]) -> list[Item]:
    """The input as items."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": given}]}]
    return [{"type": "message", **item} if "type" not in item else item for item in given]


def to_chat(body: ResponsesRequest, items: Iterable[Item]) -> ChatRequest:
    """The request in the chat form.

    Args:
        items: the whole conversation.

    Raises:
        ClientError: an item or tool of a kind that is not known here; `param` names the field.
    """
    messages = [{"role": "system", "content": body.instructions}] if body.instructions else []
    messages += _messages(items)
    if not messages:
        raise ClientError("input is empty; send some text", param="input")
    fields: dict[str, Any] = {"messages": messages, **{name: getattr(body, name) for name in SAME_NAME}}
    fields |= _tools(body) | _text_format(body)
    fields["max_completion_tokens"] = body.max_output_tokens
    if body.reasoning is not None:
        fields["reasoning_effort"] = body.reasoning.effort
    if body.top_logprobs is not None or INCLUDABLE[0] in body.include:
        fields |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    return ChatRequest.model_validate(fields)


def _messages(items: Iterable[Item]) -> list[dict[str, Any]]:
    """Thinking, text and calls that follow each other are one turn of the assistant."""
    messages: list[dict[str, Any]] = []

    def turn() -> dict[str, Any]:
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        return messages[-1]

    for place, item in enumerate(items):
        kind = item.get("type")
        if kind == "message" and item.get("role") == "assistant":
            if (said := turn())["content"] or "tool_calls" in said:
                messages.append({"role": "assistant", "content": ""})
            messages[-1]["content"] = item.get("content") or ""
        elif kind == "message":
            messages.append({"role": item.get("role"), "content": item.get("content")})
        elif kind == "reasoning":
            parts = item.get("content") or item.get("summary") or []
            text = "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
            if turn()["content"] or "tool_calls" in messages[-1]:
                messages.append({"role": "assistant", "content": ""})
            messages[-1]["reasoning_content"] = text
        elif kind == "function_call":
            function = {"name": _string(place, item, "name"), "arguments": _string(place, item, "arguments")}
            call = {"id": _string(place, item, "call_id"), "type": "function", "function": function}
            turn().setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            call_id = _string(place, item, "call_id")
            messages.append({"role": "tool", "tool_call_id": call_id, "content": item.get("output") or ""})
        else:
            raise UnsupportedError(
                f"input[{place}] has the type {str(kind)[:80]!r}; this version reads message, reasoning, function_call "
                "and function_call_output",
                param="input",
            )
    return messages


def _string(place: int, item: Item, name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise ClientError(f"input[{place}].{name} must be a string", param="input")
    return value


def _tools(body: ResponsesRequest) -> dict[str, Any]:
    tools = [_tool(place, tool) for place, tool in enumerate(body.tools or ())]
    choice: Any = body.tool_choice
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        listed = choice.get("tools")
        named = [_tool(place, tool) for place, tool in enumerate(listed)] if isinstance(listed, list) else None
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": named}}
    elif isinstance(choice, dict):
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    if not tools and choice in ("auto", "none"):
        choice = None
    return {"tools": tools or None, "tool_choice": choice}


def _tool(place: int, tool: Any) -> dict[str, Any]:
    tool = tool if isinstance(tool, dict) else {}
    if tool.get("type") != "function":
        raise UnsupportedError(
            f"tools[{place}] has the type {str(tool.get('type'))[:80]!r}, which the server would have to run; send "
            "function tools, and run them yourself",
            param="tools",
        )
    known = {name: tool[name] for name in ("name", "description", "parameters", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": known}


def _text_format(body: ResponsesRequest) -> dict[str, Any]:
    wanted = None if body.text is None else body.text.format
    if wanted is None or wanted.type == "text":
        return {}
    if wanted.type == "json_object":
        return {"response_format": {"type": "json_object"}}
    if wanted.schema_ is None:
        raise ClientError("text.format of type json_schema needs a schema", param="text.format.schema")
    schema = {"name": wanted.name or "output", "schema": wanted.schema_, "strict": wanted.strict is not False}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}
