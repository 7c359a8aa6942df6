"""From the core's news to what callers see: text, stop strings, logprobs, and the samples of a request put together.
Knows the tokenizer; no scheduler, no sockets.
"""

import time
from collections.abc import Callable, Iterable

from octavo.engine.input_processor import Submission
from octavo.errors import ClientError, EngineError, OctavoError, UnanswerableError
from octavo.logging import get_logger
from octavo.messages import EngineOutput, EngineRequest, PositionLogprobs, PromptLogprobs
from octavo.outputs import (
    CompletionOutput,
    FinishReason,
    Logprob,
    RequestMetrics,
    RequestOutput,
    TokenLogprobs,
)
from octavo.sampling_params import SamplingParams
from octavo.tokenizer.detokenizer import Detokenizer
from octavo.tokenizer.tokenizer import Tokenizer

logger = get_logger(__name__)


def token_logprobs(position: PositionLogprobs, tokenizer: Tokenizer | None, *, by_rank: bool = True) -> TokenLogprobs:
    """One position's logprobs by token id: the actual token first, then the most likely ones in their order, or,
    not `by_rank`, those that the request names. Without a tokenizer they have no text.
    """
    made = {
        token_id: Logprob(
            logprob, rank if by_rank else None, None if tokenizer is None else tokenizer.token_text(token_id)
        )
        for rank, (token_id, logprob) in enumerate(zip(position.token_ids, position.logprobs, strict=True))
    }
    made[position.token_ids[0]].rank = position.rank
    return made


class SampleState:
    """One sample of a request while it grows."""

    def __init__(self, index: int, request: EngineRequest, params: SamplingParams, tokenizer: Tokenizer) -> None:
        self.index = index
        self.engine_id = request.request_id
        self.seed = request.seed
        self._include_stop = params.include_stop_str_in_output
        self.token_ids: list[int] = []
        self._text = ""
        self.logprobs: list[TokenLogprobs] | None = [] if params.wants_logprobs else None
        self._by_rank = params.logprob_token_ids is None
        self._names_tokens = params.detokenize
        self.cumulative_logprob = 0.0
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.error: OctavoError | None = None
        self._tokenizer = tokenizer
        self._detokenizer: Detokenizer | None = None
        if params.detokenize:
            self._detokenizer = Detokenizer(
                tokenizer,
                request.prompt_token_ids,
                skip_special_tokens=params.skip_special_tokens,
                kept=params.kept_special_token_ids or (),
                stop=params.stop or [],
                include_stop_str_in_output=params.include_stop_str_in_output,
                min_tokens=params.min_tokens,
            )

    @property
    def text(self) -> str:
        """What of it may be seen. It is put together here, not token by token."""
        if self._detokenizer is not None:
            self._text += self._detokenizer.delta(False)
        return self._text

    def append(self, output: EngineOutput) -> bool:
        """Take news in. True if a stop string ended the text before the core ended the sequence."""
        token_ids, reason, stop = output.new_token_ids, output.finish_reason, None
        if self._detokenizer is not None:
            hidden = reason == "stop" and not self._include_stop
            stop = self._detokenizer.push(token_ids[:-1] if hidden else token_ids)
            if stop is not None:  # the tokens after the one that completes it never were
                token_ids = token_ids[: self._detokenizer.num_tokens - len(self.token_ids)]
        self.token_ids += token_ids
        if self.logprobs is not None and output.logprobs is not None:
            for position in output.logprobs[: len(token_ids)]:
                self.cumulative_logprob += position.logprobs[0]
                tokenizer = self._tokenizer if self._names_tokens else None
                self.logprobs.append(token_logprobs(position, tokenizer, by_rank=self._by_rank))
        if stop is not None:
            self.finish("stop", stop)
            return reason is None
        if reason is not None:
            if output.error is not None:
                self.error = (UnanswerableError if output.refused else EngineError)(output.error)
            self.finish(reason, output.stop_reason)
        return False

    def finish(self, reason: FinishReason, stop_reason: int | str | None = None) -> None:
        """End the sample and let out the text that was held back."""
        self.finish_reason, self.stop_reason = reason, stop_reason
        if self._detokenizer is not None:
            self._text += self._detokenizer.delta(True)
            self._detokenizer = None

    def fail(self, error: OctavoError) -> None:
        """End the sample with what there is."""
        self.finish_reason, self.error = "error", error
        self._text, self._detokenizer = self.text, None

    def drop_decoder(self) -> None:
        """The text stays as it was last read: its decoder may be what went wrong."""
        self._detokenizer = None

    def completion(self) -> CompletionOutput:
        """What a caller sees of it now. The lists are this sample's own and go on growing."""
        return CompletionOutput(
            index=self.index,
            text=self.text,
            token_ids=self.token_ids,
            cumulative_logprob=None if self.logprobs is None else self.cumulative_logprob,
            logprobs=self.logprobs,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            seed=self.seed,
            error=None if self.error is None else str(self.error),
        )


