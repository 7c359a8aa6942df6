"""Runs a request and writes its answer, whole or as a stream. The API form is a `Form`; this knows none."""

import itertools
import math
import re
import time
import uuid
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypedDict

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import ClientError
from octavo.messages import BACKGROUND_PRIORITY
from octavo.outputs import CompletionOutput, RequestOutput
from octavo.sampling_params import BeamSearchParams, SamplingParams
from octavo.server.generation import News, UsageCount, Work, run
from octavo.server.prompts import Prompt
from octavo.server.requests import EngineBody
from octavo.server.responses import ChatChunk, ChatCompletion, Completion, Generation, Usage, json_response
from octavo.server.serving import Lifecycle, Serving
from octavo.server.sse import DONE, event, event_stream, unless_gone
from octavo.server.timing import Timing

Chunk = Completion | ChatChunk | Generation
Answer = Completion | ChatCompletion | Generation

_serial = itertools.count()
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Header:
    """What every answer and chunk of one request carries."""

    id: str
    created: int
    model: str
    system_fingerprint: str

    def fields(self) -> "HeaderFields":
        """As keyword arguments of an answer struct."""
        return HeaderFields(
            id=self.id, created=self.created, model=self.model, system_fingerprint=self.system_fingerprint
        )


class HeaderFields(TypedDict):
    """The fields of `Header`."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class Form(Protocol):
    """Writes one request's samples in the form of one route. Called with growing samples, it writes what is new."""

    @property
    def reasoning_tokens(self) -> int | None:
        """Tokens of thinking so far; None if the route does not tell."""
        ...

    def chunks(self, prompt_index: int, output: RequestOutput, sample: CompletionOutput) -> Iterable[Chunk]:
        """Stream chunks for the news of one sample; their `usage` is filled in afterwards."""
        ...

    def usage_chunk(self) -> Chunk:
        """A chunk without choices."""
        ...

    def whole(self, results: list["Result"], usage: Usage) -> Answer:
        """The answer without a stream, from the finished samples in the order of `choices`."""
        ...


@dataclass(frozen=True)
class Result:
    """One finished sample."""

    prompt_index: int
    output: RequestOutput
    sample: CompletionOutput


class Finished(NamedTuple):
    """All samples in the order of `choices`, and what they cost."""

    results: list[Result]
    usage: Usage


@dataclass(frozen=True)
class Streaming:
    """What a stream tells, and after how many new tokens."""

    include_usage: bool
    continuous_usage: bool
    interval: int


class Pace:
    """Holds news of a sample back until it has `interval` new tokens, or is complete."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._num_told: dict[tuple[int, int], int] = {}

    def is_due(self, prompt_index: int, sample: CompletionOutput) -> bool:
        """Whether to tell the news now. What is not told now is part of the next news."""
        key, count = (prompt_index, sample.index), len(sample.token_ids)
        if sample.finish_reason is None and count - self._num_told.get(key, 0) < self._interval:
            return False
        self._num_told[key] = count
        return True


def make_header(request: Request, body: EngineBody, serving: Serving, prefix: str) -> Header:
    """The id is the request's own, if it has one: the field `request_id`, else the header X-Request-Id."""
    name = body.request_id or getattr(request.state, "request_id", None) or uuid.uuid4().hex
    return Header(f"{prefix}-{name}", int(time.time()), serving.model_name, serving.fingerprint)


def make_work(
    request: Request,
    lifecycle: Lifecycle,
    header: Header,
    body: EngineBody,
    prompts: list[Prompt],
    params: SamplingParams,
    beams: BeamSearchParams | None = None,
) -> Work:
    """What the engine is asked to do, for whom and until when.

    Raises:
        ClientError: a header says something that it cannot.
    """
    return Work(
        engine_id(header),
        prompts,
        params,
        priority_of(request, body),
        body.cache_salt,
        tenant=getattr(request.state, "tenant", ""),
        deadline_s=deadline_of(request, lifecycle.server.request_timeout),
        beams=beams,
    )


def deadline_of(request: Request, limit_s: float | None) -> float | None:
    """When the request ends at the latest: X-Request-Timeout, in seconds, and no later than --request-timeout. A line
    of a batch, which nobody waits for, has all the time.

    Raises:
        ClientError: the header is not a positive number.
    """
    if getattr(request.state, "background", False):
        return None
    text = request.headers.get("x-request-timeout")
    if text is not None:
        try:
            asked_s = float(text)
        except ValueError:
            asked_s = math.nan
        if not asked_s > 0:
            raise ClientError(f"X-Request-Timeout is {text[:80]!r} but must be a positive number of seconds")
        limit_s = asked_s if limit_s is None else min(asked_s, limit_s)
    arrival_s: float = getattr(request.state, "arrival_s", time.monotonic())
    return None if limit_s is None else arrival_s + limit_s


