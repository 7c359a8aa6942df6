"""Anthropic's Messages API: its fields, as a chat request; its answers and events. Knows no engine."""

import json
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from octavo.errors import ClientError, UnsupportedError
from octavo.server.blocks import Block, BlockReader, Closed, Grew, Opened
from octavo.server.chat import TurnNews
from octavo.server.requests import Body, ChatRequest, Float, Int
from octavo.server.responses import Usage

SIGNATURE = "unsigned"
"""Clients keep it with the thinking and send it back; nothing here depends on it."""

BILLING_HEADER = "x-anthropic-billing-header:"
"""A system block that some clients send, different in every request: it would keep prompts from sharing a beginning."""

# ---------------------------------------------------------------- what is asked


class Tool(Body):
    """A tool of the client's own. Those that Anthropic runs have a type of their own and no schema."""

    name: str = Field(min_length=1, max_length=128)
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: Any = None


class ToolChoice(Body):
    """Whether a tool must be used."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Thinking(Body):
    """Whether the model thinks first."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Int | None = Field(None, ge=1024)
    display: str | None = None


class OutputFormat(Body):
    """What the text must match."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    """Effort and form."""

    effort: str | None = None
    format: OutputFormat | None = None


class CountRequest(Body):
    """Body of /v1/messages/count_tokens."""

    model: str
    messages: list[dict[str, Any]] = Field(min_length=1)
    system: str | list[dict[str, Any]] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: Any = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesRequest(CountRequest):
    """Body of /v1/messages."""

    max_tokens: Int = Field(ge=1)
    stop_sequences: list[str] | None = None
    stream: bool = False
    temperature: Float | None = None
    top_p: Float | None = None
    top_k: Int | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    return_metrics: bool = False


def to_chat(body: CountRequest) -> ChatRequest:
    """The same request in the chat form.

    Raises:
        ClientError: a block or tool of a kind that is not known here; `param` names the field.
    """
    messages = [*_system(body.system)]
    for place, message in enumerate(body.messages):
        messages += _messages(f"messages[{place}]", message)
    fields: dict[str, Any] = {"model": body.model, "messages": messages, **_tools(body)}
    if messages[-1]["role"] == "assistant":  # the answer goes on where it ends
        fields["continue_final_message"] = True
    variables = dict(body.chat_template_kwargs or {})
    if body.thinking is not None and body.thinking.type != "adaptive":
        variables.setdefault("enable_thinking", body.thinking.type == "enabled")
    if body.thinking is not None and body.thinking.type == "enabled":
        fields["thinking_token_budget"] = body.thinking.budget_tokens
    if variables:
        fields["chat_template_kwargs"] = variables
    config = body.output_config
    if config is not None and config.effort is not None:
        fields["reasoning_effort"] = config.effort
    if config is not None and config.format is not None:
        schema = {"name": "output", "strict": True, "schema": config.format.schema_}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    if isinstance(body, MessagesRequest):
        for name in ("max_tokens", "temperature", "top_p", "top_k", "return_metrics"):
            fields[name] = getattr(body, name)
        fields["stop"] = body.stop_sequences or None
    return ChatRequest.model_validate(fields)


def _system(system: str | list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    if not system:
        return []
    blocks = [{"type": "text", "text": system}] if isinstance(system, str) else system
    texts = [_text(f"system[{place}]", block) for place, block in enumerate(blocks)]
    kept = [text for text in texts if not text.startswith(BILLING_HEADER)]
    return [{"role": "system", "content": "\n".join(kept)}] if kept else []


def _messages(where: str, message: dict[str, Any]) -> list[dict[str, Any]]:
    """One message as those of the chat form: results of tools are messages of their own, before the rest."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise ClientError(f"{where}.role is {str(role)[:80]!r}; known: user, assistant, system", param="messages")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise ClientError(f"{where}.content must be a string or a list of blocks", param="messages")
    results: list[dict[str, Any]] = []
    rest: dict[str, Any] = {"role": role, "content": []}
    for place, block in enumerate(content):
        _add_block(f"{where}.content[{place}]", block, rest, results)
    said = rest["content"] or "tool_calls" in rest or "reasoning_content" in rest
    if not rest["content"]:
        rest["content"] = ""
    return [*results, rest] if said or not results else results


def _add_block(where: str, block: Any, message: dict[str, Any], results: list[dict[str, Any]]) -> None:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "tool_result":
        results.append({"role": "tool", "tool_call_id": _string(where, block, "tool_use_id"),
                        "content": _result(where, block.get("content"))})  # fmt: skip
    elif kind == "tool_use":
        function = {"name": _string(where, block, "name"), "arguments": json.dumps(block.get("input") or {})}
        call = {"id": _string(where, block, "id"), "type": "function", "function": function}
        message.setdefault("tool_calls", []).append(call)
    elif kind == "thinking":
        message["reasoning_content"] = message.get("reasoning_content", "") + _string(where, block, "thinking")
    elif kind == "redacted_thinking":
        pass  # nobody can read it
    else:
        message["content"].append({"type": "text", "text": _text(where, block)})


