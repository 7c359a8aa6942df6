"""The calls of one answer, and the tools it may call. Every layout (how a format writes a call) works through these."""

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from octavo.parsers.events import ArgumentsDelta, CallBegun, CallEnded, Steps
from octavo.parsers.json_text import JsonScanner
from octavo.parsers.source import Source, Stops

NAME_CHARACTER = re.compile(r"[\w.:/-]")
MAX_NAME = 256
_NAME = re.compile(r"[\w.:/-]{1,256}\Z")


class Tool(NamedTuple):
    """A function that the model may call. `parameters` is a JSON schema of its arguments."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool = False


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
        properties = self.tools[name].parameters.get("properties") if name in self.tools else None
        schema = properties.get(parameter) if isinstance(properties, Mapping) else None
        return _types(schema, 0)


def _types(schema: object, depth: int) -> frozenset[str]:
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
            found |= _types(other, depth + 1)
    return frozenset(found)


class Layout(Protocol):
    """How a format writes a call, between its markers."""

    def read(self, source: Source, calls: Calls, close: str) -> Steps[bool]:
        """Read one call, or a list of them.

        False: this is no call; nothing was yielded, and the source may be anywhere. Once a call has begun the answer is
        True: what comes after must be part of it.

        Args:
            close: marker that ends the call; "" is the end of the answer.
        """
        ...


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
