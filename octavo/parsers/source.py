"""A text that arrives in pieces, read as if it were whole: every question about it waits until more text could not
change the answer. So what a reader does depends on the text alone, never on how it was cut.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from octavo.parsers.events import Steps


class Stops:
    """Strings at which a run of text ends."""

    def __init__(self, *markers: str) -> None:
        self.markers = tuple(marker for marker in markers if marker)
        # Longest first, so that of two that begin at the same place the longer is found.
        ordered = sorted(self.markers, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered)) if ordered else r"(?!)")
        self._longest = max(map(len, self.markers), default=0)

    def find(self, text: str, start: int) -> re.Match[str] | None:
        """The first marker in `text` from `start` on."""
        return self._pattern.search(text, start)

    def may_begin(self, text: str, start: int) -> int:
        """Where, from `start` on, a marker may have begun that is not complete; the text's length if nowhere."""
        for place in range(max(start, len(text) - self._longest + 1), len(text)):
            tail = text[place:]
            if any(len(marker) > len(tail) and marker.startswith(tail) for marker in self.markers):
                return place
        return len(text)


class Scanned(NamedTuple):
    """What a scanner makes of the characters it has read."""

    text: str
    num_chars: int


class Source:
    """The text of one answer. `push` and `end` are for its owner, the rest for readers.

    Attributes:
        ended: nothing more will come.
    """

    def __init__(self) -> None:
        self.ended = False
        self._text = ""
        self._place = 0  # of the next character, in `_text`
        self._dropped = 0  # characters before `_text`
        self._marks: list[int] = []

    def push(self, text: str) -> None:
        """Append a piece."""
        keep = min([self.position, *self._marks]) - self._dropped
        self._text = self._text[keep:] + text
        self._dropped += keep
        self._place -= keep

    def end(self) -> None:
        """Nothing more will come."""
        self.ended = True

    # ------------------------------------------------------------ going back

    @property
    def position(self) -> int:
        """Characters read so far."""
        return self._dropped + self._place

    def mark(self) -> int:
        """Remember this place until `forget`."""
        self._marks.append(self.position)
        return self.position

    def forget(self, mark: int) -> None:
        """No reader will go back there."""
        if mark in self._marks:
            self._marks.remove(mark)

    def commit(self) -> None:
        """No reader will go back at all: what was read has been told."""
        self._marks.clear()

    def back(self, mark: int) -> None:
        """Read on from a mark, which is forgotten."""
        self._marks.remove(mark)
        self._place = mark - self._dropped

    # ------------------------------------------------------------ reading

    def more(self) -> Steps[bool]:
        """Wait for more text. False at the end."""
        have = self._dropped + len(self._text)
        while not self.ended and self._dropped + len(self._text) == have:
            yield None
        return self._dropped + len(self._text) > have

    def peek(self) -> Steps[str]:
        """The next character; "" at the end."""
        while self._place == len(self._text):
            if not (yield from self.more()):
                return ""
        return self._text[self._place]

    def advance(self, num_chars: int) -> None:
        """Read characters that are known to be there."""
        self._place += num_chars

    def scan(self, advance: Callable[[str, int, bool], Scanned]) -> str:
        """Let a scanner read on from here, and return what it makes of it.

        Args:
            advance: takes the text so far, the place in it, and whether nothing comes after it.
        """
        scanned = advance(self._text, self._place, self.ended)
        self._place += scanned.num_chars
        return scanned.text

    @property
    def exhausted(self) -> bool:
        """Whether all of the text has been read."""
        return self.ended and self._place == len(self._text)

    def at(self, marker: str, *, or_cut: bool = False) -> Steps[bool]:
        """Whether the text goes on with `marker`.

        Args:
            or_cut: the beginning of the marker will do, where the text ends inside it.
        """
        while not self._text.startswith(marker, self._place):
            rest = self._text[self._place : self._place + len(marker)]
            if len(rest) == len(marker) or not marker.startswith(rest):
                return False
            if not (yield from self.more()):
                return or_cut and bool(rest)
        return True

    def take(self, marker: str, *, or_cut: bool = False) -> Steps[bool]:
        """Read `marker` if the text goes on with it; arguments as above."""
        found = yield from self.at(marker, or_cut=or_cut)
        if found:
            self._place = min(self._place + len(marker), len(self._text))
        return found

    def skip_space(self) -> Steps[str]:
        """Read blanks, and return them."""
        found: list[str] = []
        while (character := (yield from self.peek())).isspace():
            found.append(character)
            self._place += 1
        return "".join(found)

    def word(self, allowed: re.Pattern[str], limit: int) -> Steps[str]:
        """Read the characters that match `allowed`, `limit` at most."""
        found: list[str] = []
        while len(found) < limit and (character := (yield from self.peek())) and allowed.match(character):
            found.append(character)
            self._place += 1
        return "".join(found)

    def piece(self, stops: Stops, *, trim: bool = False, or_cut: bool = False) -> Steps[str]:
        """Read some text before the next stop; "" if there is none, because a stop or the end is here.

        Args:
            trim: the blanks before a stop count to the stop, and are left for the caller.
            or_cut: the beginning of a marker at the end of the text is a stop too.
        """
        while True:
            found = stops.find(self._text, self._place)
            whole = self.ended and not or_cut
            unsure = len(self._text) if whole else stops.may_begin(self._text, self._place)
            end = unsure if found is None or unsure < found.start() else found.start()
            at_stop = end == found.start() if found is not None else self.ended and end < len(self._text)
            text = self._text[self._place : end]
            if trim and not (self.ended and not at_stop):
                text = text.rstrip()
            if text or at_stop:
                self._place += len(text)
                return text
            if not (yield from self.more()) and self._place == len(self._text):
                return ""

    def upto(self, stops: Stops) -> Steps[str | None]:
        """Read all text before the next stop; None if there is no stop up to the end."""
        parts = []
        while part := (yield from self.piece(stops)):
            parts.append(part)
        return "".join(parts) if (yield from self.peek()) else None
