"""A whole server in the test process: uvicorn on a loopback port, the real app and the real `AsyncLLM`. Only the engine
process is a thread instead, which costs milliseconds to start where a process imports torch for seconds.
"""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import zmq

from octavo.config import EngineConfig, ServerConfig
from octavo.engine import async_llm
from octavo.engine.async_llm import AsyncLLM
from octavo.engine.client import ProcessClient
from octavo.engine.core_process import LINGER_MS, EngineProcess
from octavo.engine.resolve import make_config
from octavo.server.app import build_app
from octavo.server.connection import HttpServer, make_http_server
from octavo.server.listening import open_to_clients, reserve
from octavo.server.serving import Lifecycle, make_serving

TIMEOUT_S = 30.0


class _Inbox:
    """A socket whose end ends the thread, as the end of a process would, and is no failure of the engine."""

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self._socket = socket

    def recv(self, flags: int = 0) -> bytes:
        try:
            return self._socket.recv(flags)
        except zmq.ContextTerminated:
            raise SystemExit from None


class ThreadClient(ProcessClient):
    """The engine process's own main loop, in a thread of this process."""

    def _spawn(self) -> None:
        self._thread_context = zmq.Context()
        self._thread = threading.Thread(target=self._run_engine, name="test-engine", daemon=True)
        self._thread.start()

    def _run_engine(self) -> None:
        try:
            with self._thread_context.socket(zmq.PULL) as inbox, self._connect() as outbox:
                inbox.set_hwm(0)
                inbox.connect(f"ipc://{self._folder}/to_engine")
                EngineProcess(self._config, _Inbox(inbox), outbox, self._connect).run()  # type: ignore[arg-type]
        except (SystemExit, zmq.ContextTerminated):
            pass

    def _connect(self) -> "zmq.Socket[bytes]":
        socket: zmq.Socket[bytes] = self._thread_context.socket(zmq.PUSH)
        socket.set_hwm(0)
        socket.setsockopt(zmq.LINGER, LINGER_MS)  # its last words may be said before the connection is made
        socket.connect(f"ipc://{self._folder}/from_engine")
        return socket

    def close(self) -> None:
        if not self._closed:
            self._thread_context.term()
            self._thread.join(TIMEOUT_S)
        super().close()


@dataclass(frozen=True)
class Client:
    """How tests talk to a server of the model "test", wherever it runs."""

    url: str
    http: httpx.Client

    def post(self, path: str, **body: Any) -> httpx.Response:
        """POST a JSON body."""
        return self.http.post(path, json=body)

    def ok(self, path: str, **body: Any) -> Any:
        """The answer, which must be a 200 in strict JSON."""
        response = self.post(path, **body)
        assert response.status_code == 200, response.text
        return strict_json(response.content)

    def complete(self, prompt: Any, **body: Any) -> Any:
        """POST /v1/completions."""
        return self.ok("/v1/completions", prompt=prompt, **{"temperature": 0, **body})

    def chat(self, content: Any = "hi", **body: Any) -> Any:
        """POST /v1/chat/completions with one user message, unless `messages` says otherwise."""
        messages = body.pop("messages", [{"role": "user", "content": content}])
        return self.ok("/v1/chat/completions", messages=messages, **{"temperature": 0, **body})

    def stream(self, path: str, **body: Any) -> list[Any]:
        """Chunks of a streamed answer; checks that it ends with one [DONE]."""
        return list(self.events(path, **body))

    def events(self, path: str, **body: Any) -> Iterator[Any]:
        """Chunks as they come. Closing the iterator closes the connection."""
        with self.http.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            done = False
            for line in response.iter_lines():
                assert not done or not line, "something follows [DONE]"
                if line == "data: [DONE]":
                    done = True
                elif line:
                    yield strict_json(line.removeprefix("data: "))
            assert done, "the stream ended without [DONE]"

    def named_events(self, path: str, **body: Any) -> list[Any]:
        """Data of a stream's events, each under the name of its type."""
        with self.http.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            found = []
            for block in filter(None, response.read().decode().split("\n\n")):
                name, data = block.split("\n")
                found.append(strict_json(data.removeprefix("data: ")))
                assert name == f"event: {found[-1]['type']}"
        return found

    @contextmanager
    def send_and_hold(self, path: str, **body: Any) -> Iterator[socket.socket]:
        """Send a request and read nothing; the connection is closed at the end."""
        address = httpx.URL(self.url)
        assert address.port is not None
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        with socket.create_connection((address.host, address.port)) as sock:
            sock.sendall(head.encode() + data)
            yield sock

    def stream_complete(self, prompt: Any, **body: Any) -> list[Any]:
        """Chunks of /v1/completions."""
        return self.stream("/v1/completions", prompt=prompt, **{"temperature": 0, **body})

    def stream_chat(self, content: Any = "hi", **body: Any) -> list[Any]:
        """Chunks of /v1/chat/completions."""
        messages = body.pop("messages", [{"role": "user", "content": content}])
        return self.stream("/v1/chat/completions", messages=messages, **{"temperature": 0, **body})

    def metrics(self) -> dict[str, float]:
        """Samples of a scrape, by name with labels."""
        text = self.http.get("/metrics").text
        lines = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    def gauge(self, name: str) -> float:
        """A metric of the one model, by its bare name under `octavo:`."""
        return self.metrics()[f'octavo:{name}{{engine="0",model_name="test"}}']

    def wait_until_idle(self, timeout_s: float = 5.0) -> None:
        """Until nothing runs, waits or holds pages; fails if that takes longer."""
        wait_for(
            lambda: all(
                self.gauge(name) == 0
                for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
            ),
            timeout_s,
        )


