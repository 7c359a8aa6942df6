"""What an answer consists of, piece by piece. Joining the pieces of one kind gives the whole, however it was cut."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeVar


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the model's thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A tool is called. Calls are numbered from 0; id and name come once."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of a call's arguments: JSON text, the model's own where it wrote JSON."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A call is over. `complete` says that its arguments are JSON; if not, they are as far as the model got."""

    index: int
    complete: bool


Event = ReasoningDelta | ContentDelta | CallBegun | ArgumentsDelta | CallEnded

T = TypeVar("T")

Steps = Generator[Event | None, None, T]
"""A reader: it yields events, and None when it cannot go on without more text."""


def merged(events: list[Event]) -> list[Event]:
    """The same with neighbouring deltas of one kind joined."""
    out: list[Event] = []
    for event in events:
        last = out[-1] if out else None
        match last, event:
            case (ReasoningDelta(a), ReasoningDelta(b)):
                out[-1] = ReasoningDelta(a + b)
            case (ContentDelta(a), ContentDelta(b)):
                out[-1] = ContentDelta(a + b)
            case (ArgumentsDelta(i, a), ArgumentsDelta(j, b)) if i == j:
                out[-1] = ArgumentsDelta(i, a + b)
            case _:
                out.append(event)
    return out
