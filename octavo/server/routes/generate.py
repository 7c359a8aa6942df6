"""POST /inference/v1/generate: token ids in, token ids out. No template, no defaults of the model, text on demand only.

`sampling_params` are those of `octavo.SamplingParams`, with its defaults: what an answer depends on is in the request.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import UNSET

from octavo.errors import ClientError
from octavo.outputs import CompletionOutput, RequestOutput
from octavo.sampling_params import SamplingParams
from octavo.server.answer import Header, Result, make_header, make_work, respond
from octavo.server.body import body_schema, json_body
from octavo.server.generation import Cursor
from octavo.server.logprobs import chat_logprobs, prompt_logprobs
from octavo.server.prompts import Prompt
from octavo.server.requests import GenerateRequest
from octavo.server.responses import ChatLogprobs, Generation, GenerationChoice, Usage
from octavo.server.sampling import check_sizes
from octavo.server.serving import lifecycle_of
from octavo.tokenizer.tokenizer import Tokenizer

router = APIRouter()

SERVER_SIDE = frozenset(["output_kind", "skip_clone"])
"""Fields of vLLM's SamplingParams that a client may send along and that decide nothing about an answer."""


@router.post("/inference/v1/generate", openapi_extra=body_schema(GenerateRequest))
async def generate(request: Request, body: GenerateRequest = json_body(GenerateRequest)) -> Response:
    """Continue token ids."""
    lifecycle = lifecycle_of(request)
    serving = lifecycle.serving()
    serving.check_model(body.model)
    limit = serving.config.max_model_len
    if len(body.token_ids) > limit:
        raise ClientError(
            f"token_ids has {len(body.token_ids)} ids but a request may have {limit}; shorten it, or raise "
            "--max-model-len",
            param="token_ids",
        )
    serving.prompts.check_ids(body.token_ids, "token_ids")
    params = read_sampling_params(body.sampling_params, with_text=body.output_mode == "text")
    if params.prompt_logprobs is not None and body.stream:
        raise ClientError("prompt_logprobs cannot be streamed; send stream: false", param="sampling_params")
    header = make_header(request, body, serving, "gen")
    prompt = Prompt(None, body.token_ids)
    work = make_work(request, lifecycle, header, body, [prompt], params)
    form = GenerationForm(header, body, params, serving.prompts.tokenizer)
    try:
        return await respond(request, lifecycle, serving, work, form, body)
    except ClientError as err:
        if err.param == "prompt":  # what is below this route knows no token_ids
            err.param = "token_ids"
        raise


def read_sampling_params(given: dict[str, Any], *, with_text: bool) -> SamplingParams:
    """Parameters as a JSON object.

    Raises:
        ClientError: an unknown name, or a value of another type or out of range.
    """
    known = set(SamplingParams.__struct_fields__)
    said = {name: value for name, value in given.items() if value is not None and name not in SERVER_SIDE}
    for name, value in said.items():
        if name not in known and value not in (False, "", [], {}):
            raise ClientError(
                f"sampling_params has {name[:80]!r}, which is no parameter here; known: {', '.join(sorted(known))}",
                param=f"sampling_params.{name[:80]}",
            )
    said = {name: value for name, value in said.items() if name in known}
    said.setdefault("detokenize", with_text or bool(said.get("stop")))
    try:
        params = msgspec.convert(said, SamplingParams, str_keys=True)
    except msgspec.ValidationError as err:
        raise ClientError(f"sampling_params: {err}", param="sampling_params") from None
    check_sizes(params)
    return params


class GenerationForm:
    """Writes the samples of one request as ids."""

    reasoning_tokens = None

    def __init__(self, header: Header, body: GenerateRequest, params: SamplingParams, tokenizer: Tokenizer) -> None:
        self._header = header
        self._with_text = body.output_mode == "text"
        self._params = params
        self._tokenizer = tokenizer
        self._cursors: dict[int, Cursor] = {}

    def chunks(self, prompt_index: int, output: RequestOutput, sample: CompletionOutput) -> Iterable[Generation]:
        """At most one chunk; none while there is nothing to tell."""
        choice = self._choice(sample)
        return [self._answer([choice])] if choice.token_ids or choice.text or choice.finish_reason else []

    def usage_chunk(self) -> Generation:
        """A chunk without choices."""
        return self._answer([])

    def whole(self, results: list[Result], usage: Usage) -> Generation:
        """The answer without a stream."""
        answer = self._answer([self._choice(result.sample) for result in results])
        answer.usage = usage
        found = results[0].output.prompt_logprobs
        if found is not None:
            answer.prompt_logprobs = prompt_logprobs(self._tokenizer, found)
        return answer

    def _choice(self, sample: CompletionOutput) -> GenerationChoice:
        delta = self._cursors.setdefault(sample.index, Cursor()).take(sample)
        logprobs = None
        if self._params.wants_logprobs:
            logprobs = ChatLogprobs(
                chat_logprobs(
                    self._tokenizer,
                    delta.token_ids,
                    delta.logprobs,
                    self._params.num_shown_logprobs,
                    skip_special=False,
                    as_ids=True,
                )
            )
        return GenerationChoice(
            index=sample.index,
            token_ids=delta.token_ids,
            text=delta.text if self._with_text else UNSET,
            logprobs=logprobs,
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
            seed=UNSET if delta.finish_reason is None else delta.seed,
        )

    def _answer(self, choices: list[GenerationChoice]) -> Generation:
        header = self._header
        return Generation(
            request_id=header.id,
            model=header.model,
            system_fingerprint=header.system_fingerprint,
            choices=choices,
        )
