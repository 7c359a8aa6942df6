"""Puts routes, middleware and error handlers together. Starts nothing and listens to nothing (`run.py` does)."""

from fastapi import FastAPI
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from octavo.errors import OctavoError
from octavo.server.errors import ClientGone, on_error
from octavo.server.middleware import AnswerHeaders, HeaderLimits, KeyCheck, Measure, WholeBody
from octavo.server.routes import chat, completions, generate, health, metrics, models, tokenize
from octavo.server.serving import Lifecycle
from octavo.server.unknown_fields import HEADER as IGNORED_FIELDS
from octavo.version import VERSION

ROUTES = (models, completions, chat, generate, tokenize, health, metrics)


def build_app(lifecycle: Lifecycle) -> FastAPI:
    """The ASGI app over `lifecycle`, whose engine may still be loading."""
    server = lifecycle.server
    openapi_url = None if server.disable_fastapi_docs else "/openapi.json"
    app = FastAPI(title="Octavo", version=VERSION, root_path=server.root_path, openapi_url=openapi_url)
    app.state.lifecycle = lifecycle
    for route in ROUTES:
        app.include_router(route.router)
    for kind in (OctavoError, ValidationError, HTTPException, ClientGone, Exception):
        app.add_exception_handler(kind, on_error)
    # The last one added is the first to see a request.
    app.add_middleware(WholeBody, max_bytes=server.max_body_bytes)
    app.add_middleware(KeyCheck, keys=lifecycle.keys)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=server.allowed_origins,
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=["X-Request-Id", IGNORED_FIELDS],
    )
    app.add_middleware(HeaderLimits)
    app.add_middleware(AnswerHeaders, always=server.enable_request_id_headers)
    app.add_middleware(Measure, metrics=lifecycle.http_metrics)
    return app
