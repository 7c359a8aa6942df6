"""What a model says in one turn, for every route that answers with more than text: thinking, text and tool calls, as
the typed events of `octavo.parsers.events`. Knows no API form.

How a route uses it:

    use = tool_use(body.tools, body.tool_choice, parallel)     `tools.py`; a route with another form makes a ToolUse
    plan = serving.turns.plan(prompt_ids, use, variables)      once per request, when the prompt's ids are known
    params = plan.constrain(params)                            what the engine has to know
    reader = plan.reader()                                     one per sample
    for event in reader.read(delta): ...                       stream: map each event to the API's own
    reader.finish_reason, reader.turn, reader.reasoning_tokens once the sample has ended

An answer that is not streamed is one delta for the same reader, so both ways say the same.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from octavo.config import ServerConfig
from octavo.errors import ClientError, ConfigError
from octavo.outputs import FinishReason
from octavo.parsers.calls import Tool
from octavo.parsers.events import ArgumentsDelta, CallBegun, CallEnded, ContentDelta, Event, ReasoningDelta
from octavo.parsers.formats import ReasoningFormat, ToolFormat
from octavo.parsers.registry import REASONING_FORMATS, TOOL_FORMATS, pick_reasoning_format, pick_tool_format
from octavo.parsers.stream import AnswerReader
from octavo.sampling_params import SamplingParams, StructuredOutputsParams
from octavo.server.generation import Delta
from octavo.server.tools import ToolUse
from octavo.server.turn_grammar import calls_grammar, turn_grammar
from octavo.tokenizer.tokenizer import TextDecoder, Tokenizer

TAIL_TOKENS = 64
"""The end of a prompt that is looked at for an open thinking marker; no marker is that long."""

TurnFinishReason = FinishReason | Literal["tool_calls"]


@dataclass
class Call:
    """One tool call. `complete`: its arguments are JSON."""

    id: str
    name: str
    arguments: str = ""
    complete: bool = False


@dataclass
class Turn:
    """A turn so far."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)

    def add(self, event: Event) -> None:
        """Take an event in."""
        match event:
            case ReasoningDelta(text):
                self.reasoning += text
            case ContentDelta(text):
                self.content += text
            case CallBegun(_, call_id, name):
                self.calls.append(Call(call_id, name))
            case ArgumentsDelta(index, text):
                self.calls[index].arguments += text
            case CallEnded(index, complete):
                self.calls[index].complete = complete


@dataclass(frozen=True)
class TurnPlan:
    """How the answers of one request are read.

    Attributes:
        tools: format of calls; None if the answer may hold none.
        reasoning: format of thinking; None if nothing is thinking.
        functions: what may be called.
        inside: the prompt ends inside the thinking.
        parallel: more than one call is passed on.
        include_reasoning: thinking is passed on.
        calls: the grammar of the calls that must come, or of those that may.
        must_call: the answer is calls and nothing else.
        budget: most tokens of thinking.
        special: ids of special tokens, by text.
        kept_special_token_ids: those in which the formats write their markers.
    """

    tokenizer: Tokenizer
    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    functions: tuple[Tool, ...] = ()
    inside: bool = False
    parallel: bool = True
    include_reasoning: bool = True
    calls: StructuredOutputsParams | None = None
    must_call: bool = False
    budget: int | None = None
    special: Mapping[str, int] = field(default_factory=dict)
    kept_special_token_ids: tuple[int, ...] = ()

    def constrain(self, params: SamplingParams) -> SamplingParams:
        """The parameters with what this plan needs: special tokens that are markers stay in the text; calls, structured
        text and the thinking before it become one grammar. A call that must come goes before structured text, and that
        before strict tools.

        Raises:
            ClientError: what the answer must match is malformed.
        """
        wanted = self.calls if self.must_call else params.structured_outputs or self.calls
        grammar = turn_grammar(
            wanted,
            self.reasoning,
            self.special,
            inside=self.inside,
            is_call=wanted is self.calls,
            budget=self.budget,
        )
        kept = [*self.kept_special_token_ids] or None
        return msgspec.structs.replace(params, kept_special_token_ids=kept, structured_outputs=grammar)

    def reader(self) -> "TurnReader":
        """For one sample."""
        return TurnReader(self)


def check_formats(server: ServerConfig) -> None:
    """Raise ConfigError if an option names no format."""
    for flag, name, registry in (
        ("--tool-call-parser", server.tool_call_parser, TOOL_FORMATS),
        ("--reasoning-parser", server.reasoning_parser, REASONING_FORMATS),
    ):
        if name is not None and name not in registry:
            raise ConfigError(f"{flag}: unknown {registry.kind} {name!r}; known: {', '.join(sorted(registry))}")


