"""POST /v1/chat/completions: text, thinking and tool calls, as `server/turns.py` reads them, in the chat form."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from fastapi import APIRouter, Request, Response
from msgspec import UNSET

from octavo.errors import ClientError
from octavo.outputs import CompletionOutput, RequestOutput
from octavo.parsers.events import ArgumentsDelta, CallBegun, ContentDelta, Event, ReasoningDelta
from octavo.server.answer import Header, Result, respond
from octavo.server.body import body_schema, json_body
from octavo.server.chat import prepare_turn
from octavo.server.generation import Cursor, Delta, Work
from octavo.server.logprobs import chat_logprobs, prompt_logprobs
from octavo.server.requests import ChatRequest
from octavo.server.responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    CompletionTokensDetails,
    FunctionCall,
    ToolCall,
    Usage,
)
from octavo.server.serving import lifecycle_of
from octavo.server.structured import naming_its_field
from octavo.server.turns import Turn, TurnFinishReason, TurnPlan, TurnReader

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=body_schema(ChatRequest))
async def chat_completions(request: Request, body: ChatRequest = json_body(ChatRequest)) -> Response:
    """Answer a conversation."""
    try:
        with naming_its_field(body):
            return await _answer(request, body)
    except ClientError as err:
        if err.param == "prompt":  # what is below this route knows no messages
            err.param = "messages"
        raise


async def _answer(request: Request, body: ChatRequest) -> Response:
    turn = await prepare_turn(request, body, "chatcmpl")
    lifecycle = lifecycle_of(request)
    role = lifecycle.server.response_role
    prefix = turn.conversation.last_text if body.echo and body.messages[-1].get("role") == role else ""
    form = ChatForm(turn.header, body, turn.work, turn.plan, role, prefix)
    return await respond(request, lifecycle, turn.serving, turn.work, form, body)


@dataclass
class _Sample:
    """One sample of a stream."""

    reader: TurnReader
    cursor: Cursor = field(default_factory=Cursor)


class ChatForm:
    """Writes the samples of one request in the chat form.

    Args:
        prefix: text to repeat before each answer (`echo`).
    """

    def __init__(self, header: Header, body: ChatRequest, work: Work, plan: TurnPlan, role: str, prefix: str) -> None:
        self._header = header
        self._body = body
        self._work = work
        self._plan = plan
        self._tokenizer = plan.tokenizer
        self._role = role
        self._prefix = prefix
        self._samples: dict[int, _Sample] = {}

    @property
    def reasoning_tokens(self) -> int | None:
        """Of all samples."""
        return sum(sample.reader.reasoning_tokens for sample in self._samples.values())

    def chunks(self, prompt_index: int, output: RequestOutput, sample: CompletionOutput) -> Iterable[ChatChunk]:
        """The role once, then what is new; nothing while there is nothing to tell."""
        if sample.index not in self._samples:
            if not sample.token_ids and sample.finish_reason is None:
                return
            self._samples[sample.index] = _Sample(self._plan.reader())
            yield self._first_chunk(sample.index)
        state = self._samples[sample.index]
        delta = state.cursor.take(sample)
        said = chat_delta(state.reader.read(delta))
        logprobs = self._logprobs(delta)
        if said != ChatDelta() or delta.finish_reason or (logprobs and logprobs.content) or self._tells_ids(delta):
            yield self._chunk(self._choice(sample.index, delta, said, state.reader.finish_reason, logprobs))

    def usage_chunk(self) -> ChatChunk:
        """A chunk without choices."""
        return ChatChunk(choices=[], **self._header.fields())

    def whole(self, results: list[Result], usage: Usage) -> ChatCompletion:
        """The answer without a stream."""
        body, output = self._body, results[0].output
        choices = [self._whole_choice(result.sample) for result in results]
        usage.completion_tokens_details = CompletionTokensDetails(self.reasoning_tokens or 0)
        made = ChatCompletion(choices=choices, usage=usage, **self._header.fields())
        if body.return_token_ids:
            made.prompt_token_ids = self._work.prompts[0].token_ids
        if body.return_prompt_text:
            made.prompt_text = self._work.prompts[0].read_text(self._tokenizer)
        if body.prompt_logprobs is not None and output.prompt_logprobs is not None:
            made.prompt_logprobs = prompt_logprobs(self._tokenizer, output.prompt_logprobs)
        return made

    def _whole_choice(self, sample: CompletionOutput) -> ChatChoice:
        state = self._samples[sample.index] = _Sample(self._plan.reader())
        delta = state.cursor.take(sample)
        state.reader.read(delta)
        return ChatChoice(
            index=sample.index,
            message=chat_message(self._role, self._prefix, state.reader.turn),
            logprobs=self._logprobs(delta),
            finish_reason=state.reader.finish_reason,
            stop_reason=delta.stop_reason,
            seed=delta.seed,
            token_ids=delta.token_ids if self._body.return_token_ids else UNSET,
        )

    def _first_chunk(self, index: int) -> ChatChunk:
        chunk = self._chunk(ChatChunkChoice(index=index, delta=ChatDelta(self._role, self._prefix)))
        if self._body.return_token_ids:
            chunk.prompt_token_ids = self._work.prompts[0].token_ids
        if self._body.return_prompt_text:
            chunk.prompt_text = self._work.prompts[0].read_text(self._tokenizer)
        return chunk

    def _choice(
        self,
        index: int,
        delta: Delta,
        said: ChatDelta,
        reason: TurnFinishReason | None,
        logprobs: ChatLogprobs | None,
    ) -> ChatChunkChoice:
        ended = reason is not None
        return ChatChunkChoice(
            index=index,
            delta=said,
            logprobs=logprobs,
            finish_reason=reason,
            stop_reason=delta.stop_reason if ended else UNSET,
            seed=delta.seed if ended else UNSET,
            token_ids=delta.token_ids if self._body.return_token_ids else UNSET,
        )

    def _chunk(self, choice: ChatChunkChoice) -> ChatChunk:
        return ChatChunk(choices=[choice], **self._header.fields())

    def _tells_ids(self, delta: Delta) -> bool:
        return bool(self._body.return_token_ids and delta.token_ids)

    def _logprobs(self, delta: Delta) -> ChatLogprobs | None:
        params = self._work.params
        if not params.wants_logprobs:
            return None
        # The token that ended the text is no part of it and has no entry, unless it was asked for.
        shown = len(delta.token_ids)
        if delta.ended_by_token and not params.include_stop_str_in_output:
            shown -= 1
        content = chat_logprobs(
            self._tokenizer,
            delta.token_ids[:shown],
            delta.logprobs[:shown],
            params.num_shown_logprobs,
            skip_special=params.skip_special_tokens,
            as_ids=bool(self._body.return_tokens_as_token_ids),
        )
        return ChatLogprobs(content)


def chat_delta(events: Iterable[Event]) -> ChatDelta:
    """News as a stream tells them; what is new of one call is one entry."""
    turn, calls = Turn(), dict[int, ToolCall]()
    for event in events:
        match event:
            case CallBegun(index, call_id, name):
                calls[index] = ToolCall(index=index, id=call_id, type="function", function=FunctionCall(name, ""))
            case ArgumentsDelta(index, text):
                call = calls.setdefault(index, ToolCall(index=index, function=FunctionCall(arguments="")))
                call.function.arguments = (call.function.arguments or "") + text
            case ReasoningDelta() | ContentDelta():
                turn.add(event)
    return ChatDelta(
        content=turn.content or UNSET,
        reasoning=turn.reasoning or UNSET,
        reasoning_content=turn.reasoning or UNSET,
        tool_calls=list(calls.values()) or UNSET,
    )


def chat_message(role: str, prefix: str, turn: Turn) -> ChatMessage:
    """A whole turn. The content is null where there is thinking or a call and no text."""
    content = prefix + turn.content
    calls = [
        ToolCall(id=call.id, type="function", function=FunctionCall(call.name, call.arguments)) for call in turn.calls
    ]
    return ChatMessage(
        role,
        content if content or not (calls or turn.reasoning) else None,
        reasoning=turn.reasoning or UNSET,
        reasoning_content=turn.reasoning or UNSET,
        tool_calls=calls or UNSET,
    )
