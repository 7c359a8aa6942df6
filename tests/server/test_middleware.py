"""Middleware alone, on made-up ASGI messages."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from octavo.server.keys import KeyRing
from octavo.server.middleware import KeyCheck, WholeBody
from tests.server.world import strict_json


def call(app: Callable[[Scope, Receive, Send], Awaitable[None]], receive: Receive, **scope: Any) -> list[Message]:
    """Messages an app sends for one request."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    full = {"type": "http", "method": "POST", "path": "/x", "headers": [], **scope}
    asyncio.run(asyncio.wait_for(app(full, receive, send), 5))  # type: ignore[arg-type]
    return sent


def pieces(*messages: Message) -> Receive:
    """A client that sends these, and then nothing."""
    left = list(messages)

    async def receive() -> Message:
        if not left:
            await asyncio.sleep(60)
        return left.pop(0)

    return receive


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the first message's body."""
    message = await receive()
    assert message["more_body"] is False
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": message["body"]})


def piece(body: bytes, more: bool = True) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


def status_and_body(sent: list[Message]) -> tuple[int, bytes]:
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def test_a_body_in_pieces_arrives_whole() -> None:
    app = WholeBody(echo, max_bytes=10)
    assert status_and_body(call(app, pieces(piece(b"ab"), piece(b"cd"), piece(b"", False)))) == (200, b"abcd")


def test_a_body_that_does_not_end_is_answered_408() -> None:
    status, body = status_and_body(call(WholeBody(echo, max_bytes=10, timeout_s=0.05), pieces(piece(b"ab"))))
    assert status == 408 and "0.05 s" in strict_json(body)["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "messages"),
    [
        ([(b"content-length", b"11")], []),
        ([], [piece(b"123456"), piece(b"78901")]),
        ([(b"content-length", b"2")], [piece(b"x" * 11, False)]),
    ],
)
def test_a_body_over_the_limit_is_answered_413_and_not_read_on(headers: Any, messages: list[Message]) -> None:
    sent = call(WholeBody(echo, max_bytes=10), pieces(*messages), headers=headers)
    assert status_and_body(sent)[0] == 413
    assert (b"connection", b"close") in sent[0]["headers"]


def test_a_client_that_leaves_in_the_middle_is_not_answered() -> None:
    assert call(WholeBody(echo, max_bytes=10), pieces(piece(b"ab"), {"type": "http.disconnect"})) == []


def test_a_socket_without_a_key_is_closed() -> None:
    app = KeyCheck(echo, KeyRing(["k"]))
    sent = call(app, pieces(), type="websocket")
    assert sent == [{"type": "websocket.close", "code": 1008}]
    headers = [(b"authorization", b"Bearer k")]
    assert status_and_body(call(app, pieces(piece(b"in", False)), headers=headers)) == (200, b"in")


def test_probes_are_open_behind_a_root_path_too() -> None:
    app = KeyCheck(echo, KeyRing(["k"]))
    for path, status in (("/api/health", 200), ("/health", 200), ("/api/v1/models", 401), ("/healthx", 401)):
        sent = call(app, pieces(piece(b"", False)), path=path, root_path="/api")
        assert sent[0]["status"] == status, path