class Turns:
    """How a served model writes its turns, found out once.

    Args:
        templates: sources of its chat templates.

    Raises:
        ConfigError: an option names no format.
    """

    def __init__(self, server: ServerConfig, templates: Iterable[str], tokenizer: Tokenizer) -> None:
        sources = list(templates)
        self.tool_format = server.tool_call_parser or pick_tool_format(sources)
        self.reasoning_format = server.reasoning_parser or pick_reasoning_format(sources)
        self._tools = TOOL_FORMATS.load(self.tool_format)
        self._reasoning = REASONING_FORMATS.load(self.reasoning_format) if self.reasoning_format else None
        self._strict_level = server.tool_strict_level
        self._special = {
            text: token_id
            for token_id in sorted(tokenizer.special_ids)
            if (text := tokenizer.token_bytes(token_id).decode())
        }
        self._reads_auto = server.enable_auto_tool_choice
        self._tokenizer = tokenizer
        self._kept_for_tools = self._special_ids_in(self._tools.markers)
        self._kept_for_reasoning = self._special_ids_in(self._reasoning.markers if self._reasoning else ())

    def plan(
        self,
        prompt_token_ids: Sequence[int],
        use: ToolUse,
        variables: Mapping[str, Any],
        *,
        continued: str = "",
        include_reasoning: bool = True,
        budget: int | None = None,
    ) -> TurnPlan:
        """How to read the answers to one prompt.

        Args:
            variables: of the chat template; they may switch thinking off.
            continued: the text of the message that the answer continues.
            budget: most tokens of thinking.

        Raises:
            ClientError: the schema of a tool cannot be enforced, or a budget is given to a model that does not think.
        """
        if budget is not None and self._reasoning is None:
            raise ClientError(
                "thinking_token_budget needs a model whose thinking is known; start with --reasoning-parser",
                param="thinking_token_budget",
            )
        reasoning, inside = self._thinking(prompt_token_ids, variables, continued)
        calls = use.mode == "required" or (use.mode == "auto" and self._reads_auto)
        return TurnPlan(
            self._tokenizer,
            self._tools if calls else None,
            reasoning,
            use.functions,
            inside=inside,
            parallel=use.parallel,
            include_reasoning=include_reasoning,
            calls=calls_grammar(self._tools, use, self._strict_level, self._special) if calls else None,
            must_call=use.mode == "required",
            budget=budget,
            special=self._special,
            kept_special_token_ids=(
                *(self._kept_for_tools if calls else ()),
                *(self._kept_for_reasoning if reasoning is not None else ()),
            ),
        )

    def _thinking(
        self, prompt_token_ids: Sequence[int], variables: Mapping[str, Any], continued: str
    ) -> tuple[ReasoningFormat | None, bool]:
        """The format of the thinking, and whether the prompt ends inside it.

        The prompt has the last word: a template that opens the thinking, or closes it, has decided. If it does not say,
        the variables may, under the names that templates use.
        """
        form = self._reasoning
        if form is None or form.whole_answer:
            return form, False
        tail = self._tokenizer.decode(prompt_token_ids[-TAIL_TOKENS:], skip_special_tokens=False).rstrip()
        if tail.endswith(form.opens) or continued.rfind(form.opens) > continued.rfind(form.closes):
            return form, True
        if tail.endswith(form.closes) or form.closes in continued or _switched_off(variables):
            return None, False
        return form, False

    def _special_ids_in(self, texts: Iterable[str]) -> tuple[int, ...]:
        """The special tokens that one of `texts` holds."""
        text = "\n".join(texts)
        return tuple(token_id for token, token_id in self._special.items() if token in text)


def _switched_off(variables: Mapping[str, Any]) -> bool:
    off = any(variables.get(name) is False for name in ("enable_thinking", "thinking"))
    return off or variables.get("reasoning_effort") == "none"


class TurnReader:
    """Reads one sample as it grows.

    Attributes:
        turn: everything so far.
        finish_reason: None while the sample grows; "tool_calls" if it ended by itself and all its calls are complete.
    """

    def __init__(self, plan: TurnPlan) -> None:
        self.turn = Turn()
        self.finish_reason: TurnFinishReason | None = None
        self._plan = plan
        self._reader = AnswerReader(plan.tools, plan.reasoning, plan.functions, inside=plan.inside)
        self._token_ids: list[int] = []
        self._kept = frozenset(plan.kept_special_token_ids)
        self._decoder = TextDecoder()
        self._num_counted = self._num_chars = 0  # tokens of thinking, and their text

    def read(self, delta: Delta) -> list[Event]:
        """What the news of the sample say."""
        self._token_ids += delta.token_ids
        events = self._reader.feed(delta.text)
        if delta.finish_reason is not None:
            events += self._reader.finish()
        passed = [event for event in events if self._passes(event)]
        for event in passed:
            self.turn.add(event)
        if delta.finish_reason is not None:
            calls = self.turn.calls
            called = bool(calls) and all(call.complete for call in calls) and delta.finish_reason == "stop"
            self.finish_reason = "tool_calls" if called else delta.finish_reason
        return passed

    @property
    def reasoning_tokens(self) -> int:
        """Tokens up to the end of the thinking, with the marker that ends it. Each is looked at once."""
        tokenizer = self._plan.tokenizer
        while self._num_chars < self._reader.reasoning_end and self._num_counted < len(self._token_ids):
            token_id = self._token_ids[self._num_counted]
            self._num_counted += 1
            if token_id not in tokenizer.special_ids or token_id in self._kept:
                self._num_chars += len(self._decoder.add(tokenizer.token_bytes(token_id)))
        return self._num_counted

    def _passes(self, event: Event) -> bool:
        if isinstance(event, ReasoningDelta):
            return self._plan.include_reasoning
        if isinstance(event, ContentDelta):
            return True
        return self._plan.parallel or event.index == 0
