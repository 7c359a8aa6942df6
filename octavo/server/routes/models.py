"""GET /v1/models: what is served."""

from fastapi import APIRouter, Request, Response

from octavo.server.responses import ModelCard, ModelList, json_response
from octavo.server.serving import Serving, lifecycle_of

router = APIRouter()


@router.get("/v1/models")
async def models(request: Request) -> Response:
    """Every served name."""
    serving = lifecycle_of(request).serving()
    return json_response(ModelList(data=[_card(serving, name) for name in serving.model_names]))


@router.get("/v1/models/{name:path}")  # names of hub models have slashes
async def model(request: Request, name: str) -> Response:
    """One served name."""
    serving = lifecycle_of(request).serving()
    serving.check_model(name)
    return json_response(_card(serving, name))


def _card(serving: Serving, name: str) -> ModelCard:
    config = serving.config
    return ModelCard(id=name, created=serving.created, root=config.model.model, max_model_len=config.max_model_len)
