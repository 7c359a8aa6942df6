"""POST /v1/chat/completions. Tools reach the template; a call in the answer stays text in this version."""

from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, Request, Response
from msgspec import UNSET

from octavo.errors import ClientError
from octavo.outputs import CompletionOutput, RequestOutput
from octavo.server.answer import Header, Result, engine_id, make_header, priority_of, respond
from octavo.server.body import body_schema, json_body
from octavo.server.generation import Cursor, Delta, Work
from octavo.server.logprobs import chat_logprobs, prompt_logprobs
from octavo.server.prompts import Conversation, Prompt, truncate
from octavo.server.refusals import check_chat, check_supported, check_template
from octavo.server.requests import ChatRequest
from octavo.server.responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    Usage,
)
from octavo.server.sampling import chat_params
from octavo.server.serving import lifecycle_of
from octavo.tokenizer.tokenizer import Tokenizer

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=body_schema(ChatRequest))
async def chat_completions(request: Request, body: ChatRequest = json_body(ChatRequest)) -> Response:
    """Answer a conversation."""
    try:
        return await _answer(request, body)
    except ClientError as err:
        if err.param == "prompt":  # what is below this route knows no messages
            err.param = "messages"
        raise


async def _answer(request: Request, body: ChatRequest) -> Response:
    lifecycle = lifecycle_of(request)
    serving = lifecycle.serving()
    serving.check_model(body.model)
    check_supported(body)
    check_chat(body)
    check_template(body.chat_template, lifecycle.server.trust_request_chat_template)
    conversation, limit = conversation_of(body), serving.config.max_model_len
    token_ids = await serving.prompts.chat(conversation, bounded=body.truncate_prompt_tokens is None)
    prompt = truncate(Prompt(None, token_ids), body.truncate_prompt_tokens, body.truncation_side, limit)
    params = chat_params(body, serving.defaults, limit - len(prompt.token_ids))
    header = make_header(request, body, serving, "chatcmpl")
    work = Work(engine_id(header), [prompt], params, priority_of(request, body), body.cache_salt)
    role = lifecycle.server.response_role
    prefix = conversation.last_text if body.echo and body.messages[-1].get("role") == role else ""
    form = ChatForm(header, body, work, serving.prompts.tokenizer, role, prefix)
    return await respond(request, lifecycle, serving, work, form, body)


def conversation_of(body: ChatRequest) -> Conversation:
    """What the template is given. Without a word about it, an answer is asked for unless the last message goes on."""
    asks = body.add_generation_prompt
    variables: dict[str, Any] = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
    return Conversation(
        body.messages,
        tools=body.tools,
        documents=body.documents,
        add_generation_prompt=not body.continue_final_message if asks is None else asks,
        continue_final_message=body.continue_final_message,
        variables=variables,
        template=body.chat_template or None,
        add_special_tokens=body.add_special_tokens,
    )


class ChatForm:
    """Writes the samples of one request in the chat form.

    Args:
        prefix: text to repeat before each answer (`echo`).
    """

    def __init__(
        self, header: Header, body: ChatRequest, work: Work, tokenizer: Tokenizer, role: str, prefix: str
    ) -> None:
        self._header = header
        self._body = body
        self._work = work
        self._tokenizer = tokenizer
        self._role = role
        self._prefix = prefix
        self._cursors: dict[int, Cursor] = {}

    def chunks(self, prompt_index: int, output: RequestOutput, sample: CompletionOutput) -> Iterable[ChatChunk]:
        """The role once, then what is new; nothing while there is nothing to tell."""
        if sample.index not in self._cursors:
            if not sample.token_ids and sample.finish_reason is None:
                return
            self._cursors[sample.index] = Cursor()
            yield self._first_chunk(sample.index)
        delta = self._cursors[sample.index].take(sample)
        logprobs = self._logprobs(delta)
        if delta.text or delta.finish_reason or (logprobs and logprobs.content) or self._tells_ids(delta):
            yield self._chunk(self._choice(sample.index, delta, logprobs))

    def usage_chunk(self) -> ChatChunk:
        """A chunk without choices."""
        return ChatChunk(choices=[], **self._header.fields())

    def whole(self, results: list[Result], usage: Usage) -> ChatCompletion:
        """The answer without a stream."""
        body, output = self._body, results[0].output
        made = ChatCompletion(
            choices=[self._whole_choice(result.sample) for result in results], usage=usage, **self._header.fields()
        )
        if body.return_token_ids:
            made.prompt_token_ids = self._work.prompts[0].token_ids
        if body.return_prompt_text:
            made.prompt_text = self._work.prompts[0].read_text(self._tokenizer)
        if body.prompt_logprobs is not None and output.prompt_logprobs is not None:
            made.prompt_logprobs = prompt_logprobs(self._tokenizer, output.prompt_logprobs)
        return made

    def _whole_choice(self, sample: CompletionOutput) -> ChatChoice:
        delta = Cursor().take(sample)
        return ChatChoice(
            index=sample.index,
            message=ChatMessage(self._role, self._prefix + delta.text),
            logprobs=self._logprobs(delta),
            finish_reason=delta.finish_reason,
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

    def _choice(self, index: int, delta: Delta, logprobs: ChatLogprobs | None) -> ChatChunkChoice:
        ended = delta.finish_reason is not None
        return ChatChunkChoice(
            index=index,
            delta=ChatDelta(content=delta.text),
            logprobs=logprobs,
            finish_reason=delta.finish_reason,
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
        if params.logprobs is None:
            return None
        # The token that ended the text is no part of it and has no entry, unless it was asked for.
        shown = len(delta.token_ids)
        if delta.ended_by_token and not params.include_stop_str_in_output:
            shown -= 1
        content = chat_logprobs(
            self._tokenizer,
            delta.token_ids[:shown],
            delta.logprobs[:shown],
            self._body.top_logprobs or 0,
            skip_special=params.skip_special_tokens,
            as_ids=bool(self._body.return_tokens_as_token_ids),
        )
        return ChatLogprobs(content)
