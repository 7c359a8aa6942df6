"""GET /: the console, a web page over this server's own API. Its files are public; what it shows is behind the key."""

import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
from fastapi import APIRouter, Request, Response

from octavo.errors import NotFoundError
from octavo.server.engine_view import EngineView
from octavo.server.responses import json_response
from octavo.server.serving import lifecycle_of

router = APIRouter()

FOLDER = Path(__file__).parents[1] / "console"
PAGE = "index.html"
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

HEADERS = {
    "Cache-Control": "no-cache",  # kept, but asked for each time: an ETag decides
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class About(msgspec.Struct, kw_only=True):
    """Answer of /console/about: what the page has to know before it has a key."""

    status: str
    needs_key: bool


class File(NamedTuple):
    """A file as it is sent."""

    body: bytes
    media_type: str
    etag: str


@cache
def read_file(name: str) -> File:
    """One of the console's files. Read when it is first asked for, so that a start does not wait for it."""
    body = (FOLDER / name).read_bytes()
    return File(body, MEDIA_TYPES[Path(name).suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"')


@cache
def file_names() -> frozenset[str]:
    """What there is to read."""
    return frozenset(path.name for path in FOLDER.iterdir() if path.suffix in MEDIA_TYPES)


@router.get("/", include_in_schema=False)
@router.head("/", include_in_schema=False)
async def page(request: Request) -> Response:
    """The page."""
    return _send(request, PAGE)


@router.get("/console/files/{name}", include_in_schema=False)
@router.head("/console/files/{name}", include_in_schema=False)
async def file(request: Request, name: str) -> Response:
    """A file that the page loads."""
    if name not in file_names():
        raise NotFoundError(f"the console has no file {name[:80]!r}")
    return _send(request, name)


@router.get("/console/about", include_in_schema=False)
async def about(request: Request) -> Response:
    """Whether the server is ready, and whether it wants a key."""
    lifecycle = lifecycle_of(request)
    return json_response(About(status=lifecycle.status, needs_key=bool(lifecycle.keys)))


@router.get("/console/state", include_in_schema=False)
async def state(request: Request) -> Response:
    """What the engine does now."""
    view: EngineView = request.app.state.engine_view
    return json_response(await view.state())


def _send(request: Request, name: str) -> Response:
    found = read_file(name)
    headers = {**HEADERS, "ETag": found.etag}
    known = (tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(","))
    if found.etag in known:
        return Response(status_code=304, headers=headers)
    body = b"" if request.method == "HEAD" else found.body
    return Response(body, headers={**headers, "Content-Length": str(len(found.body))}, media_type=found.media_type)
