"""Server-sent events that stop working when the client is gone. Knows no event's content."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.logging import get_logger
from octavo.server.error_forms import form_of, path_of
from octavo.server.errors import ClientGone, Failure, failure

T = TypeVar("T")

logger = get_logger(__name__)

DONE = b"data: [DONE]\n\n"

KEEP_ALIVE = b": keep-alive\n\n"
"""A comment: clients skip it, and proxies see that the connection lives."""


def event(data: bytes) -> bytes:
    """One event."""
    return b"data: " + data + b"\n\n"


def named_event(name: str, data: bytes) -> bytes:
    """One event with a name."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


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


async def event_stream(
    request: Request,
    events: AsyncGenerator[bytes],
    keep_alive_s: float = 0.0,
    *,
    error_event: Callable[[Failure], bytes] | None = None,
) -> Response:
    """A response that sends `events`. It starts once the first is there, so what fails before has its own status; or
    after `keep_alive_s`, if that is given: from then on it carries a comment whenever it was silent for as long.

    Args:
        error_event: tells of a failure on the way; by default in the form of the path.
    """
    first = asyncio.ensure_future(_first(events))
    try:
        await unless_gone(request.receive, _wait(first, keep_alive_s))
        if first.done():
            first.result()
    except BaseException:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await events.aclose()
        raise
    return _EventStream(first, events, keep_alive_s, error_event or partial(_error_event, request.scope))


class _EventStream(Response):
    media_type = "text/event-stream"

    def __init__(
        self,
        first: "asyncio.Future[bytes]",
        events: AsyncGenerator[bytes],
        keep_alive_s: float,
        error_event: Callable[[Failure], bytes],
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._events = events
        self._keep_alive_s = keep_alive_s
        self._last_sent_s = 0.0
        self._error_event = error_event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._send_all(send))
        except ClientGone:
            pass
        finally:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
            await self._events.aclose()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if self._first.done():
            self._last_sent_s = time.monotonic()
        beat = asyncio.create_task(self._keep_alive(send)) if self._keep_alive_s else None
        try:
            await self._send_events(send)
        finally:
            if beat is not None:
                beat.cancel()
                await asyncio.gather(beat, return_exceptions=True)
        await _send_body(send, b"", more=False)

    async def _send_events(self, send: Send) -> None:
        try:
            await _send_body(send, await self._first, more=True)
            async for data in self._events:
                await _send_body(send, data, more=True)
                self._last_sent_s = time.monotonic()
        except Exception as err:  # the status is sent already: an event tells, and the stream ends without [DONE]
            found = failure(err)
            if found.status == 500:
                logger.error("a stream ended early: %s", found.error.message, exc_info=err)
            await _send_body(send, self._error_event(found), more=True)

    async def _keep_alive(self, send: Send) -> None:
        """Every event is one message, so a comment never lands inside one."""
        while True:
            silence_s = time.monotonic() - self._last_sent_s
            if silence_s < self._keep_alive_s:
                await asyncio.sleep(self._keep_alive_s - silence_s)
                continue
            self._last_sent_s = time.monotonic()
            await _send_body(send, KEEP_ALIVE, more=True)


def _error_event(scope: Scope, found: Failure) -> bytes:
    form = form_of(path_of(scope))
    return named_event(form.event, form.json(found)) if form.event else event(form.json(found))


async def _wait(first: "asyncio.Future[bytes]", keep_alive_s: float) -> None:
    await asyncio.wait([first], timeout=keep_alive_s or None)


async def _send_body(send: Send, data: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def _first(events: AsyncGenerator[bytes]) -> bytes:
    return await anext(events)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
