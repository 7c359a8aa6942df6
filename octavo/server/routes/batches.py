"""/v1/batches: create, list, retrieve, cancel."""

import time
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from octavo.errors import ClientError
from octavo.server.batches import WINDOW_S, Batch, OutputExpiry
from octavo.server.body import body_schema, json_body
from octavo.server.collection import owner_of
from octavo.server.files import RETENTION_S, new_id
from octavo.server.lines import URLS
from octavo.server.requests import Body, Int
from octavo.server.responses import json_response
from octavo.server.store import store_of

router = APIRouter()

MAX_METADATA = 16
MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]


class OutputExpiresAfter(Body):
    """How long the output files are kept."""

    anchor: Literal["created_at"]
    seconds: Int = Field(ge=3600, le=RETENTION_S)


class BatchRequest(Body):
    """Body of POST /v1/batches."""

    input_file_id: str
    endpoint: str
    completion_window: Literal["24h"]
    metadata: dict[MetadataKey, MetadataValue] | None = Field(None, max_length=MAX_METADATA)
    output_expires_after: OutputExpiresAfter | None = None


class BatchList(msgspec.Struct, kw_only=True):
    """Answer of GET /v1/batches."""

    object: Literal["list"] = "list"
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool


@router.post("/v1/batches", openapi_extra=body_schema(BatchRequest))
async def create(request: Request, body: BatchRequest = json_body(BatchRequest)) -> Response:
    """Queue the lines of an uploaded file."""
    if body.endpoint not in URLS:
        raise ClientError(f"endpoint is {body.endpoint[:80]!r}; a batch can be for {', '.join(URLS)}", param="endpoint")
    now = int(time.time())
    expiry: Any = body.output_expires_after
    batch = Batch(
        id=new_id("batch"),
        endpoint=body.endpoint,
        input_file_id=body.input_file_id,
        completion_window=body.completion_window,
        created_at=now,
        expires_at=now + WINDOW_S,
        metadata=body.metadata,
        output_expires_after=None if expiry is None else OutputExpiry(expiry.anchor, expiry.seconds),
    )
    store_of(request).batches.create(batch, owner_of(request))
    return json_response(batch)


@router.get("/v1/batches")
async def batches(
    request: Request, limit: Annotated[int, Query(ge=1, le=100)] = 20, after: str | None = None
) -> Response:
    """The batches of this client, newest first."""
    items, has_more = store_of(request).batches.page(owner_of(request), limit, after)
    first, last = (items[0].id, items[-1].id) if items else (None, None)
    return json_response(BatchList(data=items, first_id=first, last_id=last, has_more=has_more))


@router.get("/v1/batches/{batch_id}")
async def batch(request: Request, batch_id: str) -> Response:
    """How a batch stands."""
    return json_response(store_of(request).batches.get(batch_id, owner_of(request)))


@router.post("/v1/batches/{batch_id}/cancel")
async def cancel(request: Request, batch_id: str) -> Response:
    """End a batch early; its answers so far stay."""
    return json_response(store_of(request).batches.cancel(batch_id, owner_of(request)))
