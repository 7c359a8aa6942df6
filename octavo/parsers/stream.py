"""The one reader of answers. A stream feeds it piece by piece, an answer that is not streamed all at once; the events
are the same, since the reader cannot see the cuts.

Nothing raises, and nothing is lost: what looks like a call and is none is text. Blanks around markers are layout and
belong to neither side.
"""

from collections.abc import Sequence

from octavo.parsers import harmony
from octavo.parsers.calls import Calls, Tool, random_id
from octavo.parsers.events import ContentDelta, Event, ReasoningDelta, Steps, merged
from octavo.parsers.formats import ReasoningFormat, ToolFormat
from octavo.parsers.source import Source, Stops


class AnswerReader:
    """Takes one answer apart.

    Args:
        tools: format of the calls; None if the answer may hold none, and then they are text.
        reasoning: None if the model does not think, or was told not to; then nothing is reasoning.
        functions: what may be called.
        inside: the prompt ends inside the thinking, so that the answer begins with it.

    Attributes:
        reasoning_end: characters up to the end of the thinking so far, its marker included; 0 if there is none.
    """

    def __init__(
        self,
        tools: ToolFormat | None,
        reasoning: ReasoningFormat | None,
        functions: Sequence[Tool] = (),
        *,
        inside: bool = False,
    ) -> None:
        self.reasoning_end = 0
        self._tools = tools
        self._reasoning = reasoning
        self._inside = inside
        self._source = Source()
        self._calls = Calls(self._source, functions, random_id if tools is None else tools.make_id)
        self._stops = Stops(*(() if tools is None else tools.openers))
        self._steps = self._answer()

    def feed(self, text: str) -> list[Event]:
        """What more text says."""
        self._source.push(text)
        return self._run()

    def finish(self) -> list[Event]:
        """What the end of the text says. Call it once."""
        self._source.end()
        return self._run()

    def _run(self) -> list[Event]:
        events: list[Event] = []
        for event in self._steps:
            if event is None:
                break
            events.append(event)
        return merged(events)

    # ------------------------------------------------------------ the answer

    def _answer(self) -> Steps[None]:
        if any(form is not None and form.whole_answer for form in (self._tools, self._reasoning)):
            yield from self._channels()
            return
        if self._reasoning is not None:
            yield from self._think(self._reasoning)
        if self._tools is not None and self._tools.bare:
            yield from self._bare_call(self._tools)
        while (yield from self._source.peek()):
            while text := (yield from self._source.piece(self._stops, trim=self._tools is not None)):
                yield ContentDelta(text)
            if self._tools is not None and (yield from self._source.peek()):
                yield from self._marked_calls(self._tools)

    def _channels(self) -> Steps[None]:
        for event in harmony.read_answer(self._source, None if self._tools is None else self._calls):
            if isinstance(event, ReasoningDelta):
                self.reasoning_end = self._source.position
            yield event

    def _think(self, form: ReasoningFormat) -> Steps[None]:
        """The thinking, if the answer begins with it."""
        source = self._source
        mark = source.mark()
        yield from source.skip_space()
        opened = yield from source.take(form.opens)
        if not (opened or self._inside or form.begins_inside):
            source.back(mark)
            return
        source.forget(mark)
        yield from source.skip_space()
        if form.label and (yield from source.take(form.label)):
            yield from source.skip_space()
        openers = self._tools.openers if form.ends_at_call and self._tools is not None else ()
        stops = Stops(form.closes, *openers)
        while text := (yield from source.piece(stops, trim=True, or_cut=True)):
            self.reasoning_end = source.position
            yield ReasoningDelta(text)
        yield from source.skip_space()
        yield from source.take(form.closes, or_cut=True)
        self.reasoning_end = source.position
        yield from source.skip_space()

    # ------------------------------------------------------------ calls

    def _bare_call(self, form: ToolFormat) -> Steps[None]:
        """Calls without a marker, at the beginning of the text."""
        mark = self._source.mark()
        self._calls.known_only = True
        if (yield from self._attempt(form, "")):
            yield from self._source.skip_space()
        else:
            self._source.back(mark)
        self._calls.known_only = False

    def _marked_calls(self, form: ToolFormat) -> Steps[None]:
        """Calls behind a marker, which the source is at; what is none is text."""
        source = self._source
        mark = source.mark()
        blanks = yield from source.skip_space()
        section, call, *_ = form.pairs
        pair = yield from self._opener(form)
        in_section = pair == section
        if in_section:
            yield from source.skip_space()
            yield from source.take(call[0])
        if not (yield from self._attempt(form, call[1] if in_section else pair[1])):
            reached_end = not (yield from source.peek())
            source.back(mark)
            source.advance(len(blanks + pair[0]))
            yield ContentDelta(blanks + pair[0])
            if (
                reached_end
            ):  # all that comes has been looked at; to look again from each marker in it could take forever
                self._stops = Stops()
            return
        while call[0] or in_section:
            mark = source.mark()
            yield from source.skip_space()
            if not (yield from source.take(call[0])) or not (yield from self._attempt(form, call[1])):
                source.back(mark)
                break
        yield from source.skip_space()
        if in_section and (yield from source.take(section[1], or_cut=True)):
            yield from source.skip_space()

    def _opener(self, form: ToolFormat) -> Steps[tuple[str, str]]:
        """Read the marker that is here; of two that begin alike, the longer."""
        for pair in sorted(form.pairs, key=lambda pair: -len(pair[0])):
            if pair[0] and (yield from self._source.take(pair[0])):
                return pair
        raise AssertionError("the source is at no marker")

    def _attempt(self, form: ToolFormat, close: str) -> Steps[bool]:
        """Read what stands between two markers, and the second. False, with nothing yielded: it is no call."""
        if not (yield from form.layout.read(self._source, self._calls, close or form.section[1].strip())):
            return False
        yield from self._source.skip_space()
        yield from self._source.take(close, or_cut=True)
        return True
