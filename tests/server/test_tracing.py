"""Traces as a collector on loopback receives them."""

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from octavo.config import ServerConfig
from octavo.errors import ConfigError
from octavo.logging import get_logger
from octavo.server.tracing import Tracer, traces_url
from tests.server.world import World, serve_app

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector:
    """Keeps the spans that are posted to it."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self.paths: set[str] = set()

    def take(self, path: str, body: bytes) -> None:
        """One export."""
        self.paths.add(path)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            named = {each.key: each.value.string_value for each in resource.resource.attributes}
            self.services.add(named["service.name"])
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def root(self) -> Any:
        """The span of the one request."""
        (root,) = [span for span in self.spans if span.name == "llm_request"]
        return root

    def attributes(self) -> dict[str, Any]:
        """Of the request's span."""
        return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in self.root().attributes}


@contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    """A collector, and its address without a path."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield collector, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join(5)


@contextmanager
def traced(folder: Path, endpoint: str) -> Iterator[World]:
    """A server that traces; all is sent at the end."""
    with serve_app(folder, ServerConfig(disable_log_stats=True, otlp_traces_endpoint=endpoint)) as world:
        yield world
        assert world.lifecycle.tracer is not None
        world.lifecycle.tracer.close()


def test_a_request_is_a_span_with_queue_prefill_and_decode_in_the_trace_of_its_caller(script_folder: Path) -> None:
    with collecting() as (collector, url):
        before = time.time_ns()
        with traced(script_folder, url) as world:
            body = {"prompt": "hi", "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "request_id": "abc"}
            assert world.http.post("/v1/completions", json=body, headers={"traceparent": PARENT}).status_code == 200
        after = time.time_ns()
    assert collector.paths == {"/v1/traces"} and collector.services == {"octavo"}
    root = collector.root()
    assert root.trace_id.hex() == PARENT.split("-")[1] and root.parent_span_id.hex() == PARENT.split("-")[2]
    children = {span.name: span for span in collector.spans if span.parent_span_id == root.span_id}
    assert set(children) == {"queue", "prefill", "decode"}
    times = [
        before, root.start_time_unix_nano, children["queue"].end_time_unix_nano,
        children["prefill"].end_time_unix_nano, children["decode"].end_time_unix_nano, after,
    ]  # fmt: skip
    assert times == sorted(times)
    found = collector.attributes()
    assert found["gen_ai.request.id"].startswith("cmpl-abc")
    assert (found["gen_ai.usage.prompt_tokens"], found["gen_ai.usage.completion_tokens"]) == (2, 3)
    assert (found["gen_ai.request.temperature"], found["gen_ai.request.top_p"]) == (0.5, 0.9)
    assert (found["gen_ai.request.n"], found["gen_ai.request.max_tokens"]) == (1, 3)
    assert found["gen_ai.response.model"] == "test"
    parts = [found[f"gen_ai.latency.time_in_{name}"] for name in ("queue", "model_prefill", "model_decode")]
    assert sum(parts) == pytest.approx(found["gen_ai.latency.e2e"], abs=1e-3)
    assert 0 < found["gen_ai.latency.time_to_first_token"] <= found["gen_ai.latency.e2e"]


def test_a_stream_without_a_caller_begins_a_trace_and_what_the_caller_does_not_sample_is_not_sent(
    script_folder: Path,
) -> None:
    with collecting() as (collector, url), traced(script_folder, f"{url}/own/path") as world:
        world.stream_chat(max_tokens=2)
        body = {"prompt": "hi", "max_tokens": 1}
        unsampled = {"traceparent": PARENT.removesuffix("1") + "0"}
        assert world.http.post("/v1/completions", json=body, headers=unsampled).status_code == 200
    assert collector.paths == {"/own/path"}
    assert not collector.root().parent_span_id
    assert collector.attributes()["gen_ai.response.finish_reason"] == "length"


def test_a_collector_that_is_gone_holds_up_neither_requests_nor_the_end(script_folder: Path) -> None:
    config = ServerConfig(disable_log_stats=True, otlp_traces_endpoint="http://127.0.0.1:9")
    with serve_app(script_folder, config) as world:
        start = time.monotonic()
        for _ in range(5):
            world.complete("hi", max_tokens=2)
        assert time.monotonic() - start < 3
        assert world.lifecycle.tracer is not None
        world.lifecycle.tracer.close()
        assert time.monotonic() - start < 10
    assert logging.getLogger("opentelemetry").handlers == get_logger("octavo").handlers


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4318", "grpc://127.0.0.1:4317", "http://", "file:///tmp/x"])
def test_an_endpoint_that_is_no_http_url_is_refused_by_name(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"--otlp-traces-endpoint is .* but must be an HTTP URL"):
        traces_url(endpoint)


def test_another_protocol_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc")
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is 'grpc'"):
        traces_url("http://127.0.0.1:4317")


def test_without_the_packages_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"pip install 'octavo\[otel\]'"):
        Tracer("http://127.0.0.1:4318")


def test_its_sdk_is_imported_only_when_it_is_asked_for() -> None:
    program = "import sys, octavo.server.run; print('opentelemetry.sdk' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
