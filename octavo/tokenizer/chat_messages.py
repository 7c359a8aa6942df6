"""Messages of a conversation in the form that chat templates expect. Knows no template.

What Transformers and vLLM do before rendering, in one place: keys without a value are left out, an assistant message
without content has an empty one, arguments of tool calls become objects, and reasoning is found under each name that
templates read it by.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.errors import ClientError, UnsupportedError

TEXT_PARTS = frozenset(["text", "input_text", "output_text", "refusal", "thinking"])
"""Types of content parts that are text."""
MEDIA = ("image", "audio", "video", "file")
"""A part with one of these words in its type carries something else than text."""
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
_MAY_BE_EMPTY = frozenset(["assistant", "tool", "function"])
PART_SEPARATOR = "\n"
"""Stands between text parts for templates that want one string, as in vLLM."""


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Check messages and copy them into plain JSON types. Content is a string, or a list of {"type": "text", "text"}.

    Raises:
        ClientError: a message, content part or tool call has no form that a template could render.
    """
    if not messages:
        raise _error("messages is empty; send at least one message")
    try:
        copies = json.loads(json.dumps([_as_mapping(message) for message in messages], default=_as_mapping))
    except (TypeError, ValueError, RecursionError) as err:
        raise _error(f"messages are not JSON: {err}") from err
    return [_plain_message(index, message) for index, message in enumerate(copies)]


def joined_parts(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its content as one string."""
    content = message["content"]
    if isinstance(content, str):
        return message
    return {**message, "content": PART_SEPARATOR.join(part["text"] for part in content)}


def typed_parts(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its content as a list of parts."""
    content = message["content"]
    return message if isinstance(content, list) else {**message, "content": [{"type": "text", "text": content}]}


def _plain_message(index: int, given: dict[str, Any]) -> dict[str, Any]:
    message = {key: value for key, value in given.items() if value is not None}
    role = message.get("role")
    if not isinstance(role, str):
        raise _error(f"messages[{index}] has the role {role!r}; a string is expected")
    if "content" not in message and role not in _MAY_BE_EMPTY:
        raise _error(f"messages[{index}], of role {role!r}, has no content")
    message["content"] = _content(index, message.get("content", ""))
    if "tool_calls" in message:
        message["tool_calls"] = _tool_calls(index, message["tool_calls"])
    reasoning = next((message[key] for key in _REASONING_KEYS if key in message), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message


def _content(index: int, content: Any) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _error(f"messages[{index}].content is {type(content).__name__}; a string or a list of parts is expected")
    return [_part(f"messages[{index}].content[{place}]", part) for place, part in enumerate(content)]


def _part(where: str, part: Any) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        raise _error(f"{where} is {type(part).__name__}; an object with a type is expected")
    kind = str(part.get("type"))
    if any(word in kind for word in MEDIA):
        raise UnsupportedError(f"{where} is of type {kind!r}, but this model is served for text only", param="messages")
    if kind not in TEXT_PARTS:
        raise _error(f"{where} has the type {kind!r}; known: {', '.join(sorted(TEXT_PARTS))}")
    text = part.get("text", part.get(kind))
    if not isinstance(text, str):
        raise _error(f"{where} has no text")
    return {"type": "text", "text": text}


def _tool_calls(index: int, calls: Any) -> list[dict[str, Any]]:
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise _error(f"messages[{index}].tool_calls must be a list of objects")
    return [_tool_call(f"messages[{index}].tool_calls[{place}]", call) for place, call in enumerate(calls)]


def _tool_call(where: str, call: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's API carries arguments as JSON text; templates want the object."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments", ""), str):
        return call
    text = function.get("arguments") or "{}"
    try:
        arguments = json.loads(text)
    except json.JSONDecodeError as err:
        raise _error(f"{where}.function.arguments is not JSON: {err}") from err
    if not isinstance(arguments, dict):
        raise _error(f"{where}.function.arguments is {text!r}; a JSON object is expected")
    return {**call, "function": {**function, "arguments": arguments}}


def _as_mapping(value: Any) -> Any:
    """Objects of client libraries (pydantic models) as dicts."""
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not a message or a part of one")


def _error(message: str) -> ClientError:
    return ClientError(message, param="messages")
