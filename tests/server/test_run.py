"""The life of a server, in this process: the real `serve` in the main thread (it owns the signals), a driver beside it.
With real processes, real signals and real deaths: test_process_ends.py.
"""

import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.config import EngineConfig, ServerConfig
from octavo.engine import async_llm, core_process
from octavo.engine.core import EngineCore
from octavo.engine.resolve import make_config
from octavo.errors import ConfigError, EngineDeadError, ModelError
from octavo.loader.weights import StoredWeight
from octavo.models.base import CausalLM
from octavo.models.build import read_weights
from octavo.server import restarts
from octavo.server.listening import open_to_clients, reserve
from octavo.server.run import Banner, serve
from octavo.worker import worker
from tests.script_model import write_random_model
from tests.server.conftest import SENTENCE
from tests.server.world import ThreadClient, strict_json, wait_for

OPTIONS: dict[str, Any] = {"dtype": "float32", "threads": 1, "device": "cpu", "num_gpu_blocks_override": 1000}


@dataclass
class Driver:
    """What a test does beside `serve`, and what it sees.

    Attributes:
        ready: set with the banner.
        load: lets the weights be read; cleared to keep the server loading.
    """

    port: int
    banner: Banner | None = None
    ready: threading.Event = field(default_factory=threading.Event)
    load: threading.Event = field(default_factory=threading.Event)

    def on_ready(self, banner: Banner) -> None:
        self.banner = banner
        self.ready.set()

    def get(self, path: str) -> int:
        """Status of a GET; 0 if nobody answers."""
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=5).status_code
        except httpx.TransportError:
            return 0

    def num_running(self) -> float:
        """Streams that hold pages."""
        text = httpx.get(f"http://127.0.0.1:{self.port}/metrics").text
        lines = [line for line in text.splitlines() if line.startswith("octavo:num_requests_running{")]
        return float(lines[0].split()[-1])

    def stream(self, max_tokens: int) -> list[Any]:
        """Events of a streamed completion as far as they come, or the one error instead."""
        body = {"prompt": "hi", "max_tokens": max_tokens, "ignore_eos": True, "stream": True, "temperature": 0}
        events: list[Any] = []
        with httpx.stream("POST", f"http://127.0.0.1:{self.port}/v1/completions", json=body, timeout=20) as response:
            for line in response.iter_lines():
                data = line.removeprefix("data: ")
                if data:
                    events.append(data if data == "[DONE]" else strict_json(data))
        return events


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def guarded_signals() -> Iterator[None]:
    """A signal that comes after `serve` has left must not end the test run."""
    kept = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def run(
    folder: Path, drive: Callable[[Driver], Any], monkeypatch: pytest.MonkeyPatch, **server: Any
) -> tuple[int | BaseException, Any]:
    """Run `serve` with `drive` in a thread beside it. Returns how it ended, and what `drive` returned."""
    monkeypatch.setattr(async_llm, "ProcessClient", ThreadClient)
    driver = Driver(free_port())
    driver.load.set()

    def read_when_let(model: CausalLM, weights: Iterable[StoredWeight], source: str) -> None:
        stream = iter(weights)
        first = next(stream)
        assert driver.load.wait(20)
        read_weights(model, itertools.chain([first], stream), source)

    monkeypatch.setattr(worker, "read_weights", read_when_let)

    def resolve() -> EngineConfig:
        return make_config(model=str(folder), served_model_name="test", **OPTIONS)

    with guarded_signals(), ThreadPoolExecutor(1) as pool:
        driving = pool.submit(drive, driver)
        ended: int | BaseException
        try:
            config = ServerConfig(port=driver.port, disable_log_stats=True, **server)
            ended = serve(config, resolve, on_ready=driver.on_ready)
        except (ConfigError, ModelError, EngineDeadError) as err:
            ended = err
        return ended, driving.result(90)


@pytest.fixture(scope="module")
def endless_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(tmp_path_factory.mktemp("endless"), context_length=4096)


