"""JSON that arrives in pieces: where a value ends, and whether it is JSON at all. Text goes through as the model wrote
it, but for raw control characters inside strings, which are escaped, so that a newline in a string is still JSON.
"""

import json
import re

from octavo.parsers.events import Steps
from octavo.parsers.source import Scanned, Source

MAX_DEPTH = 200
"""Deeper nesting is no call; parsers that clients use give up near 1,000."""

_SPACE = re.compile(r"[ \t\r\n]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_BEGUN_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_SCALAR = re.compile(r"[-+.0-9A-Za-z]+")
_IS_SCALAR = re.compile(r"(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null)\Z")


class JsonScanner:
    """Finds the end of one JSON value.

    Attributes:
        done: the value is complete.
        broken: the next character cannot go on a JSON value.
    """

    def __init__(self) -> None:
        self.done = False
        self.broken = False
        self._closers: list[str] = []  # of the open objects and arrays, innermost last
        self._in_string = False
        self._expects = "value"  # or "key", "colon", "more"; with "?" also an end: "value?", "key?"

    def advance(self, text: str, start: int, ended: bool) -> Scanned:
        """Read as much from `start` on as can be judged. What is left over must come again, with more behind it."""
        out: list[str] = []
        place = start
        while place < len(text) and not (self.done or self.broken):
            step = self._string(text, place, ended) if self._in_string else self._plain(text, place, ended)
            if not step.num_chars:
                break
            out.append(step.text)
            place += step.num_chars
        return Scanned("".join(out), place - start)

    def _string(self, text: str, place: int, ended: bool) -> Scanned:
        character = text[place]
        if character == '"':
            self._in_string = False
            if self._expects.startswith("key"):
                self._expects = "colon"
            else:
                self._value_ended()
            return Scanned('"', 1)
        if character == "\\":
            escape = _ESCAPE.match(text, place)
            if escape is None:
                self.broken = ended or not _BEGUN_ESCAPE.match(text, place)
                return Scanned("", 0)
            return Scanned(escape[0], len(escape[0]))
        if character < " ":
            return Scanned(json.dumps(character)[1:-1], 1)
        plain = _PLAIN.match(text, place)
        assert plain is not None
        return Scanned(plain[0], len(plain[0]))

    def _plain(self, text: str, place: int, ended: bool) -> Scanned:
        character = text[place]
        if character in " \t\r\n":
            space = _SPACE.match(text, place)
            assert space is not None
            return Scanned(space[0], len(space[0]))
        expects = self._expects
        if character == '"' and expects != "more" and expects != "colon":
            self._in_string = True
        elif character in "{[" and expects.startswith("value") and len(self._closers) < MAX_DEPTH:
            self._closers.append("}" if character == "{" else "]")
            self._expects = "key?" if character == "{" else "value?"
        elif character in "}]" and expects in ("more", "key?", "value?") and self._closers[-1:] == [character]:
            self._closers.pop()
            self._value_ended()
        elif character == "," and expects == "more":
            self._expects = "key" if self._closers[-1] == "}" else "value"
        elif character == ":" and expects == "colon":
            self._expects = "value"
        else:
            return self._scalar(text, place, ended)
        return Scanned(character, 1)

    def _scalar(self, text: str, place: int, ended: bool) -> Scanned:
        scalar = _SCALAR.match(text, place)
        if scalar is not None and scalar.end() == len(text) and not ended:
            return Scanned("", 0)  # may go on
        if scalar is None or not self._expects.startswith("value") or not _IS_SCALAR.match(scalar[0]):
            self.broken = True
            return Scanned("", 0)
        self._value_ended()
        return Scanned(scalar[0], len(scalar[0]))

    def _value_ended(self) -> None:
        self._expects = "more"
        self.done = not self._closers


def read_json(source: Source) -> Steps[str | None]:
    """Read one whole JSON value; None if it is none, and then the source is somewhere inside it."""
    scanner = JsonScanner()
    parts: list[str] = []
    while not scanner.done:
        parts.append(source.scan(scanner.advance))
        if scanner.broken or (source.exhausted and not scanner.done):
            return None
        if not scanner.done:
            yield from source.more()
    return "".join(parts)


def json_string(text: str) -> str:
    """`text` as a JSON string, in the letters it has."""
    return json.dumps(text, ensure_ascii=False)


def string_body(text: str) -> str:
    """`text` as it stands between the quotes of a JSON string; pieces may be escaped one by one."""
    return json_string(text)[1:-1]
