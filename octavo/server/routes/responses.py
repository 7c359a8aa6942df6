"""OpenAI's responses API: POST /v1/responses, and what becomes of stored ones."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from fastapi import APIRouter, Query, Request, Response

from octavo.errors import ClientError, UnsupportedError
from octavo.logging import get_logger
from octavo.server.body import body_schema, json_body
from octavo.server.chat import PreparedTurn, prepare_turn, run_turn
from octavo.server.collection import owner_of
from octavo.server.errors import failure
from octavo.server.files import new_id
from octavo.server.response_events import Event, ResponseWriter, fail, new_response
from octavo.server.response_items import Item, ResponsesRequest, check_responses, input_items, own_field, to_chat
from octavo.server.response_store import ResponseStore, StoredResponse
from octavo.server.responses import Deleted, json_response
from octavo.server.serving import lifecycle_of
from octavo.server.sse import event_stream, named_event, unless_gone
from octavo.server.store import store_of

router = APIRouter()
logger = get_logger(__name__)


class Running(NamedTuple):
    """One response in the making. `store` is None if nobody wants to come back to it."""

    turn: PreparedTurn
    writer: ResponseWriter
    items: list[Item]
    store: ResponseStore | None
    owner: str

    def keep(self) -> None:
        """Store what is known."""
        if self.store is not None:
            response = self.writer.response
            self.store.put(StoredResponse(response["id"], response, self.items), self.owner)


@router.post("/v1/responses", openapi_extra=body_schema(ResponsesRequest))
async def create(request: Request, body: ResponsesRequest = json_body(ResponsesRequest)) -> Response:
    """Answer a conversation, of which earlier parts may be stored here."""
    check_responses(body)
    try:
        return await _create(request, body)
    except ClientError as err:
        err.param = own_field(body, err.param)
        raise


async def _create(request: Request, body: ResponsesRequest) -> Response:
    running = await _prepare(request, body)
    if body.background:
        assert running.store is not None  # checked with the body
        running.keep()
        running.store.run(running.writer.response["id"], _run_in_background(running))
        return _json(running.writer.response)
    if body.stream:
        return await event_stream(
            request,
            _events(running),
            lifecycle_of(request).server.sse_keep_alive_interval,
            error_event=lambda found: _encode(running.writer.failed(found)),
        )
    await unless_gone(request.receive, _run(running))
    return _json(running.writer.response)


@router.get("/v1/responses/{response_id}")
async def retrieve(request: Request, response_id: str, stream: bool = False) -> Response:
    """A stored response as it stands."""
    if stream:
        raise UnsupportedError("a stored response is not streamed again; fetch it whole", param="stream")
    return _json(store_of(request).responses.get(response_id, owner_of(request)).response)


@router.post("/v1/responses/{response_id}/cancel")
async def cancel(request: Request, response_id: str) -> Response:
    """End a background response."""
    store, owner = store_of(request).responses, owner_of(request)
    if not store.get(response_id, owner).response["background"]:
        raise ClientError(
            "only a background response can be cancelled; close the connection of another one", param="response_id"
        )
    await store.cancel(response_id)
    return _json(store.get(response_id, owner).response)


@router.delete("/v1/responses/{response_id}")
async def delete(request: Request, response_id: str) -> Response:
    """Forget a response."""
    store = store_of(request).responses
    found = store.get(response_id, owner_of(request))
    await store.delete(found.id)
    return json_response(Deleted(id=found.id, object="response"))


@router.get("/v1/responses/{response_id}/input_items")
async def list_input_items(
    request: Request,
    response_id: str,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> Response:
    """The items that a response answers."""
    items = store_of(request).responses.get(response_id, owner_of(request)).items
    ordered = items if order == "asc" else items[::-1]
    ids = [item["id"] for item in ordered]
    if after is not None and after not in ids:
        raise ClientError(f"after is {after[:80]!r}, which is no item of this response", param="after")
    start = 0 if after is None else ids.index(after) + 1
    page = ordered[start : start + limit]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return _json({"object": "list", "data": page, "first_id": first, "last_id": last,
                  "has_more": start + limit < len(ordered)})  # fmt: skip


async def _prepare(request: Request, body: ResponsesRequest) -> Running:
    store, owner = store_of(request).responses, owner_of(request)
    items: list[Item] = []
    if body.previous_response_id is not None:
        previous = store.get(body.previous_response_id, owner, param="previous_response_id")
        if previous.response["status"] not in ("completed", "incomplete"):
            raise ClientError(
                f"{previous.id} is {previous.response['status']}; wait until it is completed",
                param="previous_response_id",
            )
        items = [*previous.items, *previous.response["output"]]
    items += [{"id": new_id("item").replace("-", "_"), **item} for item in input_items(body.input)]
    turn = await prepare_turn(request, to_chat(body, items), "resp")
    header = turn.header
    response = new_response(body, header) | {"id": new_id("resp").replace("-", "_")}
    num_logprobs = turn.work.params.logprobs
    writer = ResponseWriter(response, turn.serving.prompts.tokenizer, num_logprobs)
    return Running(turn, writer, items, store if body.store else None, owner)


async def _run(running: Running) -> None:
    """To the end."""
    async with aclosing(run_turn(running.turn)) as stream:
        async for news in stream:
            for _ in running.writer.events(news):
                pass
    running.keep()


async def _run_in_background(running: Running) -> None:
    """To the end, whatever that is; it is kept."""
    response = running.writer.response
    try:
        await _run(running)
    except asyncio.CancelledError:
        response["status"] = "cancelled"
        running.keep()
        raise
    except Exception as err:
        found = failure(err)
        if found.status == 500:
            logger.exception("the background response %s failed", response["id"])
        fail(response, found)
        running.keep()


async def _events(running: Running) -> AsyncGenerator[bytes]:
    begun = False
    async with aclosing(run_turn(running.turn)) as stream:
        async for news in stream:
            made = [] if begun else [_encode(event) for event in running.writer.begin()]
            begun = True
            made += [_encode(event) for event in running.writer.events(news)]
            if news.finish_reason is not None:
                running.keep()  # before the client can ask for it
            if made:
                yield b"".join(made)


def _encode(event: Event) -> bytes:
    return named_event(event["type"], msgspec.json.encode(event))


def _json(body: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