def test_a_taken_port_is_an_error_before_the_model_is_looked_at() -> None:
    def never() -> EngineConfig:
        raise AssertionError("the model was resolved")

    with reserve("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        for _ in ("held by a server that loads", "by one that serves"):
            with pytest.raises(ConfigError, match=f"port {port} .* in use"):
                serve(ServerConfig(port=port), never)
            open_to_clients(taken)
    with pytest.raises(ConfigError, match="not an address"):
        serve(ServerConfig(host="no.such.host.invalid"), never)


def test_a_port_in_time_wait_is_taken_at_once() -> None:
    with reserve("127.0.0.1", 0) as sock:
        open_to_clients(sock)
        port = sock.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        sock.accept()[0].close()  # this side closes first, and is left in TIME_WAIT
        client.close()
    with reserve("127.0.0.1", port) as again:
        open_to_clients(again)
        socket.create_connection(("127.0.0.1", port)).close()


def test_the_server_answers_while_loading_and_tells_when_it_is_ready(
    script_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drive(driver: Driver) -> dict[str, int]:
        driver.load.clear()
        wait_for(lambda: driver.get("/livez") == 200, 20)
        paths = ("/health", "/readyz", "/version", "/metrics", "/v1/models")
        loading = {path: driver.get(path) for path in paths}
        driver.load.set()
        assert driver.ready.wait(20)
        assert driver.get("/readyz") == driver.get("/health") == 200
        terminate()
        return loading

    ended, loading = run(script_folder, drive, monkeypatch)
    assert ended == 0
    assert loading == {"/health": 503, "/readyz": 503, "/version": 200, "/metrics": 200, "/v1/models": 503}


def test_the_banner_says_where_what_and_how_much(script_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def drive(driver: Driver) -> Banner | None:
        assert driver.ready.wait(20)
        terminate()
        return driver.banner

    ended, banner = run(script_folder, drive, monkeypatch)
    assert ended == 0
    assert banner.url.startswith("http://127.0.0.1:") and banner.model == "test"
    assert (banner.kv_pages, banner.kv_tokens, banner.full_length_requests) == (1000, 16000, 16000 / 512)
    assert (banner.device, banner.dtype, banner.max_model_len) == ("cpu", "float32", 512)


def test_die_03_sigterm_lets_open_streams_finish_and_refuses_new_requests(
    endless_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drive(driver: Driver) -> tuple[list[Any], int, int]:
        assert driver.ready.wait(20)
        with ThreadPoolExecutor(1) as pool:
            stream = pool.submit(driver.stream, 3000)
            wait_for(lambda: driver.num_running() == 1)
            terminate()
            wait_for(lambda: driver.get("/readyz") == 503)
            refused, alive = driver.get("/v1/models"), driver.get("/livez")
            return stream.result(60), refused, alive

    ended, (events, refused, alive) = run(endless_folder, drive, monkeypatch, drain_timeout=60)
    assert ended == 0
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert (refused, alive) == (503, 200)


def test_die_03_streams_that_outlast_the_time_to_drain_are_ended(
    endless_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drive(driver: Driver) -> tuple[list[Any], float]:
        assert driver.ready.wait(20)
        with ThreadPoolExecutor(1) as pool:
            stream = pool.submit(driver.stream, 4000)
            wait_for(lambda: driver.num_running() == 1)
            start = time.monotonic()
            terminate()
            return stream.result(20), time.monotonic() - start

    ended, (events, took) = run(endless_folder, drive, monkeypatch, drain_timeout=0)
    assert ended == 0 and took < 5
    assert events[-1] == "[DONE]" and events[-2]["choices"][0]["finish_reason"] == "abort"


def test_die_03_sigterm_while_loading_ends_the_start(script_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def drive(driver: Driver) -> None:
        driver.load.clear()
        wait_for(lambda: driver.get("/livez") == 200, 20)
        terminate()
        wait_for(lambda: driver.get("/livez") == 0)
        driver.load.set()  # an engine in a thread, unlike one in a process, cannot be left behind

    start = time.monotonic()
    ended, _ = run(script_folder, drive, monkeypatch)
    assert ended == 0 and time.monotonic() - start < 15


def test_die_03_a_server_starts_again_on_the_same_port(script_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = []

    def drive(driver: Driver) -> None:
        ports.append(driver.port)
        assert driver.ready.wait(20)
        body = {"prompt": "hi", "temperature": 0, "max_tokens": 20}
        answer = httpx.post(f"http://127.0.0.1:{driver.port}/v1/completions", json=body).json()
        assert answer["choices"][0]["text"] == SENTENCE
        terminate()

    for _ in range(2):
        assert run(script_folder, drive, monkeypatch)[0] == 0
        monkeypatch.setattr("tests.server.test_run.free_port", lambda: ports[0])
    assert ports[0] == ports[1]


def test_die_01_a_lost_engine_ends_every_stream_with_an_error_and_the_server_too(
    endless_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = threading.Event()
    step = EngineCore.step

    def failing_step(core: EngineCore) -> Any:
        if broken.is_set():
            raise RuntimeError("the roof fell in")
        return step(core)

    monkeypatch.setattr(EngineCore, "step", failing_step)

    def drive(driver: Driver) -> tuple[list[list[Any]], float]:
        assert driver.ready.wait(20)
        with ThreadPoolExecutor(4) as pool:
            streams = [pool.submit(driver.stream, 4000) for _ in range(4)]
            wait_for(lambda: driver.num_running() == 4)
            start = time.monotonic()
            broken.set()
            return [stream.result(20) for stream in streams], time.monotonic() - start

    ended, (streams, took) = run(endless_folder, drive, monkeypatch)
    assert isinstance(ended, EngineDeadError) and "the roof fell in" in str(ended)
    assert took < 10
    for events in streams:
        assert "the roof fell in" in events[-1]["error"]["message"]


@pytest.fixture
def falling_roof(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Once set, engines fail at their next step, and new ones cannot be loaded."""
    broken = threading.Event()
    step, load = EngineCore.step, core_process.make_core

    def unless_broken(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if broken.is_set():
                raise EngineDeadError("the roof fell in")
            return original(*args)

        return call

    monkeypatch.setattr(EngineCore, "step", unless_broken(step))
    monkeypatch.setattr(core_process, "make_core", unless_broken(load))
    return broken


def test_an_engine_that_cannot_be_started_again_is_given_up(
    endless_folder: Path, monkeypatch: pytest.MonkeyPatch, falling_roof: threading.Event
) -> None:
    monkeypatch.setattr(restarts, "DELAYS_S", (0.0, 0.1, 0.3))

    def drive(driver: Driver) -> tuple[list[Any], dict[str, int]]:
        assert driver.ready.wait(20)
        falling_roof.set()
        events = driver.stream(4000)
        return events, {path: driver.get(path) for path in ("/livez", "/readyz", "/health", "/v1/models")}

    ended, (events, restarting) = run(endless_folder, drive, monkeypatch, restart_engine=True)
    assert isinstance(ended, EngineDeadError) and "the roof fell in" in str(ended)
    assert "the roof fell in" in events[-1]["error"]["message"]
    assert restarting == {"/livez": 200, "/readyz": 503, "/health": 503, "/v1/models": 503}


def test_sigterm_while_the_engine_is_started_again_ends_the_server(
    endless_folder: Path, monkeypatch: pytest.MonkeyPatch, falling_roof: threading.Event
) -> None:
    monkeypatch.setattr(restarts, "DELAYS_S", (0.0, 60.0))

    def drive(driver: Driver) -> float:
        assert driver.ready.wait(20)
        falling_roof.set()
        driver.stream(4000)
        start = time.monotonic()
        terminate()
        wait_for(lambda: driver.get("/livez") == 0)
        return time.monotonic() - start

    ended, took = run(endless_folder, drive, monkeypatch, restart_engine=True)
    assert ended == 0 and took < 5


def test_a_model_that_cannot_be_loaded_ends_the_server_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, _ = run(tmp_path / "nothing", lambda driver: None, monkeypatch)
    assert isinstance(ended, ModelError | ConfigError)


def test_the_server_imports_nothing_heavy_that_only_the_engine_needs() -> None:
    program = (
        "import sys, octavo.server.run, octavo.engine.resolve;"
        "print([m for m in ('torch', 'transformers', 'numpy', 'gguf', 'huggingface_hub') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
