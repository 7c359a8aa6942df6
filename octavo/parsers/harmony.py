"""The answers of gpt-oss: messages in channels. `analysis` is reasoning, `final` is text, and `commentary` is a call
where it is addressed to a function, else text.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json
    <|message|>{...}<|call|>

The recipient may stand before the channel too. The prompt ends with `<|start|>assistant`.
"""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from octavo.parsers.calls import NO_FRAME, Calls, Tool, json_arguments
from octavo.parsers.events import CallEnded, ContentDelta, ReasoningDelta, Steps
from octavo.parsers.source import Source, Stops

if TYPE_CHECKING:
    from octavo.parsers.lark import GrammarWriter

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
ENDS = ("<|end|>", "<|return|>", "<|call|>")
MARKERS = (START, CHANNEL, MESSAGE, "<|constrain|>", *ENDS)

MAX_HEADER = 200
"""Most characters of a header; longer ones that nothing ends are text."""

_HEADER_ENDS = Stops(MESSAGE, START, *ENDS)
_BODY_ENDS = Stops(START, *ENDS)
_RECIPIENT = re.compile(r"to=([\w.:-]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


@dataclass(frozen=True)
class ChannelCalls:
    """A call is a message of its own. It ends the answer, so there is one."""

    frame: tuple[str, str, str] = NO_FRAME

    def read(self, source: Source, calls: Calls, close: str) -> Steps[bool]:
        """Never a call: those are read with the rest of the answer (`read_answer`)."""
        yield from ()
        return False

    def call_rule(self, tool: Tool, writer: "GrammarWriter") -> str:
        """As `Layout.call_rule`."""
        head = f"{CHANNEL}commentary to=functions.{tool.name} <|constrain|>json{MESSAGE}"
        return f"{writer.text(head)} {writer.json(tool.schema)}"


class _Header(NamedTuple):
    """Who a message is for."""

    channel: str
    recipient: str


def read_answer(source: Source, calls: Calls | None) -> Steps[None]:
    """A whole answer.

    Args:
        calls: None if no tool may be called; a call is text then.
    """
    while (yield from source.peek()):
        header = yield from _header(source)
        if header is None:
            yield from _text(source, header)
        elif calls is not None and (name := _function(header, calls)):
            yield from _call(source, calls, name)
        else:
            yield from _text(source, header)
        for marker in ENDS:
            if (yield from source.take(marker, or_cut=True)):
                break


def _header(source: Source) -> Steps[_Header | None]:
    """The header of a message, up to its text; None where text begins without one."""
    mark = source.mark()
    if not ((yield from source.take(START)) or (yield from source.at(CHANNEL)) or (yield from _addressed(source))):
        source.forget(mark)
        return None
    text = yield from source.upto(_HEADER_ENDS)
    if text is None and source.position - mark < MAX_HEADER:  # the answer ends in it, so nothing is said
        source.forget(mark)
        return _Header("final", "")
    if text is None or not (yield from source.take(MESSAGE)):
        source.back(mark)
        return None
    source.forget(mark)
    channel, recipient = _CHANNEL.search(text), _RECIPIENT.search(text)
    return _Header(channel[1] if channel else "final", recipient[1] if recipient else "")


def _addressed(source: Source) -> Steps[bool]:
    """Whether a recipient stands where the prompt has ended."""
    return (yield from source.at(" to=functions.")) or (yield from source.at("to=functions."))


def _function(header: _Header, calls: Calls) -> str | None:
    """The function that a message calls."""
    name = header.recipient.removeprefix("functions.")
    is_call = header.recipient.startswith("functions.") or name in calls.tools
    return name if is_call and calls.accepts(name) else None


def _call(source: Source, calls: Calls, name: str) -> Steps[None]:
    begun = calls.begin(name)
    yield begun
    yield from source.skip_space()
    if (yield from json_arguments(source, begun.index, ENDS[-1])):
        yield CallEnded(begun.index, True)
        yield from source.skip_space()


def _text(source: Source, header: _Header | None) -> Steps[None]:
    """A message for the user, or one of thinking. A header that is none is text as it stands."""
    kind = ReasoningDelta if header is not None and header.channel == "analysis" else ContentDelta
    if header is None:
        for marker in (START, CHANNEL):
            if (yield from source.take(marker)):
                yield ContentDelta(marker)
    while text := (yield from source.piece(_BODY_ENDS)):
        yield kind(text)