def engine_id(header: Header) -> str:
    """Unique among live requests, also when clients repeat theirs."""
    return f"{header.id}-{next(_serial)}"


def priority_of(request: Request, body: EngineBody) -> int:
    """The field `priority`, else the header X-Vllm-Priority; a line of a batch comes after everything else.

    Raises:
        ClientError: the header is not a whole number.
    """
    if getattr(request.state, "background", False):
        return BACKGROUND_PRIORITY
    if body.priority is not None:
        return body.priority
    text = request.headers.get("x-vllm-priority", "0").strip()
    if not re.fullmatch(r"[+-]?\d{1,18}", text, re.ASCII):
        raise ClientError(f"X-Vllm-Priority is {text[:80]!r} but must be a whole number", param="priority")
    return int(text)


async def respond(
    request: Request, lifecycle: Lifecycle, serving: Serving, work: Work, form: Form, body: EngineBody
) -> Response:
    """Run `work` and answer in `form`. A client that goes away ends the work.

    Raises:
        ClientError, EngineError: before the answer has begun.
        ClientGone: nobody waits for the answer.
    """
    server = lifecycle.server
    timing = Timing() if body.return_metrics or server.enable_per_request_metrics else None
    if body.stream:
        options = body.stream_options
        streaming = Streaming(
            include_usage=server.enable_force_include_usage or (options is not None and options.include_usage),
            continuous_usage=options is not None and options.continuous_usage_stats,
            interval=body.stream_interval or lifecycle.server.stream_interval,
        )
        events = _events(serving, work, form, streaming, timing)
        return await event_stream(request, events, server.sse_keep_alive_interval)
    finished = await unless_gone(request.receive, finish(serving, work, timing))
    answer = form.whole(finished.results, finished.usage)
    if timing is not None:
        answer.metrics = timing.times()
    return json_response(answer)


async def finish(serving: Serving, work: Work, timing: Timing | None = None) -> Finished:
    """Run `work` to its end."""
    usage = UsageCount(work.prompts)
    results: dict[int, Result] = {}
    async with aclosing(run(serving.engine, serving.metrics, work, serving.request_log)) as stream:
        async for prompt_index, output in stream:
            usage.see(News(prompt_index, output))
            if timing is not None:
                timing.see(prompt_index, output)
            for sample in output.outputs:
                results[work.choice_index(prompt_index, sample.index)] = Result(prompt_index, output, sample)
    return Finished([results[index] for index in sorted(results)], usage.usage())


async def _events(
    serving: Serving, work: Work, form: Form, streaming: Streaming, timing: Timing | None
) -> AsyncGenerator[bytes]:
    usage, pace, num_open = UsageCount(work.prompts), Pace(streaming.interval), len(work.prompts)
    async with aclosing(run(serving.engine, serving.metrics, work, serving.request_log)) as stream:
        async for news in stream:
            usage.see(news)
            samples = [sample for sample in news.output.outputs if pace.is_due(news.prompt_index, sample)]
            chunks = [chunk for sample in samples for chunk in form.chunks(news.prompt_index, news.output, sample)]
            num_open -= news.output.finished
            if timing is not None:
                timing.see(*news)
                if chunks and not num_open and not streaming.include_usage:  # the last one
                    chunks[-1].metrics = timing.times()
            if chunks:
                now = usage.usage(form.reasoning_tokens) if streaming.continuous_usage else None
                yield b"".join(_with_usage(chunks, now, streaming.include_usage))
    if streaming.include_usage:
        last = form.usage_chunk()
        last.usage = usage.usage(form.reasoning_tokens)
        if timing is not None:
            last.metrics = timing.times()
        yield event(_encode(last)) + DONE
    else:
        yield DONE


def _with_usage(chunks: Iterable[Chunk], usage: Usage | None, included: bool) -> Iterator[bytes]:
    """As events; with `include_usage` each has a usage, null but at the end unless it is asked for all along."""
    for chunk in chunks:
        if included:
            chunk.usage = usage
        yield event(_encode(chunk))
