"""The form of an answer that is no success: OpenAI's envelope, or that of the API whose path was asked for. Whoever
answers a failure, be it a route, the router or middleware, asks here.
"""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from octavo.server.errors import ClientGone, ErrorBody, Failure, failure


class ErrorEnvelope(msgspec.Struct):
    """OpenAI's body of an answer that is no success, and of an event that ends a stream early."""

    error: ErrorBody


class AnthropicErrorBody(msgspec.Struct):
    """What is inside."""

    type: str
    message: str


class AnthropicError(msgspec.Struct):
    """The same, as Anthropic has it."""

    error: AnthropicErrorBody
    type: Literal["error"] = "error"


class TgiError(msgspec.Struct):
    """The same, as Text Generation Inference has it."""

    error: str
    error_type: Literal["validation", "overloaded", "generation"]


class ErrorForm(NamedTuple):
    """How an API tells of failures.

    Attributes:
        body: what `write` makes.
        statuses: those that it has in the place of ours.
        event: name of the event that ends a stream early.
    """

    body: type[msgspec.Struct]
    write: Callable[[Failure], msgspec.Struct]
    statuses: Mapping[int, int] = {}
    event: str = ""

    def json(self, found: Failure) -> bytes:
        """The body as UTF-8 JSON."""
        return msgspec.json.encode(self.write(found))

    def response(self, found: Failure) -> Response:
        """The answer, with the headers its status asks for."""
        headers = {}
        if found.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if found.status in (429, 503):
            headers["Retry-After"] = str(found.retry_after_s)
        status = self.statuses.get(found.status, found.status)
        return Response(self.json(found), status, headers, media_type="application/json")


ANTHROPIC_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error",
}  # fmt: skip


def _anthropic(found: Failure) -> AnthropicError:
    kind = ANTHROPIC_TYPES.get(found.status, "invalid_request_error" if found.status < 500 else "api_error")
    return AnthropicError(AnthropicErrorBody(kind, found.error.message))


def _tgi(found: Failure) -> TgiError:
    if found.status in (429, 503):
        return TgiError(found.error.message, "overloaded")
    return TgiError(found.error.message, "validation" if found.status < 500 else "generation")


OPENAI = ErrorForm(ErrorEnvelope, lambda found: ErrorEnvelope(found.error))
ANTHROPIC = ErrorForm(AnthropicError, _anthropic, {503: 529}, "error")
TGI = ErrorForm(TgiError, _tgi, {400: 422, 503: 429, 500: 424})

TGI_PATHS = frozenset(["/", "/generate", "/generate_stream", "/info"])
ANTHROPIC_PATH = "/v1/messages"


def form_of(path: str) -> ErrorForm:
    """The form that clients of a path read. Paths below an API's own are its too, whether they exist or not."""
    if path in TGI_PATHS:
        return TGI
    return ANTHROPIC if path == ANTHROPIC_PATH or path.startswith(ANTHROPIC_PATH + "/") else OPENAI


def path_of(scope: Scope) -> str:
    """The path below the prefix of a proxy."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def refusal(scope: Scope, err: Exception) -> Response:
    """The answer to a request that ends with `err`."""
    return form_of(path_of(scope)).response(failure(err))


async def on_error(request: Request, err: Exception) -> Response:
    """Exception handler of the app."""
    if isinstance(err, ClientGone):
        return Response(status_code=499)
    response = refusal(request.scope, _named(request, err))
    if isinstance(err, HTTPException) and err.headers:
        response.headers.update(err.headers)
    return response


async def on_fault(request: Request, err: Exception) -> Response:
    """Exception handler for faults of ours, which the HTTP layer logs, closing the connection: a client that was not
    told so would lose its next request on it. In every form a fault is a 500.
    """
    response = await on_error(request, err)
    response.status_code = 500
    response.headers["Connection"] = "close"
    return response


def _named(request: Request, err: Exception) -> Exception:
    """The router's own errors, with the route they are about."""
    if isinstance(err, HTTPException) and err.status_code in (404, 405):
        known = "is not a route of this server" if err.status_code == 404 else f"does not take {request.method}"
        return HTTPException(err.status_code, f"{request.url.path} {known}; /openapi.json lists the routes")
    return err
