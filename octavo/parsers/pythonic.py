"""Calls as Python writes them: [f(place="Zürich", days=2), g()], or one on each line."""

import ast
import json
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.parsers.calls import MAX_NAME, Calls, Tool, broken_call, call_list, sequence
from octavo.parsers.events import ArgumentsDelta, CallEnded, Steps
from octavo.parsers.json_text import MAX_DEPTH, json_string
from octavo.parsers.source import Source

if TYPE_CHECKING:
    from octavo.parsers.lark import GrammarWriter

_NAME = re.compile(r"[\w.-]")
_WORD = re.compile(r"\w")
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_JSON_NAMES = {"true": "True", "false": "False", "null": "None"}
_LITERAL_NAME = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|\b(true|false|null)\b""", re.DOTALL)


@dataclass(frozen=True)
class PythonicCalls:
    """`[f(a=1), g()]`; without the brackets, calls follow each other, on lines of their own."""

    listed: bool = True

    @property
    def frame(self) -> tuple[str, str, str]:
        """As in `Layout`."""
        return ("[", ", ", "]") if self.listed else ("", "\n", "")

    def call_rule(self, tool: Tool, writer: "GrammarWriter") -> str:
        """As `Layout.call_rule`; values are written as JSON, which the reader takes too."""
        if tool.open:
            pair = writer.rule(f'/[A-Za-z_][A-Za-z0-9_]{{0,63}}/ "=" {writer.json({})}')
            return f"{writer.text(tool.name + '(')} ({pair} ({writer.text(', ')} {pair})*)? {writer.text(')')}"
        pairs = {name: f"{writer.text(name + '=')} {writer.json(schema)}" for name, schema in tool.properties.items()}
        arguments = sequence(writer, pairs, tool.required, writer.text(", "))
        return f"{writer.text(tool.name + '(')} {arguments} {writer.text(')')}"

    def read(self, source: Source, calls: Calls, close: str) -> Steps[bool]:
        """As `Layout.read`."""
        yield from source.skip_space()
        if not (yield from source.take("[")) and self.listed:
            return False
        return (yield from call_list(source, calls, lambda: _call(source, calls, close), commas=self.listed))


def _call(source: Source, calls: Calls, close: str) -> Steps[bool]:
    """One call. It begins with its first argument, so that `see [this](link)` is none."""
    name = yield from source.word(_NAME, MAX_NAME)
    if not calls.accepts(name) or not (yield from source.take("(")):
        return False
    yield from source.skip_space()
    key: str | None = None
    if not (yield from source.at(")")):
        key = yield from _key(source)
        if key is None:
            return False
    begun = calls.begin(name)
    yield begun
    opening = "{"
    while not (yield from source.take(")")):
        text = yield from _value_text(source)
        value = None if text is None or key is None else as_json(text)
        if value is None:
            if text and (yield from source.peek()):  # half a value at the end of the answer is none
                yield ArgumentsDelta(begun.index, f"{opening}{json_string(key or '')}: {text}")
            yield from broken_call(source, begun.index, close)
            return True
        yield ArgumentsDelta(begun.index, f"{opening}{json_string(key or '')}: {value}")
        opening = ", "
        if (yield from source.take(",")):
            yield from source.skip_space()
            if not (yield from source.at(")")):
                key = yield from _key(source)
    yield ArgumentsDelta(begun.index, "{}" if opening == "{" else "}")
    yield CallEnded(begun.index, True)
    return True


def _key(source: Source) -> Steps[str | None]:
    key = yield from source.word(_WORD, MAX_NAME)
    yield from source.skip_space()
    if not key or not (yield from source.take("=")):
        return None
    return key


def _value_text(source: Source) -> Steps[str | None]:
    """The text of a value up to the comma or bracket behind it; None at the end of the answer."""
    out: list[str] = []
    closers: list[str] = []
    quote = ""
    while character := (yield from source.peek()):
        if quote:
            if character == "\\":
                source.advance(1)
                out.append(character)
                if not (character := (yield from source.peek())):
                    break
            elif (yield from source.at(quote)):
                source.advance(len(quote))
                out.append(quote)
                quote = ""
                continue
        elif character in "\"'":
            quote = character * 3 if (yield from source.at(character * 3)) else character
            source.advance(len(quote))
            out.append(quote)
            continue
        elif character in _CLOSERS and len(closers) < MAX_DEPTH:
            closers.append(_CLOSERS[character])
        elif closers and character == closers[-1]:
            closers.pop()
        elif character in ",)" and not closers:
            return "".join(out)
        source.advance(1)
        out.append(character)
    return "".join(out) or None


def as_json(text: str) -> str | None:
    """A Python literal, or one with JSON's names in it, as JSON; None if it is neither."""
    source = _LITERAL_NAME.sub(lambda found: found[1] or _JSON_NAMES[found[2]], text.strip())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" in a string is Python's to complain about
            value = ast.literal_eval(source)
        made = json.dumps(value, ensure_ascii=False, allow_nan=False)
        made.encode()  # half a surrogate pair is no text
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    return made
