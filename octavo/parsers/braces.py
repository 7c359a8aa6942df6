"""Calls in Gemma's own notation: call:name{key:<escape>text<escape>,n:3}."""

import re
from dataclasses import dataclass

from octavo.parsers.calls import MAX_NAME, Calls, broken_call
from octavo.parsers.events import ArgumentsDelta, CallEnded, Steps
from octavo.parsers.json_text import json_string, string_body
from octavo.parsers.parameters import typed_value
from octavo.parsers.source import Source, Stops

MAX_DEPTH = 64
_NAME = re.compile(r"[\w./-]")
_KEY = re.compile(r"[^\s,:{}\[\]<>]")
_BARE = re.compile(r"[^,{}\[\]<>]")


@dataclass(frozen=True)
class BracedCalls:
    """`call:name{...}` with bare keys, and strings between quotes of the format's own.

    Args:
        quote: stands before and behind a string.
    """

    quote: str

    def read(self, source: Source, calls: Calls, close: str) -> Steps[bool]:
        """As `Layout.read`. A model that forgets the word `call` is forgiven."""
        yield from source.skip_space()
        yield from source.take("call")
        yield from source.take(":")
        name = yield from source.word(_NAME, MAX_NAME)
        if not calls.accepts(name) or not (yield from source.at("{")):
            return False
        begun = calls.begin(name)
        yield begun
        if not (yield from self._value(source, begun.index, 0)):
            yield from broken_call(source, begun.index, close)
            return True
        yield CallEnded(begun.index, True)
        return True

    def _value(self, source: Source, index: int, depth: int) -> Steps[bool]:
        """One value, as JSON. False: this is none."""
        if depth > MAX_DEPTH:
            return False
        if (yield from source.take(self.quote, or_cut=True)):
            return (yield from self._string(source, index))
        opened = yield from source.peek()
        if opened and opened in "{[":
            source.advance(1)
            return (yield from self._members(source, index, "}" if opened == "{" else "]", depth))
        text = yield from source.word(_BARE, 4096)
        if not text.strip() or not (yield from source.peek()):
            return False
        yield ArgumentsDelta(index, typed_value(text.strip(), frozenset()))
        return True

    def _string(self, source: Source, index: int) -> Steps[bool]:
        ends = Stops(self.quote)
        yield ArgumentsDelta(index, '"')
        while text := (yield from source.piece(ends, or_cut=True)):
            yield ArgumentsDelta(index, string_body(text))
        if not (yield from source.take(self.quote)):
            yield from source.take(self.quote, or_cut=True)
            return False
        yield ArgumentsDelta(index, '"')
        return True

    def _members(self, source: Source, index: int, closer: str, depth: int) -> Steps[bool]:
        """What stands between braces or brackets."""
        yield ArgumentsDelta(index, "{" if closer == "}" else "[")
        yield from source.skip_space()
        first = True
        while not (yield from source.take(closer)):
            if not first and not (yield from source.take(",")):
                return False
            yield from source.skip_space()
            before = "" if first else ", "
            first = False
            if closer == "}":
                quoted = yield from source.take(self.quote)
                key = yield from source.word(_KEY, MAX_NAME)
                if quoted:
                    yield from source.take(self.quote)
                if not key or not (yield from source.take(":")):
                    return False
                before += f"{json_string(key)}: "
                yield from source.skip_space()
            if before:
                yield ArgumentsDelta(index, before)
            if not (yield from self._value(source, index, depth + 1)):
                return False
            yield from source.skip_space()
        yield ArgumentsDelta(index, closer)
        return True
