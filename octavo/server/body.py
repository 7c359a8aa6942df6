"""Reads a JSON body strictly: UTF-8 or a clear 400, and the fields a model declares. Knows no route."""

import json
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

from fastapi import Depends
from pydantic import BaseModel
from starlette.requests import Request

from octavo import limits
from octavo.errors import ClientError
from octavo.server.errors import ContentTypeError
from octavo.server.refusals import check_refused
from octavo.server.requests import Body
from octavo.server.serving import lifecycle_of
from octavo.server.unknown_fields import refuse_unknown, unknown_fields

M = TypeVar("M", bound=Body)

BODIES: dict[str, type[BaseModel]] = {}
"""What routes read, by its name in the OpenAPI document."""

REF = "#/components/schemas/{model}"

UTF8_BOM = b"\xef\xbb\xbf"


def json_body(model: type[M]) -> Any:
    """FastAPI dependency that reads the body as `model`."""

    async def read(request: Request) -> M:
        body = model.model_validate(parse_json(await request.body(), request.headers.get("content-type")))
        check_refused(body)
        unknown = unknown_fields(body)
        if lifecycle_of(request).server.strict_fields:
            refuse_unknown(unknown)
        request.state.ignored_fields = unknown
        return body

    dependency: Callable[[Request], Awaitable[M]] = read
    return Depends(dependency)


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route that reads `json_body(model)`. The schema itself is written when it is asked for."""
    BODIES[model.__name__] = model
    content = {"application/json": {"schema": {"$ref": REF.format(model=model.__name__)}}}
    return {"requestBody": {"required": True, "content": content}}


def parse_json(body: bytes, content_type: str | None) -> dict[str, Any]:
    """Parse a body that must be one JSON object.

    A byte order mark is skipped. NaN and Infinity pass here, so that the field's own check can name the field.

    Raises:
        ClientError: not JSON, not UTF-8, a lone surrogate, too deeply nested, or not an object.
    """
    kind = (content_type or "application/json").partition(";")[0].strip().lower()
    if not kind.endswith("json"):  # a web page may send text/plain or a form to localhost without asking (CSRF)
        raise ContentTypeError(f"Content-Type is {kind!r}; send application/json")
    try:
        text = body.removeprefix(UTF8_BOM).decode()
    except UnicodeDecodeError as err:
        raise ClientError(f"the body is not UTF-8 (byte {err.start}); encode it as UTF-8") from None
    if not text.strip():
        raise ClientError("the body is empty; send a JSON object")
    try:
        parsed = json.loads(text)
    except RecursionError:
        raise ClientError(f"the body is nested deeper than {limits.JSON_DEPTH.value} levels; flatten it") from None
    except json.JSONDecodeError as err:
        raise ClientError(f"the body is not valid JSON: {err}") from None
    except ValueError:  # a whole number with more digits than Python converts
        raise _too_long_number(text) from None
    if not isinstance(parsed, dict):
        raise ClientError(f"the body is {_kind(parsed)}; send a JSON object")
    if text.count("[") + text.count("{") > limits.JSON_DEPTH.value:  # otherwise it cannot be
        _check_depth(parsed)
    if "\\u" in text:
        _refuse_surrogates(parsed)
    return parsed


def _too_long_number(text: str) -> ClientError:
    """Where the number is, and what one may have."""
    limit = sys.get_int_max_str_digits()
    place = re.search(rf"(?<![\d.])-?\d{{{limit + 1},}}", text)
    where = "" if place is None else f" at character {place.start()}"
    return ClientError(f"the body has a number{where} of more than {limit} digits, which is the limit; shorten it")


def _kind(value: object) -> str:
    if value is None:
        return "null"
    return "a list" if isinstance(value, list) else f"a {type(value).__name__}"


def _check_depth(parsed: dict[str, Any]) -> None:
    """Deep values break what walks them: schemas, templates, encoders. Level by level, so that this does not."""
    level: list[Any] = [(name, value) for name, value in parsed.items() if isinstance(value, dict | list)]
    for _ in range(1, limits.JSON_DEPTH.value):
        level = [
            (field, inner)
            for field, value in level
            for inner in (value.values() if isinstance(value, dict) else value)
            if isinstance(inner, dict | list)
        ]
    if level:
        field = level[0][0]
        raise ClientError(f"{field} is nested deeper than {limits.JSON_DEPTH.value} levels; flatten it", param=field)


def _refuse_surrogates(parsed: dict[str, Any]) -> None:
    """An escape like "\\ud83d" alone is half a character: no tokenizer has it and UTF-8 cannot answer it."""
    for field, text in _strings(parsed):
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as err:
                raise ClientError(
                    f"{field or 'a key'} holds half of a surrogate pair (\\u{ord(text[err.start]):04x}) "
                    f"at character {err.start}; send the whole character",
                    param=field or None,
                ) from None


def _strings(value: Any) -> Iterator[tuple[str, str]]:
    """Every string in a parsed body, with the name of the object key it is found under; in no order."""
    pending: list[tuple[str, Any]] = [("", value)]
    while pending:
        field, value = pending.pop()
        if isinstance(value, str):
            yield field, value
        elif isinstance(value, list):
            pending.extend((field, item) for item in value)
        elif isinstance(value, dict):
            for key, item in value.items():
                yield field, key
                pending.append((field or key, item))
