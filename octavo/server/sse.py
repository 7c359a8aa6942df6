"""Server-sent events that stop working when the client is gone. Knows no event's content."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.logging import get_logger
from octavo.server.errors import ClientGone, failure

T = TypeVar("T")

logger = get_logger(__name__)

DONE = b"data: [DONE]\n\n"


def event(data: bytes) -> bytes:
    """One event."""
    return b"data: " + data + b"\n\n"


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, but cancel it as soon as the client closes its connection. The body must have been read.

    Raises:
        ClientGone: the client went first.
    """
    task, watch = asyncio.ensure_future(work), asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for running in (task, watch):
            running.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def event_stream(request: Request, events: AsyncGenerator[bytes]) -> Response:
    """A response that sends `events`. It starts once the first is there, so what fails before has its own status."""
    try:
        first = await unless_gone(request.receive, _first(events))
    except BaseException:
        await events.aclose()
        raise
    return _EventStream(first, events)


class _EventStream(Response):
    media_type = "text/event-stream"

    def __init__(self, first: bytes, events: AsyncGenerator[bytes]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._send_all(send))
        except ClientGone:
            pass
        finally:
            await self._events.aclose()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await _send_body(send, self._first, more=True)
        try:
            async for data in self._events:
                await _send_body(send, data, more=True)
        except Exception as err:  # the status is sent already: an event tells, and the stream ends without [DONE]
            found = failure(err)
            if found.status == 500:
                logger.error("a stream ended early: %s", found.error.message, exc_info=err)
            await _send_body(send, event(found.json()), more=True)
        await _send_body(send, b"", more=False)


async def _send_body(send: Send, data: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def _first(events: AsyncGenerator[bytes]) -> bytes:
    return await anext(events)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
