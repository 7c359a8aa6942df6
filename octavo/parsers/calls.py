"""The calls of one answer, and the tools it may call. Every layout (how a format writes a call) works through these."""

import re
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from octavo.parsers.events import ArgumentsDelta, CallBegun, CallEnded, Steps
from octavo.parsers.json_text import JsonScanner
from octavo.parsers.source import Source, Stops

if TYPE_CHECKING:
    from octavo.parsers.lark import GrammarWriter

NO_FRAME = ("", "", "")
NAME_CHARACTER = re.compile(r"[\w.:/-]")
MAX_NAME = 256
_NAME = re.compile(r"[\w.:/-]{1,256}\Z")


class Tool(NamedTuple):
    """A function that the model may call. `parameters` is a JSON schema of its arguments."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool = False

    @property
    def properties(self) -> dict[str, Mapping[str, Any]]:
        """Schemas of the arguments by name."""
        found = self.parameters.get("properties")
        inner = found if isinstance(found, Mapping) else {}
        return {name: schema if isinstance(schema, Mapping) else {} for name, schema in inner.items()}

    @property
    def schema(self) -> dict[str, Any]:
        """Of the arguments as a whole, which are an object."""
        return {"type": "object", **self.parameters}

    @property
    def open(self) -> bool:
        """Whether nothing is said of the arguments, so that any will do."""
        return not self.properties and self.parameters.get("additionalProperties") is not False

    @property
    def required(self) -> frozenset[str]:
        """Arguments that must be there."""
        found = self.parameters.get("required")
        return frozenset(name for name in found if isinstance(name, str)) if isinstance(found, list) else frozenset()


def random_id(name: str, index: int) -> str:
    """The id of a call in OpenAI's form."""
    return f"call_{uuid.uuid4().hex[:24]}"


class Calls:
    """Numbers the calls of one answer.

    Args:
        source: the answer; once a call has begun, its readers do not go back.
        make_id: gives a call its id, from its name and number.

    Attributes:
        known_only: a name that no tool has is no call. For texts that look like calls by chance.
    """

    def __init__(self, source: Source, tools: Sequence[Tool], make_id: Callable[[str, int], str] = random_id) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self.known_only = False
        self.num_begun = 0
        self._source = source
        self._make_id = make_id

    def accepts(self, name: str | None) -> bool:
        """Whether `name` can be that of a call."""
        if name is None or name in self.tools:
            return name is not None
        return not self.known_only and _NAME.match(name) is not None

    def begin(self, name: str, call_id: str | None = None) -> CallBegun:
        """The next call. From here on what was read is no text."""
        self._source.commit()
        index = self.num_begun
        self.num_begun += 1
        return CallBegun(index, call_id or self._make_id(name, index), name)

    def types(self, name: str, parameter: str) -> frozenset[str]:
        """JSON types that a parameter may have by the tool's schema; empty if that does not say."""
        return types_of(self.tools[name].properties.get(parameter)) if name in self.tools else frozenset()


def types_of(schema: object, depth: int = 0) -> frozenset[str]:
    """JSON types that a schema allows; empty if it does not say."""
    if not isinstance(schema, Mapping) or depth > 4:
        return frozenset()
    kind = schema.get("type")
    found = (
        {kind}
        if isinstance(kind, str)
        else {k for k in kind if isinstance(k, str)}
        if isinstance(kind, list)
        else set()
    )
    values = schema.get("enum")
    if not found and isinstance(values, list) and all(isinstance(value, str) for value in values):
        found = {"string"}
    for key in ("anyOf", "oneOf"):
        for other in schema[key] if isinstance(schema.get(key), list) else ():
            found |= types_of(other, depth + 1)
    return frozenset(found)


class Layout(Protocol):
    """How a format writes a call, between its markers.

    Attributes:
        frame: what stands before, between and behind the calls of a list; three empty texts if there are no lists.
    """

    @property
    def frame(self) -> tuple[str, str, str]: ...

    def read(self, source: Source, calls: Calls, close: str) -> Steps[bool]:
        """Read one call, or a list of them.

        False: this is no call; nothing was yielded, and the source may be anywhere. Once a call has begun the answer is
        True: what comes after must be part of it.

        Args:
            close: marker that ends the call; "" is the end of the answer.
        """
        ...

    def call_rule(self, tool: Tool, writer: "GrammarWriter") -> str:
        """A call of one tool, with arguments that its schema allows, as the right side of a Lark rule."""
        ...


def sequence(writer: "GrammarWriter", parts: Mapping[str, str], required: Collection[str], separator: str) -> str:
    """Parts in their order as a Lark term: required ones must come, others may; between two stands `separator`."""
    first, rest = "", ""  # what may come from here on, if nothing has come before, or something
    for name in reversed(list(parts)):
        part = writer.rule(parts[name])
        if name in required:
            first, here = f"{part} {rest}", f"{separator} {part}"
        else:
            first = f"({part} {rest} | {first})" if first else f"({part} {rest})?"
            here = f"({separator} {part})?"
        rest = writer.rule(f"{here} {rest}")
    return first


def call_list(source: Source, calls: Calls, read: Callable[[], Steps[bool]], *, commas: bool = True) -> Steps[bool]:
    """Calls one after the other, up to the "]" of their list. False, with nothing yielded: the first is none.

    Args:
        read: reads one, as `Layout.read`.
        commas: without one between two, the list has ended.
    """
    first = calls.num_begun
    while True:
        yield from source.skip_space()
        mark = source.mark()
        if not (yield from read()):
            if calls.num_begun == first:
                source.forget(mark)
                return False
            source.back(mark)  # what follows the calls is text
            return True
        source.forget(mark)
        yield from source.skip_space()
        if (yield from source.take("]")):
            return True
        if not (yield from source.take(",")) and (commas or not (yield from source.peek())):
            return True


def whole_call(calls: Calls, name: str, arguments: str) -> Steps[None]:
    """A call whose arguments are known."""
    begun = calls.begin(name)
    yield begun
    yield ArgumentsDelta(begun.index, arguments)
    yield CallEnded(begun.index, True)


def json_arguments(source: Source, index: int, close: str) -> Steps[bool]:
    """Pass on arguments in JSON. Where they stop being JSON, all up to `close` goes on as it is, and False returns."""
    scanner = JsonScanner()
    while not scanner.done:
        if text := source.scan(scanner.advance):
            yield ArgumentsDelta(index, text)
        if scanner.broken or (source.exhausted and not scanner.done):
            return (yield from broken_call(source, index, close))
        if not scanner.done:
            yield from source.more()
    return True


def broken_call(source: Source, index: int, close: str) -> Steps[bool]:
    """End a call that has begun and cannot be read: what is left of it are its arguments. Returns False."""
    stops = Stops(close)
    while text := (yield from source.piece(stops, or_cut=True)):
        yield ArgumentsDelta(index, text)
    yield CallEnded(index, False)
    return False
