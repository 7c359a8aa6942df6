"""Turns every failure into a status and words for the client. Knows no route; never shows a traceback."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from octavo.errors import ClientError, EngineDeadError, EngineError, OverloadedError

MAX_MESSAGE_CHARS = 2000
RETRY_AFTER_S = 2
"""Where nothing is known about when it will be better."""


class ServiceUnavailableError(OverloadedError):
    """The server loads, drains or has lost its engine; another replica, or a later try, may answer."""


class DeadlineError(EngineError):
    """The request's own time, X-Request-Timeout or --request-timeout, is over; what it had begun is given up."""


class AuthenticationError(ClientError):
    """No valid key."""

    status = 401
    type = "AuthenticationError"


class PermissionDeniedError(ClientError):
    """A valid key, but not for this."""

    status = 403
    type = "PermissionDeniedError"


class TooLargeError(ClientError):
    """The body is longer than `--max-body-bytes`."""

    status = 413
    type = "RequestTooLargeError"


class HeadersTooLargeError(ClientError):
    """More, or longer, headers than a request may have."""

    status = 431
    type = "HeadersTooLargeError"


class ContentTypeError(ClientError):
    """The body is not declared as JSON."""

    status = 415
    type = "UnsupportedMediaTypeError"


class SlowBodyError(ClientError):
    """The body did not arrive in time."""

    status = 408
    type = "RequestTimeoutError"


class ClientGone(Exception):
    """The client closed its connection; nobody reads an answer."""


class ErrorBody(msgspec.Struct):
    """What a client is told. `code` is a word of ours or the HTTP status."""

    message: str
    type: str
    param: str | None
    code: str | int | None


class Failure(NamedTuple):
    """An exception, as the client gets to see it."""

    status: int
    error: ErrorBody
    retry_after_s: int = RETRY_AFTER_S


def failure(err: Exception) -> Failure:
    """Describe any exception: ours by their own words, FastAPI's by theirs, a bug by no words at all."""
    if isinstance(err, OverloadedError):
        found = _failure(err.status, err.message, err.type, err.param, err.code)
        return found._replace(retry_after_s=err.retry_after_s or RETRY_AFTER_S)
    if isinstance(err, ClientError):
        return _failure(err.status, err.message, err.type, err.param, err.code)
    if isinstance(err, DeadlineError):
        return _failure(504, str(err), "RequestTimeoutError")
    if isinstance(err, ValidationError):
        return _failure(400, *_first_problem(err.errors(include_url=False, include_context=False)[0]))
    if isinstance(err, RequestValidationError):  # of the query
        problem = err.errors()[0]
        return _failure(400, *_first_problem(problem | {"loc": problem["loc"][1:]}))
    if isinstance(err, EngineDeadError):
        return _failure(503, str(err), "EngineDeadError")
    if isinstance(err, EngineError):
        return _failure(500, str(err), "InternalServerError")
    if isinstance(err, HTTPException):
        kind = {404: "NotFoundError", 405: "MethodNotAllowedError"}.get(err.status_code, "BadRequestError")
        return _failure(err.status_code, str(err.detail), kind)
    return _failure(500, "internal error; the server's log has the cause", "InternalServerError")


def _failure(status: int, message: str, kind: str, param: str | None = None, code: str | int | None = None) -> Failure:
    return Failure(status, ErrorBody(_printable(message) or HTTPStatus(status).phrase, kind, param, code or status))


def _printable(message: str) -> str:
    """Cut to a bounded length; user text quoted in it may hold lone surrogates, which UTF-8 has no form for."""
    if len(message) > MAX_MESSAGE_CHARS:
        message = message[:MAX_MESSAGE_CHARS] + "..."
    return message.encode("utf-8", "replace").decode()


def _first_problem(problem: Mapping[str, Any]) -> tuple[str, str, str | None]:
    """Message, type and field path of the first problem; a body can have thousands."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"]).lstrip(".")
    if problem["type"] == "missing":
        return f"{path} is required", "BadRequestError", path
    message = problem["msg"].removeprefix("Value error, ")
    got = repr(problem["input"])
    got = got if len(got) <= 80 else got[:77] + "..."
    return f"{path or 'the body'}: {message}; got {got}", "BadRequestError", path or None
