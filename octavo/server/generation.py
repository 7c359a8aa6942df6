"""Runs the prompts of one HTTP request on the engine and yields their news, merged. Knows no API form."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple, TypedDict, TypeVar

from octavo.errors import ClientError, OverloadedError, UnanswerableError
from octavo.outputs import CompletionOutput, FinishReason, RequestOutput, TokenLogprobs
from octavo.sampling_params import BeamSearchParams, SamplingParams
from octavo.server.clock import RequestClock
from octavo.server.engine import Engine
from octavo.server.errors import DeadlineError
from octavo.server.metrics import Metrics
from octavo.server.prompts import Prompt
from octavo.server.request_log import RequestLog
from octavo.server.responses import CompletionTokensDetails, PromptTokensDetails, Usage

T = TypeVar("T")


@dataclass(frozen=True)
class Work:
    """What one HTTP request asks of the engine. `params.n` samples of each prompt.

    Attributes:
        beams: search for the samples; of `params` only what says how they are told counts then.
        tenant: name of the API key.
        deadline_s: when it ends, whatever it has got to; on the clock of `time.monotonic`.
    """

    request_id: str
    prompts: list[Prompt]
    params: SamplingParams
    priority: int = 0
    cache_salt: str | None = None
    tenant: str = ""
    deadline_s: float | None = None
    beams: BeamSearchParams | None = None

    def choice_index(self, prompt_index: int, sample_index: int) -> int:
        """Place of a sample in `choices`."""
        return prompt_index * self.params.n + sample_index


class Whose(TypedDict):
    """For whom the engine works, and how soon."""

    priority: int
    cache_salt: str | None
    tenant: str


class News(NamedTuple):
    """An output of the engine, and which prompt it belongs to."""

    prompt_index: int
    output: RequestOutput


class Delta(NamedTuple):
    """What is new of one sample since it was last looked at."""

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs]
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    seed: int | None

    @property
    def ended_by_token(self) -> bool:
        """Whether the last token is an end-of-sequence or stop token."""
        return self.finish_reason == "stop" and not isinstance(self.stop_reason, str)


class Cursor:
    """How much of a growing sample has been taken."""

    def __init__(self) -> None:
        self.num_chars = 0
        self.num_tokens = 0

    def take(self, sample: CompletionOutput) -> Delta:
        """The news since the last call; slices only what is new, however long the sample is."""
        text, token_ids = sample.text[self.num_chars :], sample.token_ids[self.num_tokens :]
        logprobs = sample.logprobs[self.num_tokens : self.num_tokens + len(token_ids)] if sample.logprobs else []
        self.num_chars += len(text)
        self.num_tokens += len(token_ids)
        return Delta(text, token_ids, logprobs, sample.finish_reason, sample.stop_reason, sample.seed)


class UsageCount:
    """Counts the tokens of all prompts and samples of a request."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self._prompt_tokens = sum(len(prompt.token_ids) for prompt in prompts)
        self._cached = [0] * len(prompts)
        self._sampled: dict[tuple[int, int], int] = {}

    def see(self, news: News) -> None:
        """Take in one output."""
        self._cached[news.prompt_index] = news.output.num_cached_tokens
        for sample in news.output.outputs:
            self._sampled[news.prompt_index, sample.index] = len(sample.token_ids)

    def usage(self, reasoning_tokens: int | None = None) -> Usage:
        """The count so far."""
        sampled = sum(self._sampled.values())
        usage = Usage(
            self._prompt_tokens, sampled, self._prompt_tokens + sampled, PromptTokensDetails(sum(self._cached))
        )
        if reasoning_tokens is not None:
            usage.completion_tokens_details = CompletionTokensDetails(reasoning_tokens)
        return usage


async def until(items: AsyncGenerator[T], deadline_s: float | None) -> AsyncGenerator[T]:
    """The items that come before the deadline.

    Raises:
        DeadlineError: there would have been more.
    """
    start_s = time.monotonic()
    while True:
        try:
            async with asyncio.timeout(None if deadline_s is None else max(0.0, deadline_s - time.monotonic())):
                item = await anext(items)
        except StopAsyncIteration:
            return
        except TimeoutError:
            waited_s = time.monotonic() - start_s
            raise DeadlineError(f"the request was not done in its time, after {waited_s:.1f} s in the engine") from None
        yield item


async def run(engine: Engine, metrics: Metrics, work: Work, log: RequestLog | None = None) -> AsyncGenerator[News]:
    """Submit all prompts, or none, and yield what comes. Closing the generator aborts what still runs.

    Raises:
        ClientError: nothing has run, unless it is an UnanswerableError.
        EngineError, UnanswerableError: of the first prompt that fails; the others are aborted.
        DeadlineError: the time is over.
    """
    clocks = [RequestClock(metrics, work.request_id, len(prompt.token_ids), work.params) for prompt in work.prompts]
    if log is not None:
        log.begin(work.request_id, work.prompts, work.params)
    token_ids = [prompt.token_ids for prompt in work.prompts]
    who = Whose(priority=work.priority, cache_salt=work.cache_salt, tenant=work.tenant)
    if work.beams is None:
        stream = engine.generate_all(token_ids, work.params, work.request_id, **who)
    else:
        stream = engine.beam_search(token_ids, work.beams, work.request_id, **who)
    try:
        async with aclosing(stream):
            async for place, output in until(stream, work.deadline_s):
                clocks[place].see(output)
                if log is not None:
                    log.see(work.request_id, output)
                yield News(place, output)
    except BaseException as err:
        if isinstance(err, OverloadedError):
            metrics.rejected.inc()
            err.retry_after_s = metrics.retry_after_s(engine.stats())
        if isinstance(err, ClientError) and not isinstance(err, UnanswerableError):  # none of them has run
            raise
        for clock in clocks:
            clock.end("error" if isinstance(err, Exception) else "abort")
        raise
