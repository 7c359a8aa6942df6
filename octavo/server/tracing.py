"""One trace for each prompt of a request, sent to an OpenTelemetry collector over OTLP/HTTP. A span `llm_request` with
`queue`, `prefill` and `decode` below it, made when the request has ended; a thread of the SDK's sends them.

Which trace a request belongs to travels in a context variable, so that routes need not hand it on.
"""

import os
import threading
import time
from contextvars import ContextVar
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.errors import ConfigError
from octavo.logging import adopt
from octavo.sampling_params import SamplingParams

FLUSH_S = 2.0
"""How long spans that are not sent yet may hold up the end of the server."""


class RequestMoments(NamedTuple):
    """Seconds of `time.monotonic()`; None for what has not been."""

    arrival_s: float
    scheduled_s: float | None
    first_token_s: float | None
    end_s: float


class TracedRequest(NamedTuple):
    """What a trace tells of a request."""

    request_id: str
    model: str
    params: SamplingParams
    num_prompt_tokens: int
    num_generated_tokens: int
    finish_reason: str
    moments: RequestMoments


class Tracer:
    """Sends spans. `opentelemetry` is an optional dependency, imported here alone.

    Args:
        endpoint: of the collector; without a path, OTLP's own is added.

    Raises:
        ConfigError: the packages are missing, or the endpoint cannot be one.
    """

    def __init__(self, endpoint: str) -> None:
        try:
            from opentelemetry import trace  # noqa: PLC0415  an extra, and slow to import
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
            from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
            from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
            from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415
        except ImportError as err:
            raise ConfigError(
                f"--otlp-traces-endpoint needs OpenTelemetry ({err}); install it with: pip install 'octavo[otel]'"
            ) from None
        adopt("opentelemetry", "warning")
        name = os.environ.get("OTEL_SERVICE_NAME", "octavo")
        self._provider = TracerProvider(resource=Resource.create({"service.name": name}), shutdown_on_exit=False)
        self._exporter = OTLPSpanExporter(endpoint=traces_url(endpoint))
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("octavo")
        self._propagator = TraceContextTextMapPropagator()
        self._in_span = trace.set_span_in_context
        self._kind = trace.SpanKind.SERVER

    def context(self, headers: dict[str, str]) -> Any:
        """The trace that a request's headers belong to."""
        return self._propagator.extract(headers)

    def record(self, request: TracedRequest, parent: Any) -> None:
        """Make the spans of a request that has ended."""
        times, offset_s = request.moments, time.time() - time.monotonic()

        def at(seconds: float) -> int:
            return int((seconds + offset_s) * 1e9)

        root = self._tracer.start_span(
            "llm_request", parent, self._kind, attributes=_attributes(request), start_time=at(times.arrival_s)
        )
        context = self._in_span(root)
        scheduled_s, first_s = times.scheduled_s, times.first_token_s
        for name, begin_s, end_s in (
            ("queue", times.arrival_s, scheduled_s or times.end_s),
            ("prefill", scheduled_s, first_s or times.end_s),
            ("decode", first_s, times.end_s),
        ):
            if begin_s is not None:
                self._tracer.start_span(name, context, start_time=at(begin_s)).end(at(max(begin_s, end_s)))
        root.end(at(times.end_s))

    def close(self) -> None:
        """Send what is left, if the collector takes it soon."""
        flush = threading.Thread(target=self._provider.shutdown, name="flush-traces", daemon=True)
        flush.start()
        flush.join(FLUSH_S)
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # ends its attempts, if there are any left


class Trace(NamedTuple):
    """Where the spans of the request go that is being answered."""

    tracer: Tracer
    parent: Any


CURRENT: ContextVar[Trace | None] = ContextVar("trace", default=None)


class Traced:
    """ASGI middleware: what runs inside belongs to the trace that the headers name."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        wanted = (b"traceparent", b"tracestate")
        headers = {key.decode(): value.decode("latin-1") for key, value in scope["headers"] if key in wanted}
        token = CURRENT.set(Trace(self._tracer, self._tracer.context(headers)))
        try:
            await self._app(scope, receive, send)
        finally:
            CURRENT.reset(token)


def traces_url(endpoint: str) -> str:
    """The URL that spans are posted to.

    Raises:
        ConfigError: it is no HTTP URL, or another protocol is asked for.
    """
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(
            f"--otlp-traces-endpoint is {endpoint!r} but must be an HTTP URL, e.g. http://127.0.0.1:4318/v1/traces"
        )
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if os.environ.get(name, "http/protobuf") != "http/protobuf":
            raise ConfigError(
                f"{name} is {os.environ[name]!r} but traces are sent as http/protobuf only; name the collector's "
                "HTTP port (4318) in --otlp-traces-endpoint and unset the variable"
            )
    return endpoint if parts.path.strip("/") else endpoint.rstrip("/") + "/v1/traces"


def _attributes(request: TracedRequest) -> dict[str, str | int | float]:
    params, times = request.params, request.moments
    scheduled_s, first_s, end_s = times.scheduled_s, times.first_token_s, times.end_s
    found: dict[str, str | int | float | None] = {
        "gen_ai.request.id": request.request_id,
        "gen_ai.request.n": params.n,
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.response.model": request.model,
        "gen_ai.response.finish_reason": request.finish_reason,
        "gen_ai.usage.prompt_tokens": request.num_prompt_tokens,
        "gen_ai.usage.completion_tokens": request.num_generated_tokens,
        "gen_ai.latency.e2e": end_s - times.arrival_s,
        "gen_ai.latency.time_in_queue": _span(times.arrival_s, scheduled_s),
        "gen_ai.latency.time_to_first_token": _span(times.arrival_s, first_s),
        "gen_ai.latency.time_in_model_prefill": _span(scheduled_s, first_s),
        "gen_ai.latency.time_in_model_decode": _span(first_s, end_s),
        "gen_ai.latency.time_in_model_inference": _span(scheduled_s, end_s),
    }
    return {name: value for name, value in found.items() if value is not None}


def _span(begin_s: float | None, end_s: float | None) -> float | None:
    return None if begin_s is None or end_s is None else max(0.0, end_s - begin_s)
