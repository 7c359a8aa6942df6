"""An answer as a row of blocks that open, grow and close, as the responses and messages APIs tell it. Knows neither."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from octavo.parsers.events import ArgumentsDelta, CallBegun, CallEnded, ContentDelta, Event, ReasoningDelta

Kind = Literal["reasoning", "text", "call"]


@dataclass
class Block:
    """One block so far.

    Attributes:
        index: its place in the answer.
        text: of a call, its arguments.
        call_id, name: of a call.
        complete: False for a call whose arguments are not JSON.
    """

    index: int
    kind: Kind
    text: str = ""
    call_id: str = ""
    name: str = ""
    complete: bool = True


class Opened(NamedTuple):
    """A block begins."""

    block: Block


class Grew(NamedTuple):
    """A block has more text, which is in `block.text` already."""

    block: Block
    text: str


class Closed(NamedTuple):
    """A block is over."""

    block: Block


Step = Opened | Grew | Closed


class BlockReader:
    """Cuts the events of one answer into blocks, of which one is open at a time.

    Attributes:
        blocks: all so far.
    """

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._open: Block | None = None

    def read(self, events: Iterable[Event], *, ended: bool) -> Iterator[Step]:
        """What news say; with `ended`, nothing follows."""
        for event in events:
            match event:
                case ReasoningDelta(text):
                    yield from self._grow("reasoning", text)
                case ContentDelta(text):
                    yield from self._grow("text", text)
                case CallBegun(_, call_id, name):
                    yield from self._start(Block(len(self.blocks), "call", call_id=call_id, name=name, complete=False))
                case ArgumentsDelta(_, text):
                    yield from self._grow("call", text)
                case CallEnded(_, complete):
                    if self._open is not None and self._open.kind == "call":
                        self._open.complete = complete
                        yield from self._close()
        if ended:
            yield from self._close()

    def _grow(self, kind: Kind, text: str) -> Iterator[Step]:
        if self._open is None or self._open.kind != kind:
            yield from self._start(Block(len(self.blocks), kind))
        block = self._open
        assert block is not None  # it was opened just now
        block.text += text
        yield Grew(block, text)

    def _start(self, block: Block) -> Iterator[Step]:
        yield from self._close()
        self._open = block
        self.blocks.append(block)
        yield Opened(block)

    def _close(self) -> Iterator[Step]:
        block, self._open = self._open, None
        if block is not None:
            yield Closed(block)
