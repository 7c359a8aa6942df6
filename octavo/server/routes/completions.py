"""POST /v1/completions."""

from collections.abc import Iterable

from fastapi import APIRouter, Request, Response
from msgspec import UNSET

from octavo.errors import ClientError
from octavo.outputs import CompletionOutput, RequestOutput
from octavo.server.answer import Header, Result, make_header, make_work, respond
from octavo.server.body import body_schema, json_body
from octavo.server.generation import Cursor, Work
from octavo.server.logprobs import CompletionLogprobsWriter, prompt_logprobs, prompt_pieces
from octavo.server.prompts import Prompt, truncate
from octavo.server.refusals import check_supported
from octavo.server.requests import CompletionRequest
from octavo.server.responses import Completion, CompletionChoice, CompletionLogprobs, Usage
from octavo.server.sampling import beam_params, check_num_choices, completion_params
from octavo.server.serving import lifecycle_of
from octavo.server.structured import naming_its_field
from octavo.tokenizer.tokenizer import Tokenizer

router = APIRouter()


@router.post("/v1/completions", openapi_extra=body_schema(CompletionRequest))
async def completions(request: Request, body: CompletionRequest = json_body(CompletionRequest)) -> Response:
    """Continue each prompt."""
    lifecycle = lifecycle_of(request)
    serving = lifecycle.serving()
    serving.check_model(body.model)
    check_supported(body)
    if body.prompt is None:
        raise ClientError("prompt is required", param="prompt")
    limit = serving.config.max_model_len
    whole = await serving.prompts.completion(
        body.prompt, body.add_special_tokens, bounded=body.truncate_prompt_tokens is None
    )
    prompts = [truncate(prompt, body.truncate_prompt_tokens, body.truncation_side, limit) for prompt in whole]
    room = limit - max(len(prompt.token_ids) for prompt in prompts)
    params = completion_params(body, serving.defaults, room)
    check_num_choices(len(prompts), params.n)
    header = make_header(request, body, serving, "cmpl")
    beams = beam_params(body, params, len(prompts), room)
    work = make_work(request, lifecycle, header, body, prompts, params, beams)
    form = CompletionForm(header, body, work, serving.prompts.tokenizer)
    with naming_its_field(body):
        return await respond(request, lifecycle, serving, work, form, body)


class CompletionForm:
    """Writes the samples of one request in the completions form."""

    reasoning_tokens = None

    def __init__(self, header: Header, body: CompletionRequest, work: Work, tokenizer: Tokenizer) -> None:
        self._header = header
        self._body = body
        self._work = work
        self._tokenizer = tokenizer
        self._writers: dict[int, _ChoiceWriter] = {}

    def chunks(self, prompt_index: int, output: RequestOutput, sample: CompletionOutput) -> Iterable[Completion]:
        """At most one chunk; none while there is nothing to tell."""
        choice = self._writer(prompt_index, sample.index).news(output, sample)
        return [] if choice is None else [Completion(choices=[choice], **self._header.fields())]

    def usage_chunk(self) -> Completion:
        """A chunk without choices."""
        return Completion(choices=[], **self._header.fields())

    def whole(self, results: list[Result], usage: Usage) -> Completion:
        """The answer without a stream."""
        choices = [self._writer(r.prompt_index, r.sample.index).whole(r.output, r.sample) for r in results]
        return Completion(choices=choices, usage=usage, **self._header.fields())

    def _writer(self, prompt_index: int, sample_index: int) -> "_ChoiceWriter":
        index = self._work.choice_index(prompt_index, sample_index)
        if index not in self._writers:
            prompt = self._work.prompts[prompt_index]
            self._writers[index] = _ChoiceWriter(index, self._body, self._work, prompt, self._tokenizer)
        return self._writers[index]


class _ChoiceWriter:
    """Writes one sample, piece by piece or at once."""

    def __init__(self, index: int, body: CompletionRequest, work: Work, prompt: Prompt, tokenizer: Tokenizer) -> None:
        self._index = index
        self._body = body
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._include_stop = work.params.include_stop_str_in_output
        self._cursor = Cursor()
        self._begun = False
        self._logprobs: CompletionLogprobsWriter | None = None
        if body.logprobs is not None:
            self._logprobs = CompletionLogprobsWriter(
                tokenizer,
                work.params.num_shown_logprobs,
                skip_special=work.params.skip_special_tokens,
                as_ids=bool(body.return_tokens_as_token_ids),
            )

    def news(self, output: RequestOutput, sample: CompletionOutput) -> CompletionChoice | None:
        """What is new, or None."""
        if not self._begun and not sample.token_ids and sample.finish_reason is None:
            return None
        choice = self._next(output, sample)
        has_tokens = bool(choice.logprobs and choice.logprobs.tokens) or bool(choice.token_ids)
        return choice if choice.text or choice.finish_reason or has_tokens else None

    def whole(self, output: RequestOutput, sample: CompletionOutput) -> CompletionChoice:
        """All of a finished sample."""
        choice = self._next(output, sample)
        if self._body.prompt_logprobs is not None and output.prompt_logprobs is not None:
            choice.prompt_logprobs = prompt_logprobs(self._tokenizer, output.prompt_logprobs)
        return choice

    def _next(self, output: RequestOutput, sample: CompletionOutput) -> CompletionChoice:
        logprobs = None if self._logprobs is None else CompletionLogprobs([], [], [], [])
        begins, self._begun = not self._begun, True
        echoed = self._echo(output, logprobs) if begins and self._body.echo else ""
        delta = self._cursor.take(sample)
        if self._logprobs is not None and logprobs is not None:
            self._logprobs.write_sampled(
                logprobs,
                delta.token_ids,
                delta.logprobs,
                last_is_hidden=delta.ended_by_token and not self._include_stop,
                finished=delta.finish_reason is not None,
            )
        return CompletionChoice(
            index=self._index,
            text=echoed + delta.text,
            logprobs=logprobs,
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
            seed=delta.seed if delta.finish_reason is not None else UNSET,
            token_ids=delta.token_ids if self._body.return_token_ids else UNSET,
            prompt_token_ids=self._prompt.token_ids if begins and self._body.return_token_ids else UNSET,
            prompt_text=(
                self._prompt.read_text(self._tokenizer) if begins and self._body.return_prompt_text else UNSET
            ),
        )

    def _echo(self, output: RequestOutput, logprobs: CompletionLogprobs | None) -> str:
        """The prompt's text; its logprobs go into `logprobs`."""
        text, token_ids = self._prompt
        if text is not None and self._logprobs is None:
            return text
        pieces = prompt_pieces(self._tokenizer, token_ids, text)
        if self._logprobs is not None and logprobs is not None:
            positions = output.prompt_logprobs or [None] * len(pieces)
            self._logprobs.write_prompt(logprobs, token_ids, pieces, positions)
        return "".join(pieces)
