"""Responses that clients may come back to, and those that run in the background. Bounded in number, size and age."""

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec

from octavo.errors import OverloadedError
from octavo.server.collection import Collection, open_database
from octavo.server.response_items import Item

MAX_BACKGROUND = 256
MAX_BYTES = 1 << 30
"""Of all kept responses together."""

SHUT_DOWN = {"code": "server_error", "message": "the server was shut down before the response was done"}


class StoredResponse(msgspec.Struct):
    """A response, and the items of the conversation that it answers."""

    id: str
    response: dict[str, Any]
    items: list[Item]


class ResponseStore:
    """Owns the kept responses and the tasks behind those that are not done.

    Args:
        path: SQLite file; None keeps them in memory.
        max_count: the oldest go first.
        lifetime_s: how long one is kept.
    """

    def __init__(self, path: str | None, max_count: int, lifetime_s: int) -> None:
        if path is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._database = open_database(None if path is None else Path(path))
        self._objects: Collection[StoredResponse] = Collection(
            self._database, "response", "response", StoredResponse, max_count, MAX_BYTES
        )
        self._lifetime_s = lifetime_s
        self._tasks: dict[str, asyncio.Task[None]] = {}
        for owner, stored in self._objects.everyones():
            self._end_unfinished(stored, owner)

    def get(self, response_id: str, owner: str, *, param: str = "response_id") -> StoredResponse:
        """A kept response.

        Raises:
            NotFoundError: there is none.
        """
        return self._objects.get(response_id, owner, param=param)

    def put(self, stored: StoredResponse, owner: str) -> None:
        """Keep a response, or what has become of it."""
        self._objects.take_expired()
        self._objects.put(stored, owner, time.time() + self._lifetime_s)

    async def delete(self, response_id: str) -> None:
        """Forget a response; one that runs is ended."""
        await self.cancel(response_id)
        self._objects.delete(response_id)

    def run(self, response_id: str, work: Coroutine[Any, Any, None]) -> None:
        """Go on with a response in the background.

        Raises:
            OverloadedError: too many do already.
        """
        if len(self._tasks) >= MAX_BACKGROUND:
            work.close()
            raise OverloadedError(
                f"{MAX_BACKGROUND} responses run in the background, which is the limit; try again later"
            )
        task = asyncio.get_running_loop().create_task(work, name=response_id)
        self._tasks[response_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(response_id, None))

    async def cancel(self, response_id: str) -> None:
        """End a background response and wait until it has."""
        task = self._tasks.get(response_id)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        """End what runs, and let go of the file."""
        for response_id in list(self._tasks):
            await self.cancel(response_id)
        self._database.close()

    def _end_unfinished(self, stored: StoredResponse, owner: str) -> None:
        """A response of a server that is no more will not be done."""
        if stored.response["status"] in ("queued", "in_progress"):
            stored.response |= {"status": "failed", "error": SHUT_DOWN}
            self.put(stored, owner)
