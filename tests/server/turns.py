"""Scripts cut into tokens anywhere, and chat answers put together from both ways, for tests of tools and reasoning."""

import random
from dataclasses import dataclass, field
from typing import Any

from tests.server.world import Client, finish_reasons

INTERVALS = (1, 2, 3, 7, 50)
"""Tokens per event of a stream."""


def distinct_pieces(text: str, used: set[bytes], seed: int) -> list[bytes]:
    """The bytes of `text` cut at random places into pieces of two and more, none of which is in `used`; adds them."""
    rng, data = random.Random(seed), text.encode()
    for _ in range(1000):
        taken, pieces, place = set(used), list[bytes](), 0
        while place < len(data):
            size = rng.randint(2, 4)
            while place + size < len(data) and data[place : place + size] in taken:
                size += 1
            pieces.append(data[place : place + size])
            taken.add(pieces[-1])
            place += size
        if len(set(pieces)) == len(pieces) and not used & set(pieces) and len(pieces[-1]) > 1:
            used |= set(pieces)
            return pieces
    raise AssertionError(f"cannot cut {text!r} into different pieces")


@dataclass
class Answer:
    """One choice of an answer. `calls` are (name, arguments)."""

    content: str | None = None
    reasoning: str | None = None
    calls: list[tuple[str, str]] = field(default_factory=list)
    finish_reason: str | None = None
    completion_tokens: int = 0
    reasoning_tokens: int = 0


def whole_answer(body: Any) -> Answer:
    """From an answer that was not streamed."""
    choice, usage = body["choices"][0], body["usage"]
    message = choice["message"]
    assert message.get("reasoning") == message.get("reasoning_content")
    calls = message.get("tool_calls", [])
    assert "tool_calls" not in message or calls
    assert all(call["type"] == "function" and call["id"] for call in calls)
    return Answer(
        message["content"],
        message.get("reasoning"),
        [(call["function"]["name"], call["function"]["arguments"]) for call in calls],
        choice["finish_reason"],
        usage["completion_tokens"],
        usage["completion_tokens_details"]["reasoning_tokens"],
    )


def joined_answer(chunks: list[Any]) -> Answer:
    """From a stream with usage. Checks that each call is begun once, with id, type and name."""
    content, reasoning, calls = "", "", dict[int, list[str]]()
    for delta in (choice["delta"] for chunk in chunks for choice in chunk["choices"]):
        content += delta.get("content") or ""
        assert delta.get("reasoning") == delta.get("reasoning_content")
        reasoning += delta.get("reasoning") or ""
        for call in delta.get("tool_calls", []):
            index = call["index"]
            if index not in calls:
                assert call["type"] == "function" and call["id"] and index == len(calls)
                calls[index] = [call["function"]["name"], ""]
            else:
                assert "id" not in call and "type" not in call and "name" not in call["function"]
            calls[index][1] += call["function"].get("arguments", "")
    usage = chunks[-1]["usage"]
    return Answer(
        content or (None if calls or reasoning else ""),
        reasoning or None,
        [(name, arguments) for name, arguments in calls.values()],
        finish_reasons(chunks)[0],
        usage["completion_tokens"],
        usage["completion_tokens_details"]["reasoning_tokens"],
    )


def every_way(world: Client, content: str, **body: Any) -> Answer:
    """The answer, which is the same without a stream and with every number of tokens per event."""
    whole = whole_answer(world.chat(content, **body))
    for interval in INTERVALS:
        chunks = world.stream_chat(content, stream_interval=interval, stream_options={"include_usage": True}, **body)
        assert joined_answer(chunks) == whole, interval
    return whole
