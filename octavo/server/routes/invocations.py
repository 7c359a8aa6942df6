"""POST /invocations, the one route that SageMaker sends to: the body's fields say which route is meant."""

from typing import Any, cast

from fastapi import APIRouter
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from octavo.errors import ClientError
from octavo.server.body import parse_json

router = APIRouter()

ROUTE_OF = {
    "messages": "/v1/chat/completions",
    "prompt": "/v1/completions",
    "documents": "/v1/rerank",
    "text_1": "/v1/score",
    "input": "/v1/embeddings",
}
"""By the first of these fields that the body has."""


class Invocations:
    """An ASGI app that hands a request on to the route it means, with all that stands before that route behind it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = await request.body()
        fields = parse_json(body, request.headers.get("content-type"))
        path = next((path for field, path in ROUTE_OF.items() if field in fields), None)
        if path is None:
            raise ClientError(f"the body has none of the fields {', '.join(ROUTE_OF)}, so no route is meant")
        sent = False

        async def again() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        path = scope.get("root_path", "") + path
        await scope["router"]({**scope, "path": path, "raw_path": path.encode()}, again, send)


router.add_route("/invocations", cast(Any, Invocations()), methods=["POST"])
