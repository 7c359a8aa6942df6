"""Measures requests while they run, for metrics and traces. Knows no API form."""

import time

from octavo.outputs import FinishReason, RequestOutput
from octavo.sampling_params import SamplingParams
from octavo.server.metrics import Metrics
from octavo.server.tracing import CURRENT, RequestMoments, TracedRequest


class RequestClock:
    """Measures one prompt of one request: `see` every output, and `end` it if the last one does not come."""

    def __init__(self, metrics: Metrics, request_id: str, num_prompt_tokens: int, params: SamplingParams) -> None:
        self._metrics = metrics
        self._request_id = request_id
        self._num_prompt_tokens = num_prompt_tokens
        self._params = params
        self._arrival = time.monotonic()
        self._first: float | None = None
        self._last_token: dict[int, float] = {}
        self._num_tokens: dict[int, int] = {}
        self._reasons: dict[int, FinishReason] = {}
        self._last: RequestOutput | None = None
        self._ended = False

    def see(self, output: RequestOutput) -> None:
        """Take in one output."""
        now = time.monotonic()
        self._last = output
        for sample in output.outputs:
            new = len(sample.token_ids) - self._num_tokens.get(sample.index, 0)
            if new > 0:
                self._see_tokens(sample.index, new, now)
                self._num_tokens[sample.index] = len(sample.token_ids)
            if sample.finish_reason is not None:
                self._reasons[sample.index] = sample.finish_reason
        if output.finished:
            self.end("error")

    def _see_tokens(self, index: int, count: int, now: float) -> None:
        if self._first is None:
            self._first = now
            self._metrics.first_token.observe(now - self._arrival)
        # Tokens that come together share the time since the last one; those that come with the first one took none.
        last, gaps = (self._last_token[index], count) if index in self._last_token else (now, count - 1)
        for _ in range(gaps):
            self._metrics.inter_token.observe((now - last) / gaps)
        self._last_token[index] = now

    def end(self, unfinished: FinishReason) -> None:
        """The prompt has ended, if it has not already; samples that gave no reason of their own have `unfinished`."""
        if self._ended:
            return
        self._ended = True
        for index in range(self._params.n):
            self._metrics.finished[self._reasons.get(index, unfinished)].inc()
        times = self._times(time.monotonic())
        self._see_times(times)
        self._see_sizes()
        trace = CURRENT.get()
        if trace is not None:
            trace.tracer.record(self._traced(times, unfinished), trace.parent)

    def _times(self, now: float) -> RequestMoments:
        scheduled = None
        if self._last is not None and self._first is not None:
            scheduled = max(self._arrival, self._last.metrics.scheduled_time_s)
        return RequestMoments(self._arrival, scheduled, self._first, now)

    def _see_times(self, times: RequestMoments) -> None:
        metrics = self._metrics
        metrics.latency.observe(times.end_s - times.arrival_s)
        metrics.note_latency(times.end_s - times.arrival_s)
        if times.scheduled_s is None or times.first_token_s is None:
            return
        metrics.queue.observe(times.scheduled_s - times.arrival_s)
        metrics.prefill.observe(max(0.0, times.first_token_s - times.scheduled_s))
        metrics.decode.observe(times.end_s - times.first_token_s)
        metrics.inference.observe(max(0.0, times.end_s - times.scheduled_s))
        longest = max(self._num_tokens.values())
        if longest > 1:
            metrics.per_token.observe((times.end_s - times.first_token_s) / (longest - 1))

    def _traced(self, times: RequestMoments, unfinished: FinishReason) -> TracedRequest:
        return TracedRequest(
            request_id=self._request_id,
            model=self._metrics.model_name,
            params=self._params,
            num_prompt_tokens=self._num_prompt_tokens,
            num_generated_tokens=sum(self._num_tokens.values()),
            finish_reason=",".join(self._reasons.get(index, unfinished) for index in range(self._params.n)),
            moments=times,
        )

    def _see_sizes(self) -> None:
        metrics, output = self._metrics, self._last
        metrics.prompt_tokens.observe(self._num_prompt_tokens)
        metrics.n.observe(self._params.n)
        if self._params.max_tokens is not None:
            metrics.max_tokens.observe(self._params.max_tokens)
        if output is None:
            return
        metrics.computed_tokens.observe(self._num_prompt_tokens - output.num_cached_tokens)
        metrics.preemptions.observe(output.metrics.num_preemptions)
        for count in self._num_tokens.values():
            metrics.generation_tokens.observe(count)
        metrics.max_generation_tokens.observe(max(self._num_tokens.values(), default=0))
