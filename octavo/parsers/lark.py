"""Writes the grammar of an answer that calls tools, in llguidance's dialect of Lark. Each layout says how it writes a
call (`Layout.call_rule`); what stands around calls is the same for all formats and is written here. Compiles nothing.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from octavo.parsers.calls import Tool

if TYPE_CHECKING:
    from octavo.parsers.formats import ToolFormat

ANY_OBJECT: dict[str, Any] = {"type": "object"}


class GrammarWriter:
    """Collects the rules of one grammar.

    Args:
        special: ids of the model's special tokens, by text; in the text of a marker they are written as such.
    """

    def __init__(self, special: Mapping[str, int]) -> None:
        self.special = special
        self._special = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or r"(?!)")
        self._rules: list[str] = []

    def parts(self, text: str) -> list[str | int]:
        """A text with its special tokens as ids."""
        found: list[str | int] = []
        place = 0
        for match in self._special.finditer(text):
            found += [text[place : match.start()], self.special[match[0]]]
            place = match.end()
        return [part for part in (*found, text[place:]) if part != ""]

    def text(self, text: str) -> str:
        """A fixed text as terms."""
        return " ".join(f"<[{part}]>" if isinstance(part, int) else json.dumps(part) for part in self.parts(text))

    def json(self, schema: Mapping[str, Any]) -> str:
        """A JSON value that matches a schema."""
        return f"%json {json.dumps(schema)}"

    def upto(self, end: str) -> str:
        """Any text, up to and including the first `end`."""
        found = self._special.match(end)
        if found:
            token = self.special[found[0]]
            return self.rule(f"<[^{token}]>* {self.text(end)}")
        return self.rule(f"/(?s:.*)/ {json.dumps(end)}", "[lazy]")

    def rule(self, body: str, attributes: str = "") -> str:
        """Add a rule; returns its name."""
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    def grammar(self, start: str) -> str:
        """The whole grammar."""
        return "\n".join([f"start: {start}", *self._rules]) + "\n"


def required_calls(form: "ToolFormat", tools: Sequence[Tool], special: Mapping[str, int], *, parallel: bool) -> str:
    """The grammar of an answer that is calls and nothing else: one, or several if `parallel`."""
    writer = GrammarWriter(special)
    blanks = "" if form.whole_answer else "/[ \\n]{0,2}/"
    return writer.grammar(f"{blanks} {_calls(writer, form, tools, parallel)}")


def strict_calls(form: "ToolFormat", tools: Sequence[Tool], special: Mapping[str, int], *, parallel: bool) -> str:
    """The grammar of an answer that may be anything, but whose calls are of these tools, with such arguments."""
    writer = GrammarWriter(special)
    opener = form.opener
    calls = _calls(writer, form, tools, parallel, written=opener)
    if not opener:  # a call can only be told from text at the beginning
        return writer.grammar(f"{calls} | /(\\s*[^\\s{{\\[](?s:.*))?/")
    free = f"<[^{special[opener]}]>*" if opener in special else "/(?s:.*)/"
    return writer.grammar(f"({writer.upto(opener)} {calls}){'*' if parallel else '?'} {free}")


def _calls(writer: GrammarWriter, form: "ToolFormat", tools: Sequence[Tool], parallel: bool, written: str = "") -> str:
    """All calls of an answer with what stands around them.

    Args:
        written: beginning of it that is there already.
    """
    call = writer.rule(" | ".join(form.layout.call_rule(tool, writer) for tool in tools))
    before, between, after = form.layout.frame
    if between:  # the markers stand around the list
        lead, again, end_each, end = before, between, "", after + form.call[1] + form.section[1]
    else:
        lead, again, end_each, end = "", form.between + form.call[0], form.call[1], form.section[1]
    first = writer.text((form.section[0] + form.call[0] + lead).removeprefix(written))
    more = f"({writer.text(again)} {call} {writer.text(end_each)})*" if parallel else ""
    return f"{first} {call} {writer.text(end_each)} {more} {writer.text(end)}"
