"""The OpenAPI document: what FastAPI knows of the routes, with the bodies, answers and errors that they really have."""

from collections.abc import Set
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from octavo.server.body import BODIES, REF
from octavo.server.error_forms import ANTHROPIC, OPENAI, TGI, form_of
from octavo.server.responses import (
    ChatCompletion,
    Completion,
    Generation,
    Health,
    Load,
    ModelCard,
    ModelList,
    Text,
    Tokens,
    VersionInfo,
)
from octavo.server.tgi import Generated, Info

ANSWERS: dict[str, type[msgspec.Struct]] = {
    "/v1/chat/completions": ChatCompletion,
    "/v1/completions": Completion,
    "/inference/v1/generate": Generation,
    "/v1/models": ModelList,
    "/v1/models/{name}": ModelCard,
    "/tokenize": Tokens,
    "/detokenize": Text,
    "/health": Health,
    "/ping": Health,
    "/livez": Health,
    "/readyz": Health,
    "/version": VersionInfo,
    "/load": Load,
    "/generate": Generated,
    "/info": Info,
}
"""What a 200 holds."""

PROBES = ("/health", "/ping", "/readyz")
"""Routes whose 503 is the same as their 200, with another word in it."""

STREAMS = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/inference/v1/generate", "/",
    "/generate_stream",
)  # fmt: skip
"""Routes that may answer with server-sent events."""

FILES = {"/metrics": "text/plain", "/v1/files/{file_id}/content": "application/octet-stream"}
"""Routes that answer in another media type."""


def describe(app: FastAPI, *, open_paths: Set[str] | None) -> dict[str, Any]:
    """The document of an app.

    Args:
        open_paths: those that need no key; None if no path does.
    """
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    schemas: dict[str, Any] = document.setdefault("components", {}).setdefault("schemas", {})
    kinds = {*ANSWERS.values(), *(form.body for form in (OPENAI, ANTHROPIC, TGI))}
    schemas.update(models_json_schema([(body, "validation") for body in BODIES.values()], ref_template=REF)[1]["$defs"])
    schemas.update(msgspec.json.schema_components(kinds, ref_template=REF.replace("model", "name"))[1])
    for path, operations in document["paths"].items():
        for operation in operations.values():
            _describe_answers(operation, path)
            if open_paths is not None and path not in open_paths:
                operation["security"] = [{"key": []}]
    if open_paths is not None:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for unused in ("HTTPValidationError", "ValidationError"):  # our errors have one form
        schemas.pop(unused, None)
    return document


def _describe_answers(operation: dict[str, Any], path: str) -> None:
    responses = operation.setdefault("responses", {})
    responses.pop("422", None)
    if path in ANSWERS:
        responses["200"] = {"description": "Done", "content": _json(ANSWERS[path])}
    if path in FILES:
        responses["200"] = {"description": "Done", "content": {FILES[path]: {"schema": {"type": "string"}}}}
    if path in STREAMS:
        responses["200"]["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    envelope = _json(form_of(path).body)
    responses["4XX"] = {"description": "The request is wrong, or not allowed", "content": envelope}
    responses["5XX"] = {"description": "The server cannot do it, or not now", "content": envelope}
    if path in PROBES:
        responses["503"] = {"description": "Not now", "content": _json(ANSWERS[path])}


def _json(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": REF.format(model=kind.__name__)}}}
