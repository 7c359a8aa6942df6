"""Text Generation Inference's routes: POST /generate, /generate_stream and /, GET /info."""

import itertools
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import UNSET

from octavo import limits
from octavo.outputs import CompletionOutput
from octavo.server.answer import Result, deadline_of, finish
from octavo.server.body import body_schema, json_body
from octavo.server.generation import Work, run
from octavo.server.prompts import Prompt, truncate
from octavo.server.responses import json_response
from octavo.server.sampling import check_sizes
from octavo.server.serving import Serving, lifecycle_of
from octavo.server.sse import event, event_stream, unless_gone
from octavo.server.tgi import (
    CompatRequest,
    Details,
    Generated,
    GenerateParameters,
    Info,
    PrefillToken,
    Sequence,
    StreamDetails,
    StreamEvent,
    TgiRequest,
    TokenWriter,
    finish_reason,
    sampling_params,
)
from octavo.version import VERSION

router = APIRouter()

_serial = itertools.count()


@router.post("/generate", openapi_extra=body_schema(TgiRequest))
async def generate(request: Request, body: TgiRequest = json_body(TgiRequest)) -> Response:
    """Continue a text."""
    return json_response(await _whole(request, body))


@router.post("/generate_stream", openapi_extra=body_schema(TgiRequest))
async def generate_stream(request: Request, body: TgiRequest = json_body(TgiRequest)) -> Response:
    """Continue a text, one event per token."""
    return await _stream(request, body)


@router.post("/", openapi_extra=body_schema(CompatRequest))
async def compat_generate(request: Request, body: CompatRequest = json_body(CompatRequest)) -> Response:
    """As /generate_stream with `stream: true`; otherwise as /generate, in a list."""
    if body.stream:
        return await _stream(request, body)
    return Response(msgspec.json.encode([await _whole(request, body)]), media_type="application/json")


@router.get("/info")
async def info(request: Request) -> Response:
    """The model and its limits."""
    config = lifecycle_of(request).serving().config
    made = Info(
        model_id=config.served_model_name,
        model_dtype=config.dtype,
        model_device_type=config.device.device,
        max_concurrent_requests=config.scheduler.max_num_seqs,
        max_stop_sequences=limits.STOP_STRINGS.value,
        max_input_tokens=config.max_model_len - 1,
        max_total_tokens=config.max_model_len,
        version=VERSION,
    )
    return json_response(made)


async def _whole(request: Request, body: TgiRequest) -> Generated:
    serving = lifecycle_of(request).serving()
    work = await _work(request, serving, body, stream=False)
    finished = await unless_gone(request.receive, finish(serving, work))
    best, *others = sorted(finished.results, key=lambda result: -_total_logprob(result.sample))
    made = Generated(generated_text=_prefix(body) + best.sample.text)
    if body.parameters.details:
        details = _details(serving, body.parameters, work, best)
        made.details = Details(**details)
        if others:
            made.details.best_of_sequences = [
                Sequence(
                    generated_text=_prefix(body) + other.sample.text,
                    **_details(serving, body.parameters, work, other),
                )
                for other in others
            ]
    return made


async def _stream(request: Request, body: TgiRequest) -> Response:
    lifecycle = lifecycle_of(request)
    serving = lifecycle.serving()
    work = await _work(request, serving, body, stream=True)
    keep_alive_s = lifecycle.server.sse_keep_alive_interval
    return await event_stream(request, _events(serving, body, work), keep_alive_s)


async def _work(request: Request, serving: Serving, body: TgiRequest, *, stream: bool) -> Work:
    asked = body.parameters
    limit = serving.config.max_model_len
    token_ids = await serving.prompts.encode(body.inputs, True, bounded=asked.truncate is None)
    prompt = truncate(Prompt(body.inputs, token_ids), asked.truncate, "left", limit)
    params = sampling_params(asked, stream=stream, room=limit - len(prompt.token_ids))
    check_sizes(params)
    name = getattr(request.state, "request_id", None) or uuid.uuid4().hex
    return Work(
        f"tgi-{name}-{next(_serial)}",
        [prompt],
        params,
        tenant=getattr(request.state, "tenant", ""),
        deadline_s=deadline_of(request, lifecycle_of(request).server.request_timeout),
    )


async def _events(serving: Serving, body: TgiRequest, work: Work) -> AsyncGenerator[bytes]:
    writer = _writer(serving, body.parameters, work)
    index = itertools.count(1)
    async with aclosing(run(serving.engine, serving.metrics, work, serving.request_log)) as stream:
        async for _, output in stream:
            (sample,) = output.outputs
            made = [
                StreamEvent(index=next(index), token=token, top_tokens=top if body.parameters.top_n_tokens else UNSET)
                for token, top in writer.take(sample)
            ]
            if sample.finish_reason is not None:
                made[-1].generated_text = _prefix(body) + sample.text
                made[-1].details = StreamDetails(
                    finish_reason(sample), len(sample.token_ids), _seed(work, sample), len(work.prompts[0].token_ids)
                )
            if made:
                yield b"".join(event(msgspec.json.encode(each)) for each in made)


def _details(serving: Serving, asked: GenerateParameters, work: Work, result: Result) -> dict[str, Any]:
    """Fields that a best answer and the others share."""
    tokenizer, sample = serving.prompts.tokenizer, result.sample
    taken = _writer(serving, asked, work).take(sample)
    token_ids, positions = work.prompts[0].token_ids, result.output.prompt_logprobs or []
    return {
        "finish_reason": finish_reason(sample),
        "generated_tokens": len(sample.token_ids),
        "seed": _seed(work, sample),
        "prefill": [
            PrefillToken(
                token_id, tokenizer.token_text(token_id), None if entries is None else entries[token_id].logprob
            )
            for token_id, entries in zip(token_ids, positions, strict=False)
        ],
        "tokens": [token for token, _ in taken],
        "top_tokens": [top for _, top in taken] if asked.top_n_tokens else UNSET,
    }


def _writer(serving: Serving, asked: GenerateParameters, work: Work) -> TokenWriter:
    tokenizer = serving.prompts.tokenizer
    invisible = all(token_id in tokenizer.special_ids for token_id in work.prompts[0].token_ids)
    strips = tokenizer.strips_first_space and invisible
    return TokenWriter(tokenizer, strips_first_space=strips, num_top=asked.top_n_tokens or 0)


def _prefix(body: TgiRequest) -> str:
    return body.inputs if body.parameters.return_full_text else ""


def _seed(work: Work, sample: CompletionOutput) -> int | None:
    """As TGI has it: none for an answer that drew no number."""
    return None if work.params.greedy else sample.seed


def _total_logprob(sample: CompletionOutput) -> float:
    return sum(entries[i].logprob for i, entries in zip(sample.token_ids, sample.logprobs or [], strict=False))
