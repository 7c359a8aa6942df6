"""GET /metrics and /load: what the server does now. Never waits for the engine."""

from fastapi import APIRouter, Request, Response

from octavo.server.metrics import CONTENT_TYPE
from octavo.server.responses import Load, json_response
from octavo.server.serving import lifecycle_of

router = APIRouter()


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus text; of the HTTP layer alone while the model is being loaded."""
    lifecycle = lifecycle_of(request)
    of_engine = b"" if lifecycle.loaded is None else lifecycle.loaded.metrics.exposition()
    return Response(of_engine + lifecycle.http_metrics.exposition(), headers={"Content-Type": CONTENT_TYPE})


@router.get("/load")
async def load(request: Request) -> Response:
    """Requests that run or wait."""
    loaded = lifecycle_of(request).loaded
    stats = None if loaded is None else loaded.engine.stats()
    return json_response(Load(0 if stats is None else stats.num_running + stats.num_waiting))
