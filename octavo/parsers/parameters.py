"""Calls whose arguments are written one by one between tags, as text; the tool's schema says what is a string."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.parsers.calls import MAX_NAME, NAME_CHARACTER, NO_FRAME, Calls, Tool, broken_call, sequence, types_of
from octavo.parsers.events import ArgumentsDelta, CallEnded, Steps
from octavo.parsers.json_text import json_string, string_body
from octavo.parsers.pythonic import as_json
from octavo.parsers.source import Source, Stops

if TYPE_CHECKING:
    from octavo.parsers.lark import GrammarWriter


@dataclass(frozen=True)
class TaggedParameters:
    """A name, then for each argument its key and its value between tags.

    Args:
        name: what stands before and behind the name. An empty end: the name ends where its letters do.
        key: what stands before and behind a key; blanks may stand between the parts of the end.
        value_end: what stands behind a value.
        end: what stands behind the last argument; "" where the call's own marker follows.
        newlines: a value stands between newlines that are not part of it.
        typed: a key says whether its value is text, `string="true"`, or JSON.
    """

    name: tuple[str, str]
    key: tuple[str, str]
    value_end: str
    end: str
    newlines: bool = False
    typed: bool = False
    frame: tuple[str, str, str] = NO_FRAME

    def call_rule(self, tool: Tool, writer: "GrammarWriter") -> str:
        """As `Layout.call_rule`."""
        parts = {name: self._rule(name, types_of(schema), schema, writer) for name, schema in tool.properties.items()}
        head = writer.text(self.name[0] + tool.name + self.name[1] + "\n")
        if tool.open:
            any_text = f"{self._key_end(True, writer)} {writer.upto(self.value_end)}"
            arguments = rf'({writer.text(self.key[0])} /[\w.-]{{1,64}}/ {any_text} "\n")*'
        else:
            arguments = sequence(writer, parts, tool.required, "")
        return f"{head} {arguments} {writer.text(self.end)}"

    def _rule(self, name: str, types: frozenset[str], schema: Mapping[str, Any], writer: "GrammarWriter") -> str:
        """One argument."""
        is_text = types == {"string"}
        begin = f"{writer.text(self.key[0] + name)} {self._key_end(is_text, writer)}"
        newline = "\n" if self.newlines else ""
        end = writer.text(newline + self.value_end + "\n")
        values = schema.get("enum")
        if is_text and isinstance(values, list):
            return f"{begin} ({' | '.join(writer.text(value) for value in values)}) {end}"
        if is_text:
            return rf'{begin} {writer.upto(self.value_end)} "\n"'
        return f"{begin} {writer.json(schema)} {end}"

    def _key_end(self, is_text: bool, writer: "GrammarWriter") -> str:
        """What stands between a key and its value."""
        text = self.key[1].replace(" ", "\n")
        if self.typed:
            text += f' string="{str(is_text).lower()}"'
        if text.startswith('"'):
            text += ">"
        return writer.text(text + "\n" * self.newlines)

    def read(self, source: Source, calls: Calls, close: str) -> Steps[bool]:
        """As `Layout.read`."""
        yield from source.skip_space()
        if self.name[0] and not (yield from source.take(self.name[0])):
            return False
        name = yield from source.word(NAME_CHARACTER, MAX_NAME)
        if not calls.accepts(name) or not (yield from source.take(self.name[1])):
            return False
        yield from source.skip_space()
        if not (yield from self._goes_on(source, close)):
            return False
        begun = calls.begin(name)
        yield begun
        opening = "{"
        while (yield from source.take(self.key[0])):
            mark = source.mark()
            key = yield from self._key(source)
            if key is None:
                if (yield from source.peek()):
                    source.back(mark)
                yield from broken_call(source, begun.index, close)
                return True
            source.forget(mark)
            yield ArgumentsDelta(begun.index, f"{opening}{json_string(key.name)}: ")
            opening = ", "
            types = key.types or calls.types(name, key.name)
            if not (yield from self._value(source, begun.index, types)):
                yield CallEnded(begun.index, False)
                return True
            yield from source.skip_space()
        if (yield from source.take(self.key[0], or_cut=True)) or not (yield from self._ends(source, close)):
            yield from broken_call(source, begun.index, close)
            return True
        yield ArgumentsDelta(begun.index, "{}" if opening == "{" else "}")
        yield CallEnded(begun.index, True)
        return True

    def _goes_on(self, source: Source, close: str) -> Steps[bool]:
        """Whether an argument or the end follows the name."""
        return (yield from source.at(self.key[0])) or (yield from source.at(self.end or close))

    def _ends(self, source: Source, close: str) -> Steps[bool]:
        """Read the end, or half of it where the answer ends; the call's own marker, where that ends it, is left."""
        if self.end:
            return (yield from source.take(self.end, or_cut=True))
        return (yield from source.at(close, or_cut=True))

    def _key(self, source: Source) -> Steps["_Key | None"]:
        """A key, up to where its value begins."""
        first, *others = self.key[1].split(" ")
        name = yield from source.upto(Stops(first, "\n"))
        if not name or not (yield from source.take(first, or_cut=True)):
            return None
        types: frozenset[str] = frozenset()
        if first == '"':  # attributes
            attributes = yield from source.upto(Stops(">"))
            if attributes is None:
                return None
            source.advance(1)
            if 'string="' in attributes:
                types = frozenset(["string"] if 'string="true"' in attributes else ["object"])
        for part in others:
            yield from source.skip_space()
            if not (yield from source.take(part, or_cut=True)):
                return None
        return _Key(name.strip(), types)

    def _value(self, source: Source, index: int, types: frozenset[str]) -> Steps[bool]:
        """A value, as JSON. A string is passed on as it comes. False: the answer ends inside it."""
        if self.newlines:
            yield from source.take("\n")
        ends = Stops("\n" + self.value_end, self.value_end) if self.newlines else Stops(self.value_end)
        if types != {"string"}:
            text = yield from source.upto(ends)
            if text is None:
                return False
            yield ArgumentsDelta(index, typed_value(text, types))
        else:
            yield ArgumentsDelta(index, '"')
            while text := (yield from source.piece(ends, or_cut=True)):
                yield ArgumentsDelta(index, string_body(text))
        if self.newlines:
            yield from source.take("\n")
        if not (yield from source.take(self.value_end)):
            yield from source.take(self.value_end, or_cut=True)
            return False
        if types == {"string"}:
            yield ArgumentsDelta(index, '"')
        return True


