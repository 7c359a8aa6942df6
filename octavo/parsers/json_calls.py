"""Calls as JSON objects: {"name": ..., "arguments": ...}, one, several, or a list; and a name before JSON arguments."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.parsers.calls import MAX_NAME, NAME_CHARACTER, NO_FRAME, Calls, Tool, call_list, json_arguments, whole_call
from octavo.parsers.events import CallEnded, Steps
from octavo.parsers.json_text import json_string, read_json
from octavo.parsers.source import Source

if TYPE_CHECKING:
    from octavo.parsers.lark import GrammarWriter

ARGUMENT_KEYS = frozenset(["arguments", "parameters"])
OTHER_KEYS = frozenset(["id", "type", "index"])


@dataclass(frozen=True)
class JsonCalls:
    """`{"name": "f", "arguments": {...}}`, with either key first; a list of such; several, with separators between.

    `{"type": "function", "function": {"name": ..., "arguments": ...}}` is read too.

    Args:
        arguments: the key the model was trained on, for the grammar.
        listed: calls stand in a list, for the grammar.
        separators: characters that may stand between objects that are in no list.
    """

    arguments: str = "arguments"
    listed: bool = False
    separators: str = ";,"

    @property
    def frame(self) -> tuple[str, str, str]:
        """As in `Layout`."""
        return ("[", ", ", "]") if self.listed else NO_FRAME

    def call_rule(self, tool: Tool, writer: "GrammarWriter") -> str:
        """As `Layout.call_rule`."""
        head = f'{{"name": {json_string(tool.name)}, "{self.arguments}": '
        return f"{writer.text(head)} {writer.json(tool.schema)} {writer.text('}')}"

    def read(self, source: Source, calls: Calls, close: str) -> Steps[bool]:
        """As `Layout.read`."""
        yield from source.skip_space()
        if not (yield from source.take("[")):
            return (yield from self._objects(source, calls, close))
        return (yield from call_list(source, calls, lambda: _object(source, calls, close)))

    def _objects(self, source: Source, calls: Calls, close: str) -> Steps[bool]:
        if not (yield from _object(source, calls, close)):
            return False
        while True:
            yield from source.skip_space()
            mark = source.mark()
            separator = yield from source.peek()
            if not separator or separator not in self.separators:
                source.back(mark)
                return True
            source.advance(1)
            yield from source.skip_space()
            if not (yield from _object(source, calls, close)):
                source.back(mark)
                return True
            source.forget(mark)


def _object(source: Source, calls: Calls, close: str) -> Steps[bool]:
    """One object. False, with nothing yielded: it is no call."""
    if not (yield from source.take("{")):
        return False
    name: str | None = None
    early: str | None = None  # arguments that came before the name
    wraps = False
    while True:
        yield from source.skip_space()
        key = yield from _key(source)
        if key == "name" or (key == "function" and not (yield from source.at("{"))):
            value = yield from read_json(source)
            name = json.loads(value) if value is not None and value.startswith('"') else None
            if name is None or not calls.accepts(name):
                return False
            if early is not None:
                break
        elif key in ARGUMENT_KEYS and name is not None:
            return (yield from _arguments(source, calls, name, close, wraps))
        elif key in ARGUMENT_KEYS:
            early = yield from read_json(source)
            if early is None:
                return False
        elif key == "function" and not wraps:
            yield from source.take("{")
            wraps = True
            continue
        elif key not in OTHER_KEYS or (yield from read_json(source)) is None:
            return False
        yield from source.skip_space()
        if (yield from source.take(",")):
            continue
        if not (yield from source.take("}")):
            return False
        break
    if name is None:
        return False
    yield from whole_call(calls, name, _as_object(early))
    yield from _close_object(source, wraps)
    return True


def _key(source: Source) -> Steps[str | None]:
    """The key before the next value, and the colon; None if there is none."""
    if not (yield from source.at('"')):
        return None
    key = yield from read_json(source)
    yield from source.skip_space()
    if key is None or not (yield from source.take(":")):
        return None
    yield from source.skip_space()
    found: str = json.loads(key)
    return found


def _arguments(source: Source, calls: Calls, name: str, close: str, wraps: bool) -> Steps[bool]:
    """The arguments, which are passed on as they come, and the rest of the object."""
    if (yield from source.at("{")):
        begun = calls.begin(name)
        yield begun
        if not (yield from json_arguments(source, begun.index, close)):
            return True
        yield CallEnded(begun.index, True)
    else:
        value = yield from read_json(source)
        if value is None:
            return False
        yield from whole_call(calls, name, _as_object(value))
    yield from _close_object(source, wraps)
    return True


def _close_object(source: Source, wraps: bool) -> Steps[None]:
    """Keys behind the arguments (an id, say), and the braces; a model that forgets them is forgiven."""
    for _ in range(2 if wraps else 1):
        yield from source.skip_space()
        while (yield from source.take(",")):
            yield from source.skip_space()
            if (yield from _key(source)) is None or (yield from read_json(source)) is None:
                return
            yield from source.skip_space()
        yield from source.take("}")


def _as_object(value: str | None) -> str:
    """Arguments that were left out, null, or an object inside a string, as the text of an object."""
    if value is None or value == "null":
        return "{}"
    if not value.startswith('"'):
        return value
    text: str = json.loads(value)
    try:
        inside = json.loads(text) if text.strip() else {}
        text.encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError):
        return value
    return (text if text.strip() else "{}") if isinstance(inside, dict) else value


@dataclass(frozen=True)
class NamedJson:
    """`name<marker>{...}`: the name, a marker, and JSON arguments.

    Args:
        name_ends: markers between name and arguments; none if the arguments follow at once.
        id_begins: stands between the name and an id that the model gives.
        prefix: stands before the name.
        suffix: stands behind the arguments.
        numbered: the name ends with the number of the call, and all of it is the call's id.
        or_json: a list or an object in the name's place is read as `JsonCalls` would.
    """

    name_ends: tuple[str, ...] = ()
    id_begins: str = ""
    prefix: str = ""
    suffix: str = ""
    numbered: bool = False
    or_json: bool = False
    frame: tuple[str, str, str] = NO_FRAME

    def call_rule(self, tool: Tool, writer: "GrammarWriter") -> str:
        """As `Layout.call_rule`. A model without the marker behind the name is an older one, which writes objects."""
        if self.or_json and not any(end in writer.special for end in self.name_ends):
            return f"{writer.text(' [')} {JsonCalls().call_rule(tool, writer)} {writer.text(']')}"
        number = '":" /[0-9]{1,3}/' if self.numbered else ""
        before = f"{writer.text(self.prefix + tool.name)} {number} {writer.text(''.join(self.name_ends[:1]))}"
        return f"{before} {writer.json(tool.schema)} {writer.text(self.suffix)}"

    def read(self, source: Source, calls: Calls, close: str) -> Steps[bool]:
        """As `Layout.read`."""
        yield from source.skip_space()
        if self.or_json and (yield from source.peek()) in ("[", "{"):
            return (yield from JsonCalls().read(source, calls, close))
        prefixed = yield from source.take(self.prefix)
        name = yield from source.word(NAME_CHARACTER, MAX_NAME)
        call_id = None
        if self.numbered:
            given = (self.prefix if prefixed else "") + name
            name, colon, number = name.rpartition(":")
            if not colon or not number.isdigit():
                return False
            call_id = given
        yield from source.skip_space()
        if self.id_begins and (yield from source.take(self.id_begins)):
            call_id = yield from source.word(NAME_CHARACTER, MAX_NAME)
        for marker in self.name_ends:
            if (yield from source.take(marker.strip())):
                break
        yield from source.skip_space()
        if not calls.accepts(name) or not (yield from source.at("{")):
            return False
        begun = calls.begin(name, call_id)
        yield begun
        if not (yield from json_arguments(source, begun.index, close)):
            return True
        yield CallEnded(begun.index, True)
        yield from source.skip_space()
        if self.suffix:
            yield from source.take(self.suffix.strip(), or_cut=True)
        return True
