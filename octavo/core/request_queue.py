"""Requests in order of rank: (priority, start by fair share, arrival). The same order admits (from the front) and
preempts (from the back).

First come, first served is the case where everyone has the same priority and is one tenant. A preempted request keeps
its rank and so comes back ahead of all that arrived after it. Knows no pages or budgets.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from octavo.core.request import Request

_rank = attrgetter("rank")


class RequestQueue:
    """A sorted list; adding at the end and taking from the front, the usual cases, are cheap."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def add(self, request: Request) -> None:
        """Put a request in its place."""
        insort(self._requests, request, key=_rank)

    def remove(self, request: Request) -> None:
        """Take out a request that is in the queue."""
        index = bisect_left(self._requests, request.rank, key=_rank)
        assert self._requests[index] is request
        del self._requests[index]

    @property
    def worst(self) -> Request:
        """The last one."""
        return self._requests[-1]

    def __iter__(self) -> Iterator[Request]:
        """In order; the queue must not change meanwhile (take a `list` first)."""
        return iter(self._requests)

    def __len__(self) -> int:
        return len(self._requests)
