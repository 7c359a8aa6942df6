"""Puts routes, middleware and error handlers together. Starts nothing and listens to nothing (`run.py` does)."""

import inspect
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import cache, partial
from types import ModuleType
from typing import Any, cast

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware

from octavo.errors import ConfigError, OctavoError
from octavo.registry import load_object
from octavo.server.engine_view import EngineView
from octavo.server.error_forms import on_error, on_fault
from octavo.server.errors import ClientGone
from octavo.server.middleware import OPEN_PATHS, AnswerHeaders, HeaderLimits, KeyCheck, Measure, RootPath, WholeBody
from octavo.server.openapi import describe
from octavo.server.routes import (
    batches,
    chat,
    completions,
    console,
    files,
    generate,
    health,
    info,
    invocations,
    messages,
    metrics,
    models,
    pooling,
    responses,
    tgi,
    tokenize,
)
from octavo.server.serving import Lifecycle
from octavo.server.store import Store
from octavo.server.tracing import Traced
from octavo.server.unknown_fields import HEADER as IGNORED_FIELDS
from octavo.version import VERSION

INFERENCE = (completions, chat, messages, generate, pooling)
"""Routes that a line of a batch may name too."""

ROUTES = (models, *INFERENCE, responses, tgi, tokenize, files, batches, health, metrics, info, invocations)


def build_app(lifecycle: Lifecycle) -> FastAPI:
    """The ASGI app over `lifecycle`, whose engine may still be loading. Served, it closes what it opened.

    Raises:
        ConfigError: --files-dir cannot be used, --root-path is no path, or --middleware names nothing to be used.
    """
    server = lifecycle.server
    if server.root_path and not server.root_path.startswith("/"):
        raise ConfigError(f"--root-path is {server.root_path!r} but must begin with a slash, as in /llm")
    openapi_url = None if server.disable_fastapi_docs else "/openapi.json"
    routes = ROUTES if server.disable_console else (*ROUTES, console)
    app = _routed(lifecycle, routes, openapi_url=openapi_url, lifespan=_closing_store)
    open_paths = OPEN_PATHS | {"/metrics"} if server.metrics_without_key else OPEN_PATHS
    guarded = partial(describe, app, open_paths=open_paths if lifecycle.keys else None)
    app.openapi = cache(guarded)  # type: ignore[method-assign]
    app.state.engine_view = EngineView(lifecycle)
    app.state.store = Store(lifecycle, inner_app(lifecycle))
    # The last one added is the first to see a request.
    for name in server.middleware:
        _add_foreign_middleware(app, name)
    app.add_middleware(WholeBody, max_bytes=server.max_body_bytes)
    app.add_middleware(KeyCheck, keys=lifecycle.keys, open_paths=open_paths)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=server.allowed_origins,
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=["X-Request-Id", IGNORED_FIELDS],
    )
    app.add_middleware(HeaderLimits)
    if lifecycle.tracer is not None:
        app.add_middleware(Traced, tracer=lifecycle.tracer)
    app.add_middleware(AnswerHeaders, always=server.enable_request_id_headers)
    app.add_middleware(Measure, metrics=lifecycle.http_metrics)
    app.add_middleware(RootPath, root_path=server.root_path.rstrip("/"))
    return app


def _add_foreign_middleware(app: FastAPI, name: str) -> None:
    """Nearest to the routes: it sees requests that have a key, and whole bodies."""
    module, _, attribute = name.replace(":", ".").rpartition(".")
    try:
        found: Any = load_object(f"{module}:{attribute}")
    except (ImportError, AttributeError, ValueError) as err:
        raise ConfigError(f"--middleware {name} cannot be imported: {err}") from None
    if inspect.isclass(found):
        app.add_middleware(cast(Any, found))
    elif inspect.iscoroutinefunction(found):
        app.add_middleware(BaseHTTPMiddleware, dispatch=found)
    else:
        raise ConfigError(f"--middleware {name} is neither a class nor a coroutine function")


def inner_app(lifecycle: Lifecycle) -> FastAPI:
    """The routes of batches, for requests of our own: nothing stands before them."""
    return _routed(lifecycle, INFERENCE, openapi_url=None)


def _routed(lifecycle: Lifecycle, routes: Iterable[ModuleType], **options: Any) -> FastAPI:
    app = FastAPI(title="Octavo", version=VERSION, **options)
    app.state.lifecycle = lifecycle
    for route in routes:
        app.include_router(route.router)
    for kind in (OctavoError, ValidationError, RequestValidationError, HTTPException, ClientGone):
        app.add_exception_handler(kind, on_error)
    app.add_exception_handler(Exception, on_fault)
    return app


@asynccontextmanager
async def _closing_store(app: FastAPI) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await app.state.store.close()
