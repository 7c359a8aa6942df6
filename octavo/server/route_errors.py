"""Routes of other APIs answer failures in the form of theirs. Knows no form."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from octavo.errors import EngineError
from octavo.server.errors import ClientGone, Failure, failure


def answering_failures(answer: Callable[[Failure], Response]) -> type[APIRoute]:
    """The class of routes that answer whatever fails in them, and in reading their bodies, by `answer`."""

    class Route(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def handled(request: Request) -> Response:
                try:
                    return await handle(request)
                except ClientGone:
                    raise
                except Exception as err:
                    found = failure(err)
                    if found.status == 500 and not isinstance(err, EngineError):
                        raise  # a bug; its cause belongs into the log
                    return answer(found)

            return handled

    return Route
