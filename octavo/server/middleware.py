"""What happens to every HTTP request before its route: an id, a key check, the whole body within limits, a count.
Plain ASGI, so that a stream is never wrapped in a second task.
"""

import asyncio
import re
import time
import uuid
from collections.abc import Set

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo import limits
from octavo.errors import ClientError
from octavo.server.error_forms import path_of, refusal
from octavo.server.errors import (
    AuthenticationError,
    HeadersTooLargeError,
    PermissionDeniedError,
    SlowBodyError,
    TooLargeError,
)
from octavo.server.keys import KeyRing
from octavo.server.keys import Scope as KeyScope
from octavo.server.metrics import HttpMetrics
from octavo.server.unknown_fields import HEADER as IGNORED_FIELDS
from octavo.server.unknown_fields import header_value

OPEN_PATHS = frozenset(["/health", "/livez", "/readyz", "/ping", "/console/about"])
"""Routes that need no key: they say whether the server is well, and whether it wants a key."""

CONSOLE_FILES = "/console/files/"
"""What the page at / loads."""

INFER_PREFIXES = ("/v1/", "/v2/", "/inference/")
INFER_PATHS = frozenset(["/", "/openapi.json", "/redoc", "/generate", "/generate_stream", "/info", "/score",
                         "/rerank", "/classify", "/pooling", "/invocations", "/tokenizer_info",
                         "/tokenize", "/detokenize", "/docs", "/docs/oauth2-redirect", "/console/state"])  # fmt: skip
"""Routes for keys of the scope infer."""
ANY_KEY_PATHS = frozenset(["/metrics", "/load", "/version"])
"""Routes for every key, whatever its scopes."""
ADMIN_PATHS = frozenset(["/v1/load_lora_adapter", "/v1/unload_lora_adapter"])
"""Those under the prefixes that change what others get. All paths that are not named here are for admins too."""

BODY_TIMEOUT_S = float(limits.BODY_SECONDS.default)
"""A body that takes longer than this to arrive is given up, so that slow clients hold no memory for long."""

STREAMED_PATHS = frozenset(["/v1/files"])
"""Routes that read their body piece by piece, within a limit of their own."""

REQUEST_ID = re.compile(rb"[!-~]{1,128}")


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of that (lower-case) name."""
    return next((value for key, value in scope["headers"] if key == name), None)


class RootPath:
    """Under --root-path: paths may carry the prefix, as they do behind a proxy that leaves it on."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._root_path:
            scope["root_path"] = self._root_path
        await self._app(scope, receive, send)


class AnswerHeaders:
    """Takes X-Request-Id into `request.state.request_id`, and returns it to those who sent one (or to all). Names the
    fields of the body that were ignored (`request.state.ignored_fields`).
    """

    def __init__(self, app: ASGIApp, always: bool) -> None:
        self._app = app
        self._always = always

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = header(scope, b"x-request-id")
        if given is None or not REQUEST_ID.fullmatch(given):
            given = None
        request_id = given or (uuid.uuid4().hex.encode() if self._always else None)
        state = scope.setdefault("state", {})
        state["arrival_s"] = time.monotonic()
        if request_id is not None:
            state["request_id"] = request_id.decode()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [] if request_id is None else [(b"x-request-id", request_id)]
                if ignored := state.get("ignored_fields"):
                    added.append((IGNORED_FIELDS.lower().encode(), header_value(ignored).encode()))
                message["headers"] = [*message["headers"], *added]
            await send(message)

        return await self._app(scope, receive, send_with_headers)


