"""Anthropic's routes: POST /v1/messages and /v1/messages/count_tokens."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from fastapi import APIRouter, Request, Response

from octavo.server.anthropic import (
    CountRequest,
    MessagesRequest,
    MessageWriter,
    to_chat,
)
from octavo.server.body import body_schema, json_body
from octavo.server.chat import PreparedTurn, conversation_of, prepare_turn, run_turn
from octavo.server.refusals import check_chat
from octavo.server.serving import lifecycle_of
from octavo.server.sse import event_stream, named_event, unless_gone
from octavo.server.tools import tool_use

router = APIRouter()


@router.post("/v1/messages", openapi_extra=body_schema(MessagesRequest))
async def messages(request: Request, body: MessagesRequest = json_body(MessagesRequest)) -> Response:
    """Answer a conversation."""
    turn = await prepare_turn(request, to_chat(body), "msg", fit=True)
    writer = MessageWriter(turn.header.id, turn.header.model, body.max_tokens)
    if body.stream:
        keep_alive_s = lifecycle_of(request).server.sse_keep_alive_interval
        return await event_stream(request, _events(turn, writer), keep_alive_s)
    return await unless_gone(request.receive, _whole(turn, writer))


@router.post("/v1/messages/count_tokens", openapi_extra=body_schema(CountRequest))
async def count_tokens(request: Request, body: CountRequest = json_body(CountRequest)) -> Response:
    """How long the prompt would be."""
    serving = lifecycle_of(request).serving()
    serving.check_model(body.model)
    chat = to_chat(body)
    check_chat(chat)
    tool_use(chat.tools, chat.tool_choice)
    token_ids = await serving.prompts.chat(conversation_of(chat))
    return Response(msgspec.json.encode({"input_tokens": len(token_ids)}), media_type="application/json")


async def _whole(turn: PreparedTurn, writer: MessageWriter) -> Response:
    async with aclosing(run_turn(turn)) as stream:
        async for news in stream:
            for _ in writer.events(news):
                pass
    return Response(msgspec.json.encode(writer.message()), media_type="application/json")


async def _events(turn: PreparedTurn, writer: MessageWriter) -> AsyncGenerator[bytes]:
    async with aclosing(run_turn(turn)) as stream:
        async for news in stream:
            made = b"".join(named_event(name, msgspec.json.encode({"type": name, **data}))
                            for name, data in writer.events(news))  # fmt: skip
            if made:
                yield made