@dataclass(frozen=True)
class _Key:
    """A key, and the types that its tag names."""

    name: str
    types: frozenset[str]


def typed_value(text: str, types: frozenset[str]) -> str:
    """JSON for a value that was written as bare text, by what its parameter may be.

    What is JSON stays as it is, if the parameter can be something else than a string; Python's True and None and its
    lists and dicts become JSON; all else is a string.
    """
    if types == {"string"}:
        return json_string(text)
    stripped = text.strip()
    try:
        value = json.loads(stripped, parse_constant=_refuse)
    except (ValueError, RecursionError):
        literal = as_json(stripped) if stripped[:1] in ("[", "{", "T", "F", "N") else None
        return json_string(text) if literal is None else literal
    if isinstance(value, str) or ("string" in types and not _is_one_of(value, types)):
        return stripped if isinstance(value, str) and "string" not in types else json_string(text)
    return stripped


def _refuse(name: str) -> None:
    raise ValueError(name)


def _is_one_of(value: object, types: frozenset[str]) -> bool:
    """Whether a JSON value is of one of these types."""
    if value is None:
        return "null" in types
    if isinstance(value, bool):
        return "boolean" in types
    if isinstance(value, int):
        return bool(types & {"integer", "number"})
    if isinstance(value, float):
        return "number" in types
    return ("array" if isinstance(value, list) else "object") in types
