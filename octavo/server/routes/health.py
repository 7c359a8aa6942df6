"""Probes, open to all: is the process alive, is the engine alive, may traffic come. None asks the engine process."""

from fastapi import APIRouter, Request, Response

from octavo.server.responses import Health, VersionInfo, json_response
from octavo.server.serving import Status, lifecycle_of
from octavo.version import VERSION

router = APIRouter()


@router.get("/livez")
@router.head("/livez", include_in_schema=False)
async def livez() -> Response:
    """200 for as long as the process can answer; do not restart it while it loads or drains."""
    return json_response(Health("alive"))


@router.get("/health")
@router.head("/health", include_in_schema=False)
@router.get("/ping")
@router.post("/ping")
async def health(request: Request) -> Response:
    """200 once the engine is loaded and as long as its steps make progress, also while draining; else 503."""
    return _answer(request, Status.READY, Status.DRAINING)


@router.get("/readyz")
@router.head("/readyz", include_in_schema=False)
async def readyz(request: Request) -> Response:
    """200 while new requests are taken; 503 while loading, draining or dead."""
    return _answer(request, Status.READY)


@router.get("/version")
async def version() -> Response:
    """The version of the server."""
    return json_response(VersionInfo(VERSION))


def _answer(request: Request, *good: Status) -> Response:
    status = lifecycle_of(request).status
    response = json_response(Health(status))
    response.status_code = 200 if status in good else 503
    return response