class HeaderLimits:
    """Answers 431 to requests with more, or longer, headers than `octavo.limits` has."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = scope.get("headers", ())
        try:
            limits.HEADERS.check("the request", len(headers))
            limits.HEADER_BYTES.check("the request", sum(len(name) + len(value) for name, value in headers))
        except ClientError as err:
            if scope["type"] != "http":
                return await send({"type": "websocket.close", "code": 1008})
            return await refusal(scope, HeadersTooLargeError(err.message))(scope, receive, send)
        return await self._app(scope, receive, send)


def is_console_page(method: str, path: str) -> bool:
    """Whether it is the console's page or one of its files, which hold nothing that is anybody's."""
    return method in ("GET", "HEAD") and (path == "/" or path.startswith(CONSOLE_FILES))


def good_scopes(path: str) -> frozenset[KeyScope]:
    """The scopes of which a key needs one for a path. What is not known to be for everybody is for admins."""
    if path in ANY_KEY_PATHS:
        return frozenset(KeyScope)
    if path in INFER_PATHS or (path.startswith(INFER_PREFIXES) and path not in ADMIN_PATHS):
        return frozenset([KeyScope.INFER])
    return frozenset([KeyScope.ADMIN])


class KeyCheck:
    """Answers 401 without a key, and 403 with one that is not good for the path. Closed by default: new routes are
    guarded too. The key's name goes to `request.state.tenant`.

    Args:
        open_paths: those that need no key, besides the console's page.
    """

    def __init__(self, app: ASGIApp, keys: KeyRing, open_paths: Set[str] = OPEN_PATHS) -> None:
        self._app = app
        self._keys = keys
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        err = self._refusal(scope) if self._keys and scope["type"] != "lifespan" else None
        if err is None:
            return await self._app(scope, receive, send)
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008})
        return await refusal(scope, err)(scope, receive, send)

    def _refusal(self, scope: Scope) -> ClientError | None:
        path = path_of(scope)
        if scope["type"] == "http" and (path in self._open_paths or is_console_page(scope["method"], path)):
            return None
        key = self._keys.find(presented_key(scope))
        if key is None:
            return AuthenticationError("a valid key is needed; send the header Authorization: Bearer KEY")
        good = good_scopes(path)
        if not good & key.scopes:
            needed = " or ".join(sorted(good))
            return PermissionDeniedError(f"this key is not good for {path}, which needs the scope {needed}")
        scope.setdefault("state", {})["tenant"] = key.name
        return None


def presented_key(scope: Scope) -> bytes:
    """The key in `Authorization: Bearer KEY`, or in x-api-key as Anthropic's clients send it."""
    scheme, _, key = (header(scope, b"authorization") or b"").partition(b" ")
    if scheme.lower() == b"bearer":
        return key.strip()
    return (header(scope, b"x-api-key") or b"").strip()


class WholeBody:
    """Reads the body before the route runs: bounded in size and time."""

    def __init__(self, app: ASGIApp, max_bytes: int, timeout_s: float = BODY_TIMEOUT_S) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS") or path_of(scope) in STREAMED_PATHS:
            return await self._app(scope, receive, send)
        try:
            length = header(scope, b"content-length")
            if length is not None and length.isdigit() and int(length) > self._max_bytes:
                raise self._too_large()
            async with asyncio.timeout(self._timeout_s):
                body = await self._read(receive)
        except TimeoutError:
            err = SlowBodyError(f"the body did not arrive within {self._timeout_s:g} s")
            return await self._refuse(err, scope, receive, send)
        except ClientError as err:
            return await self._refuse(err, scope, receive, send)
        if body is None:
            return None
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_whole() -> Message:
            return messages.pop() if messages else await receive()

        return await self._app(scope, receive_whole, send)

    async def _read(self, receive: Receive) -> bytes | None:
        """The body; None when the client went away in the middle of it."""
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._max_bytes:
                raise self._too_large()
            if not message.get("more_body", False):
                return b"".join(parts)

    def _too_large(self) -> TooLargeError:
        return TooLargeError(f"the body is larger than {self._max_bytes} bytes; send less, or raise --max-body-bytes")

    async def _refuse(self, err: ClientError, scope: Scope, receive: Receive, send: Send) -> None:
        response = refusal(scope, err)
        response.headers["Connection"] = "close"  # the rest of the body is not read
        await response(scope, receive, send)


class Measure:
    """Counts answers and their time by route; unknown paths share one label, so that no client can add labels."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        start, status = time.monotonic(), 499

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        finally:
            route = scope.get("route")
            handler = getattr(route, "path", "none")
            method = scope["method"] if handler != "none" else "none"
            self._metrics.observe(method, handler, status, time.monotonic() - start)