def _result(where: str, content: Any) -> str:
    """What a tool said."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise ClientError(f"{where}.content must be a string or a list of blocks", param="messages")
    return "\n".join(_text(f"{where}.content[{place}]", block) for place, block in enumerate(content))


def _text(where: str, block: Any) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "text":
        return _string(where, block, "text")
    source = block.get("source") if kind == "document" else None
    if isinstance(source, dict) and source.get("type") == "text":
        return _string(where, source, "data")
    raise UnsupportedError(
        f"{where} has the type {str(kind)[:80]!r}; this version reads text, thinking, tool_use, tool_result and "
        "documents of plain text",
        param=where.partition("[")[0],
    )


def _string(where: str, block: dict[str, Any], name: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise ClientError(f"{where}.{name} must be a string", param=where.partition("[")[0])
    return value


def _tools(body: CountRequest) -> dict[str, Any]:
    """The fields of the chat form that are about tools."""
    choice = body.tool_choice
    fields: dict[str, Any] = {}
    if body.tools:
        fields["tools"] = [_tool(place, tool) for place, tool in enumerate(body.tools)]
    if choice is None:
        return fields
    if choice.type == "tool" and not choice.name:
        raise ClientError("tool_choice of type tool needs a name", param="tool_choice.name")
    named = {"type": "function", "function": {"name": choice.name}}
    if fields or choice.type in ("any", "tool"):
        fields["tool_choice"] = {"auto": "auto", "any": "required", "none": "none", "tool": named}[choice.type]
    fields["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    return fields


def _tool(place: int, tool: Tool) -> dict[str, Any]:
    if tool.type not in (None, "custom") or tool.input_schema is None:
        raise UnsupportedError(
            f"tools[{place}], {tool.name[:80]!r}, is of the type {tool.type!r}, which the server would have to run; "
            "send tools with an input_schema, and run them yourself",
            param="tools",
        )
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


# ---------------------------------------------------------------- what is answered


class MessageWriter:
    """Writes one answer: as events while it comes, or whole once it has ended.

    Args:
        wanted_tokens: the request's `max_tokens`, for which the context may have had no room.
    """

    def __init__(self, message_id: str, model: str, wanted_tokens: int) -> None:
        self._id = message_id
        self._model = model
        self._wanted_tokens = wanted_tokens
        self._reader = BlockReader()
        self._begun = False
        self._last: TurnNews | None = None

    def events(self, news: TurnNews) -> Iterator[tuple[str, dict[str, Any]]]:
        """Name and data of each event that the news make."""
        self._last = news
        if not self._begun:
            self._begun = True
            yield "message_start", {"message": self._message([], None, None, _usage(news.usage) | {"output_tokens": 0})}
            yield "ping", {}
        for step in self._reader.read(news.events, ended=news.finish_reason is not None):
            match step:
                case Opened(block):
                    yield "content_block_start", {"index": block.index, "content_block": _empty(block)}
                case Grew(block, text):
                    yield "content_block_delta", {"index": block.index, "delta": _delta(block, text)}
                case Closed(block):
                    if block.kind == "reasoning":
                        delta = {"type": "signature_delta", "signature": SIGNATURE}
                        yield "content_block_delta", {"index": block.index, "delta": delta}
                    yield "content_block_stop", {"index": block.index}
        if news.finish_reason is not None:
            reason, sequence = self._stop()
            yield "message_delta", {
                "delta": {"stop_reason": reason, "stop_sequence": sequence}, "usage": _usage(news.usage), **_times(news)
            }  # fmt: skip
            yield "message_stop", {}

    def message(self) -> dict[str, Any]:
        """The whole answer, once it has ended."""
        assert self._last is not None
        content = [_whole(block) for block in self._reader.blocks]
        return self._message(content, *self._stop(), _usage(self._last.usage)) | _times(self._last)

    def _message(
        self, content: list[dict[str, Any]], reason: str | None, sequence: str | None, usage: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "id": self._id, "type": "message", "role": "assistant", "model": self._model, "content": content,
            "stop_reason": reason, "stop_sequence": sequence, "usage": usage,
        }  # fmt: skip

    def _stop(self) -> tuple[str, str | None]:
        """stop_reason and stop_sequence."""
        assert self._last is not None
        reason, stopped_by = self._last.finish_reason, self._last.delta.stop_reason
        if reason == "tool_calls":
            return "tool_use", None
        if reason == "length":
            full = self._last.usage.completion_tokens < self._wanted_tokens
            return "model_context_window_exceeded" if full else "max_tokens", None
        return ("stop_sequence", stopped_by) if isinstance(stopped_by, str) else ("end_turn", None)


def _times(news: TurnNews) -> dict[str, Any]:
    return {} if news.times is None else {"metrics": news.times}


def _usage(usage: Usage) -> dict[str, Any]:
    """Tokens of the prompt that came from the cache are counted apart."""
    cached = usage.prompt_tokens_details.cached_tokens
    return {
        "input_tokens": usage.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens,
    }


def _empty(block: Block) -> dict[str, Any]:
    if block.kind == "text":
        return {"type": "text", "text": ""}
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": {}}


def _delta(block: Block, text: str) -> dict[str, Any]:
    if block.kind == "text":
        return {"type": "text_delta", "text": text}
    if block.kind == "reasoning":
        return {"type": "thinking_delta", "thinking": text}
    return {"type": "input_json_delta", "partial_json": text}


def _whole(block: Block) -> dict[str, Any]:
    made = _empty(block)
    if block.kind == "text":
        made["text"] = block.text
    elif block.kind == "reasoning":
        made |= {"thinking": block.text, "signature": SIGNATURE}
    elif block.complete:
        arguments = json.loads(block.text or "{}")
        made["input"] = arguments if isinstance(arguments, dict) else {}
    return made