@dataclass(frozen=True)
class World(Client):
    """A server in this process.

    Attributes:
        engine: belongs to `loop`.
    """

    engine: AsyncLLM
    lifecycle: Lifecycle
    config: EngineConfig
    loop: asyncio.AbstractEventLoop


def assert_refused(response: httpx.Response, status: int | tuple[int, ...] = 400, param: str | None = None) -> Any:
    """The answer is the error envelope with that status; returns what is in it."""
    allowed = status if isinstance(status, tuple) else (status,)
    assert response.status_code in allowed, response.text
    assert response.headers["content-type"] == "application/json"
    error = strict_json(response.content)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and error["message"]
    assert isinstance(error["type"], str)
    assert "Traceback" not in error["message"]
    if param is not None:
        assert error["param"] == param, error
    return error


def strict_json(text: str | bytes) -> Any:
    """Parse JSON that has no NaN and no Infinity, and is UTF-8."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in JSON")

    return json.loads(text if isinstance(text, str) else text.decode(), parse_constant=refuse)


def joined(chunks: list[Any], index: int = 0) -> str:
    """Text of one choice of a stream; no delta may show a broken character that is not the last."""
    texts = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] == index:
                texts.append(choice["text"] if "text" in choice else choice["delta"].get("content") or "")
    return "".join(texts)


def finish_reasons(chunks: list[Any], index: int = 0) -> list[Any]:
    """Every finish reason of one choice that is not null."""
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return [choice["finish_reason"] for choice in choices if choice["finish_reason"] is not None]


def wait_for(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Poll until it holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"did not come true within {timeout_s} s"
        time.sleep(0.02)


@contextmanager
def serve_app(folder: Path, server: ServerConfig | None = None, **options: Any) -> Iterator[World]:
    """Serve a model folder; `options` are engine options. One thread computes, in float32."""
    defaults = {"dtype": "float32", "threads": 1, "num_gpu_blocks_override": 256, "device": "cpu"}
    config = make_config(**{"model": str(folder), "served_model_name": ("test",), **defaults, **options})
    server = server or ServerConfig(disable_log_stats=True)
    with reserve("127.0.0.1", 0) as sock:
        open_to_clients(sock)
        started: Future[tuple[AsyncLLM, Lifecycle, asyncio.AbstractEventLoop, HttpServer]] = Future()
        thread = threading.Thread(
            target=lambda: asyncio.run(_serve(config, server, sock, started)), name="test-server", daemon=True
        )
        thread.start()
        engine, lifecycle, loop, http = started.result(TIMEOUT_S)
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        limits = httpx.Limits(max_connections=None)
        with httpx.Client(base_url=url, timeout=TIMEOUT_S, limits=limits) as client:
            yield World(url, client, engine, lifecycle, config, loop)
        http.should_exit = True
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


async def _serve(config: EngineConfig, server: ServerConfig, sock: Any, started: "Future[Any]") -> None:
    try:
        original, async_llm.ProcessClient = async_llm.ProcessClient, ThreadClient  # type: ignore[misc]
        try:
            engine = AsyncLLM(config, log_stats=False)
        finally:
            async_llm.ProcessClient = original  # type: ignore[misc]
        await engine.start()
        lifecycle = Lifecycle(server)
        lifecycle.ready(make_serving(engine, server))
        http = make_http_server(build_app(lifecycle), replace(server, uvicorn_log_level="error"))
    except BaseException as err:
        started.set_exception(err)
        raise
    started.set_result((engine, lifecycle, asyncio.get_running_loop(), http))
    try:
        await http.serve([sock])
    finally:
        engine.close()
