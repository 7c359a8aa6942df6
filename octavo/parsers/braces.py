"""Calls in Gemma's own notation: call:name{key:<escape>text<escape>,n:3}."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.parsers.calls import MAX_NAME, NO_FRAME, Calls, Tool, broken_call, sequence, types_of
from octavo.parsers.events import ArgumentsDelta, CallEnded, Steps
from octavo.parsers.json_text import json_string, string_body
from octavo.parsers.parameters import typed_value
from octavo.parsers.source import Source, Stops

if TYPE_CHECKING:
    from octavo.parsers.lark import GrammarWriter

MAX_DEPTH = 64
_BARE_TYPES = frozenset(["number", "integer", "boolean", "null"])
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
    frame: tuple[str, str, str] = NO_FRAME

    def call_rule(self, tool: Tool, writer: "GrammarWriter") -> str:
        """As `Layout.call_rule`."""
        return f"{writer.text('call:' + tool.name)} {self._object_rule(tool.parameters, writer, 0)}"

    def _object_rule(self, schema: Mapping[str, Any], writer: "GrammarWriter", depth: int) -> str:
        members = Tool("", schema)
        if members.open:  # texts under any names
            pair = writer.rule(rf"/[\w-]{{1,64}}/ {writer.text(':' + self.quote)} {writer.upto(self.quote)}")
            return f"{writer.text('{')} ({pair} ({writer.text(',')} {pair})*)? {writer.text('}')}"
        pairs = {
            name: f"{writer.text(name + ':')} {self._value_rule(inner, writer, depth + 1)}"
            for name, inner in members.properties.items()
        }
        return f"{writer.text('{')} {sequence(writer, pairs, members.required, writer.text(','))} {writer.text('}')}"

    def _value_rule(self, schema: Mapping[str, Any], writer: "GrammarWriter", depth: int) -> str:
        """A value."""
        types = types_of(schema)
        values = schema.get("enum")
        if depth > MAX_DEPTH:
            return writer.text("{}")
        if types == {"object"}:
            return self._object_rule(schema, writer, depth)
        if types == {"array"}:
            items = schema.get("items")
            item = writer.rule(self._value_rule(items if isinstance(items, Mapping) else {}, writer, depth + 1))
            return f"{writer.text('[')} ({item} ({writer.text(',')} {item})*)? {writer.text(']')}"
        if types and types <= _BARE_TYPES:
            return writer.json(schema)
        quote = writer.text(self.quote)
        if isinstance(values, list) and all(isinstance(value, str) for value in values):
            return f"{quote} ({' | '.join(writer.text(value) for value in values)}) {quote}"
        return f"{quote} {writer.upto(self.quote)}"

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
