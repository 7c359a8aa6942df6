"""Objects that clients made and come back for, by kind: in one SQLite file or in memory. Knows no kind.

Every object belongs to an owner (the name of a key), whom alone it exists for, and has an end. Writes are small
and few, so they are made where they are asked for; WAL keeps them from waiting for the disk.
"""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec
from starlette.requests import Request

from octavo.errors import NotFoundError

SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
    serial INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, id TEXT NOT NULL, owner TEXT NOT NULL,
    expires_at REAL NOT NULL, body BLOB NOT NULL, UNIQUE (kind, id)
);
CREATE INDEX IF NOT EXISTS by_end ON objects (kind, expires_at);
"""

NEVER = float("inf")


class Identified(Protocol):
    """What a collection holds."""

    id: str


T = TypeVar("T", bound=Identified)


class Page(NamedTuple, Generic[T]):
    """A part of a list, and whether there is more."""

    items: list[T]
    has_more: bool


def owner_of(request: Request) -> str:
    """Whose objects a request may see: those of its key's name. Without keys there is one owner."""
    return str(getattr(request.state, "tenant", ""))


def open_database(path: Path | None) -> sqlite3.Connection:
    """The file at `path`, made if it is not there; None is memory. Use it in one thread."""
    database = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=NORMAL")
    database.executescript(SCHEMA)
    return database


class Collection(Generic[T]):
    """The objects of one kind.

    Args:
        kind: as it is stored; `noun` is what errors call one.
        max_count, max_bytes: beyond these the oldest make room for new ones; None leaves that to the caller.
    """

    def __init__(
        self,
        database: sqlite3.Connection,
        kind: str,
        noun: str,
        type: type[T],
        max_count: int | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self._database = database
        self._kind = kind
        self._noun = noun
        self._decode: Callable[[bytes], T] = msgspec.json.Decoder(type).decode
        self._max_count = max_count
        self._max_bytes = max_bytes

    def put(self, item: T, owner: str, expires_at: float = NEVER) -> None:
        """Add or replace an object; a replaced one keeps its place in lists."""
        self._database.execute(
            "INSERT INTO objects (kind, id, owner, expires_at, body) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (kind, id) DO UPDATE SET body = excluded.body, expires_at = excluded.expires_at",
            (self._kind, item.id, owner, min(expires_at, 1e18), msgspec.json.encode(item)),
        )
        if self._max_count is not None:
            self._database.execute(
                "DELETE FROM objects WHERE kind = ? AND serial <= "
                "(SELECT serial FROM objects WHERE kind = ? ORDER BY serial DESC LIMIT 1 OFFSET ?)",
                (self._kind, self._kind, self._max_count),
            )
        while self._max_bytes is not None and self._size() > self._max_bytes:
            self._database.execute(
                "DELETE FROM objects WHERE serial = (SELECT MIN(serial) FROM objects WHERE kind = ?)", (self._kind,)
            )

    def get(self, item_id: str, owner: str, *, param: str | None = None) -> T:
        """The object of that id.

        Raises:
            NotFoundError: there is none for this owner, or its time is over.
        """
        row = self._database.execute(
            "SELECT body FROM objects WHERE kind = ? AND id = ? AND owner = ? AND expires_at > ?",
            (self._kind, item_id, owner, time.time()),
        ).fetchone()
        if row is None:
            raise NotFoundError(f"there is no {self._noun} {item_id[:80]!r}; it may have been deleted", param=param)
        return self._decode(row[0])

    def delete(self, item_id: str) -> None:
        """Forget an object."""
        self._database.execute("DELETE FROM objects WHERE kind = ? AND id = ?", (self._kind, item_id))

    def page(
        self,
        owner: str,
        *,
        limit: int,
        after: str | None = None,
        newest_first: bool = True,
        wanted: Callable[[T], bool] = lambda item: True,
    ) -> Page[T]:
        """At most `limit` objects that follow the one with id `after`, in the order they were made.

        Raises:
            NotFoundError: there is no such object to follow.
        """
        if after is not None:
            self.get(after, owner, param="after")
        sign, order = ("<", "DESC") if newest_first else (">", "ASC")
        rows = self._database.execute(
            "SELECT body FROM objects WHERE kind = ? AND owner = ? AND expires_at > ? AND (? IS NULL OR serial "
            f"{sign} (SELECT serial FROM objects WHERE kind = ? AND id = ?)) ORDER BY serial {order}",
            (self._kind, owner, time.time(), after, self._kind, after),
        )
        found: list[T] = []
        for (body,) in rows:
            item = self._decode(body)
            if not wanted(item):
                continue
            if len(found) == limit:
                return Page(found, True)
            found.append(item)
        return Page(found, False)

    def everyones(self) -> list[tuple[str, T]]:
        """(owner, object) for all, oldest first."""
        rows = self._database.execute("SELECT owner, body FROM objects WHERE kind = ? ORDER BY serial", (self._kind,))
        return [(owner, self._decode(body)) for owner, body in rows]

    def count(self) -> int:
        """Objects of this kind."""
        (count,) = self._database.execute("SELECT COUNT(*) FROM objects WHERE kind = ?", (self._kind,)).fetchone()
        return int(count)

    def take_expired(self) -> list[T]:
        """Remove the objects whose time is over, and return them."""
        rows = self._database.execute(
            "DELETE FROM objects WHERE kind = ? AND expires_at <= ? RETURNING body", (self._kind, time.time())
        ).fetchall()
        return [self._decode(body) for (body,) in rows]

    def _size(self) -> int:
        """Bytes of all objects of this kind."""
        query = "SELECT COALESCE(SUM(LENGTH(body)), 0) FROM objects WHERE kind = ?"
        (size,) = self._database.execute(query, (self._kind,)).fetchone()
        return int(size)
