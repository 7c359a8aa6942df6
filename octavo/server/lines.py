"""Lines of a batch: read and checked, run through the routes as a request would be, written as answers.

A line is `{"custom_id": ..., "method": "POST", "url": "/v1/chat/completions", "body": {...}}`. What is answered is read
off the answers themselves, so that a run that was cut goes on where it ended: the last line of a file may be
incomplete, all others count.
"""

import asyncio
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from starlette.types import ASGIApp, Message

from octavo.errors import ClientError
from octavo.logging import get_logger
from octavo.server.body import parse_json
from octavo.server.files import new_id

logger = get_logger(__name__)

MAX_LINES = 50_000
MAX_LINE_BYTES = 32 << 20
MAX_CUSTOM_ID_CHARS = 512
RETRY_STATUSES = (429, 503)
"""Answers that say: later. A batch has the time."""
RETRY_S = 1.0

URLS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/score",
    "/score",
    "/v1/rerank",
    "/rerank",
    "/pooling",
    "/classify",
    "/inference/v1/generate",
)
"""Routes that a line may name."""


class LineError(Exception):
    """A line that cannot be run."""

    def __init__(self, line: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.param = param


class Line(NamedTuple):
    """A checked line: where it lies in its file, and what it asks for."""

    custom_id: str
    url: str
    offset: int
    size: int


class Answer(NamedTuple):
    """What a route answered."""

    status: int
    body: bytes


def read_lines(path: Path, urls: Collection[str]) -> Iterator[Line | LineError]:
    """Check every line; empty ones are skipped. What is wrong is yielded, so that all faults can be told at once."""
    seen: set[str] = set()
    offset = 0
    with path.open("rb") as file:
        for number, raw in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), 1):
            start, offset = offset, offset + len(raw)
            if len(raw) > MAX_LINE_BYTES:
                yield LineError(number, f"the line is longer than {MAX_LINE_BYTES} bytes")
                return
            if not raw.strip():
                continue
            if len(seen) == MAX_LINES:
                yield LineError(number, f"a batch may have {MAX_LINES} lines; split it")
                return
            try:
                line = _check(parse_json(raw, None), number, urls)
                if line.custom_id in seen:
                    raise LineError(number, f"custom_id {line.custom_id[:80]!r} stands on two lines", "custom_id")
            except ClientError as err:
                yield LineError(number, err.message, err.param)
            except LineError as err:
                yield err
            else:
                seen.add(line.custom_id)
                yield line._replace(offset=start, size=len(raw))


def body_of(path: Path, line: Line) -> bytes:
    """The body that a line carries."""
    with path.open("rb") as file:
        file.seek(line.offset)
        return json.dumps(parse_json(file.read(line.size), None)["body"]).encode()


async def ask(app: ASGIApp, url: str, body: bytes, tenant: str) -> Answer:
    """POST to a route of `app` without a connection, as work of `tenant` that can wait. Cancelling it ends the work."""
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": url, "raw_path": url.encode(), "query_string": b"", "root_path": "", "client": None, "server": None,
        "headers": [(b"content-type", b"application/json")], "state": {"background": True, "tenant": tenant},
    }  # fmt: skip
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    status, parts = 500, []

    async def receive() -> Message:
        if not unread:
            await asyncio.Event().wait()  # nobody hangs up
        return unread.pop()

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        parts.append(message.get("body", b""))

    try:
        await app(scope, receive, send)
    except Exception:  # the app has answered 500 and raises to have it logged
        logger.exception("a line of a batch failed")
    return Answer(status, b"".join(parts))


async def run_lines(
    app: ASGIApp,
    path: Path,
    lines: Iterable[Line],
    concurrency: int,
    keep: Callable[[Line, Answer], None],
    tenant: str = "",
) -> None:
    """Ask for all `lines` of a file, at most `concurrency` at a time, and `keep` each answer when it is there."""
    left = iter(lines)

    async def work() -> None:
        for line in left:
            keep(line, await ask_until_taken(app, line.url, body_of(path, line), tenant))

    async with asyncio.TaskGroup() as workers:
        for _ in range(concurrency):
            workers.create_task(work())


async def ask_until_taken(app: ASGIApp, url: str, body: bytes, tenant: str) -> Answer:
    """As `ask`, again and again while the server is overloaded or not ready."""
    while (answer := await ask(app, url, body, tenant)).status in RETRY_STATUSES:
        await asyncio.sleep(RETRY_S)
    return answer


def write_answer(custom_id: str, answer: Answer) -> bytes:
    """The line that answers `custom_id`, in OpenAI's form."""
    response = {"status_code": answer.status, "request_id": new_id("req"), "body": msgspec.Raw(answer.body)}
    return _line(custom_id, response, None)


def write_failure(custom_id: str, code: str, message: str) -> bytes:
    """The line for a request that was not run."""
    return _line(custom_id, None, {"code": code, "message": message})


class AnswerFile:
    """A file of answers that grows by whole lines.

    Attributes:
        answered: ids that have one.
    """

    def __init__(self, path: Path) -> None:
        self.answered = set(_answered_ids(path))
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def append(self, custom_id: str, line: bytes) -> None:
        """Add the answer to `custom_id`. One write, so that a crash leaves at most its own line incomplete."""
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(self._file, rest) :]
        self.answered.add(custom_id)

    def close(self) -> None:
        """No more answers."""
        os.fsync(self._file)
        os.close(self._file)


def _answered_ids(path: Path) -> Iterator[str]:
    """Ids of whole lines; what follows the last of them is cut off."""
    if not path.exists():
        return
    whole = 0
    with path.open("rb+") as file:
        for raw in file:
            if not raw.endswith(b"\n"):
                break
            whole += len(raw)
            yield str(msgspec.json.decode(raw, type=_Answered).custom_id)
        file.truncate(whole)


class _Answered(msgspec.Struct):
    custom_id: str


def _line(custom_id: str, response: dict[str, Any] | None, error: dict[str, str] | None) -> bytes:
    fields = {"id": new_id("batch_req"), "custom_id": custom_id, "response": response, "error": error}
    return msgspec.json.encode(fields) + b"\n"


def _check(fields: dict[str, Any], number: int, urls: Collection[str]) -> Line:
    custom_id, url, body = fields.get("custom_id"), fields.get("url"), fields.get("body")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID_CHARS:
        raise LineError(number, f"custom_id must be a string of 1 to {MAX_CUSTOM_ID_CHARS} characters", "custom_id")
    if fields.get("method") != "POST":
        raise LineError(number, f"method is {str(fields.get('method'))[:80]!r} but must be POST", "method")
    if not isinstance(url, str) or url not in urls:
        raise LineError(number, f"url is {str(url)[:80]!r} but must be {' or '.join(urls)}", "url")
    if not isinstance(body, dict):
        raise LineError(number, "body must be a JSON object", "body")
    if body.get("stream"):
        raise LineError(number, "body.stream: answers of a batch are not streamed; leave it out", "body.stream")
    return Line(custom_id, url, 0, 0)
