"""Probes, which need no key: is the process alive, is the engine alive, may traffic come. None asks the engine."""

from collections.abc import Set

from fastapi import APIRouter, Request, Response

from octavo.server.errors import RETRY_AFTER_S
from octavo.server.responses import Health, VersionInfo, json_response
from octavo.server.serving import ALIVE, WELL, Status, lifecycle_of
from octavo.version import VERSION

router = APIRouter()


@router.get("/livez")
@router.head("/livez", include_in_schema=False)
async def livez(request: Request) -> Response:
    """503 once the engine is lost for good; 200 while it loads, drains or is being started again."""
    return _answer(request, ALIVE)


@router.get("/health")
@router.head("/health", include_in_schema=False)
@router.get("/ping")
@router.post("/ping")
async def health(request: Request) -> Response:
    """200 once the engine is loaded and as long as its steps make progress, also while draining; else 503."""
    return _answer(request, WELL)


@router.get("/readyz")
@router.head("/readyz", include_in_schema=False)
async def readyz(request: Request) -> Response:
    """200 while new requests are taken; 503 in every other state, which the body names."""
    return _answer(request, {Status.READY})


@router.get("/version")
async def version() -> Response:
    """The version of the server."""
    return json_response(VersionInfo(VERSION))


def _answer(request: Request, good: Set[Status]) -> Response:
    status = lifecycle_of(request).status
    response = json_response(Health(status))
    if status not in good:
        response.status_code = 503
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return response