class RequestState:
    """One request as its caller sees it.

    Attributes:
        on_news: called when `take` would return something new.
        failure: why the request as a whole was refused or lost.
    """

    def __init__(self, submission: Submission, tokenizer: Tokenizer, on_news: Callable[[], None]) -> None:
        self.submission = submission
        self.on_news = on_news
        self.failure: OctavoError | None = None
        self.samples = [
            SampleState(index, request, submission.params, tokenizer)
            for index, request in enumerate(submission.sequences)
        ]
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None
        if submission.params.prompt_logprobs is not None:
            self.prompt_logprobs = [None] * len(submission.prompt_token_ids)
        self.num_cached_tokens = 0
        self.metrics = RequestMetrics(arrival_time_s=submission.arrival_time_s)
        self._tokenizer = tokenizer
        self._num_open = len(self.samples)
        self._changed: dict[int, SampleState] = {}

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return self._num_open == 0

    @property
    def error(self) -> OctavoError | None:
        """Why it did not end well, if so."""
        return self.failure or next((sample.error for sample in self.samples if sample.error is not None), None)

    def append(self, sample: SampleState, output: EngineOutput) -> bool:
        """Take news of one sample in. True if the core must be told to end it."""
        if output.prompt_logprobs is not None and self.prompt_logprobs is not None:
            self._place(output.prompt_logprobs, self.prompt_logprobs)
        if output.num_cached_tokens > self.num_cached_tokens and sample.index == 0:
            self.num_cached_tokens = output.num_cached_tokens
        metrics = self.metrics
        if metrics.first_token_time_s == 0.0 and output.new_token_ids:
            metrics.scheduled_time_s = output.scheduled_time_s
            metrics.first_token_time_s = output.first_token_time_s
        metrics.num_preemptions += output.num_preemptions
        must_abort = sample.append(output)
        self.note_change(sample)
        return must_abort

    def note_change(self, sample: SampleState) -> None:
        """A sample has news, perhaps its last."""
        self._changed[sample.index] = sample
        if sample.finish_reason is not None:
            self._num_open -= 1
            if self._num_open == 0:
                self.metrics.finished_time_s = time.monotonic()

    def take(self) -> RequestOutput:
        """The request so far, with the samples that changed since the last time."""
        changed, self._changed = self._changed, {}
        return self._output(changed.values())

    def result(self) -> RequestOutput:
        """The request so far, with all samples."""
        return self._output(self.samples)

    def _output(self, samples: Iterable[SampleState]) -> RequestOutput:
        return RequestOutput(
            request_id=self.submission.request_id,
            prompt=self.submission.prompt,
            prompt_token_ids=self.submission.prompt_token_ids,
            prompt_logprobs=self.prompt_logprobs,
            outputs=[sample.completion() for sample in samples],
            finished=self.finished,
            metrics=self.metrics,
            num_cached_tokens=self.num_cached_tokens,
        )

    def _place(self, news: PromptLogprobs, into: list[TokenLogprobs | None]) -> None:
        """By position, so that a prompt computed twice (after a preemption) is reported once."""
        for offset, position in enumerate(news.positions):
            into[news.start + offset] = token_logprobs(position, self._tokenizer)


class OutputProcessor:
    """Keeps the open requests of one engine. `process` is given every `EngineOutput`, in order."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._requests: dict[str, RequestState] = {}
        self._sequences: dict[str, tuple[RequestState, SampleState]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, submission: Submission, on_news: Callable[[], None] = lambda: None) -> RequestState:
        """Open a request.

        Raises:
            ClientError: its id is that of an open one.
        """
        ids = [sequence.request_id for sequence in submission.sequences]
        if submission.request_id in self._requests or any(i in self._sequences for i in ids):
            raise ClientError(
                f"request id {submission.request_id!r} is in use by a running request; choose another",
                param="request_id",
            )
        state = RequestState(submission, self._tokenizer, on_news)
        self._requests[submission.request_id] = state
        self._sequences.update({sample.engine_id: (state, sample) for sample in state.samples})
        return state

    def process(self, outputs: Iterable[EngineOutput]) -> list[str]:
        """Take one step's news in. Returns the sequences that a stop string ended, which the core must abort.

        News of sequences that are not open (ended here while the core still computed them) is dropped.
        """
        to_abort: list[str] = []
        for output in outputs:
            state, sample = self._sequences.get(output.request_id, (None, None))
            if state is None or sample is None:
                continue
            try:
                must_abort = state.append(sample, output)
            except Exception as err:  # a fault of ours with one request's text must not end the others
                logger.exception("request %s failed", state.submission.request_id)
                sample.drop_decoder()
                state.failure = EngineError(f"the answer could not be decoded: {type(err).__name__}: {err}")
                to_abort += self._end(state, "error")
                continue
            if must_abort:
                to_abort.append(output.request_id)
            if sample.finish_reason is not None:
                del self._sequences[output.request_id]
                if state.finished:
                    del self._requests[state.submission.request_id]
            state.on_news()
        return to_abort

    def abort(self, request_ids: Iterable[str]) -> list[str]:
        """End requests early with reason "abort". Returns the sequences that the core must abort."""
        to_abort: list[str] = []
        for request_id in list(request_ids):
            if request_id in self._requests:
                to_abort += self._end(self._requests[request_id], "abort")
        return to_abort

    def refuse(self, engine_id: str, err: OctavoError) -> None:
        """End the request one of whose sequences the core did not take."""
        if engine_id in self._sequences:
            state = self._sequences[engine_id][0]
            state.failure = err
            self._end(state, "error")

    def fail_all(self, make_error: Callable[[], OctavoError]) -> None:
        """End every open request with an error of its own."""
        for state in list(self._requests.values()):
            state.failure = make_error()
            self._end(state, "error")

    def request_ids(self) -> list[str]:
        """Ids of the open requests."""
        return list(self._requests)

    def open_requests(self) -> list[RequestState]:
        """Those that have not ended."""
        return list(self._requests.values())

    def _end(self, state: RequestState, reason: FinishReason) -> list[str]:
        ended = [sample for sample in state.samples if sample.finish_reason is None]
        for sample in ended:
            if state.failure is None:
                sample.finish(reason)
            else:
                sample.fail(state.failure)
            state.note_change(sample)
            del self._sequences[sample.engine_id]
        del self._requests[state.submission.request_id]
        state.on_news()
        return [sample.engine_id for sample in ended]
