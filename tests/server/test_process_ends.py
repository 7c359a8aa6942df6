"""Fault cases of the classes "engine_death" and "multinode" with real processes: `octavo serve`, killed in every way.

DIE-03 (b), a drain, is in test_run.py. MUL-01 has one process per engine here; several ranks need parallelism.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.server.keys import Scope, hashed
from octavo.server.listening import open_to_clients, reserve
from tests.script_model import write_random_model
from tests.server.test_run import free_port
from tests.server.world import strict_json, wait_for

pytestmark = pytest.mark.slow

START_S = 90.0


OCTAVO = (sys.executable, "-c", "from octavo.cli.main import main; main()")
"""The command of this source tree, installed or not."""


class Process:
    """`octavo serve` with these arguments, in its own process group."""

    def __init__(self, port: int, *arguments: str) -> None:
        self.port = port
        self.popen = subprocess.Popen(
            [*OCTAVO, "serve", "--port", str(port), *arguments],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stderr is not None
        self.log.extend(self.popen.stderr)

    def get(self, path: str) -> int:
        """Status of a GET; 0 if nobody answers."""
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=5).status_code
        except httpx.TransportError:
            return 0

    def wait_until_ready(self) -> None:
        wait_for(lambda: self.get("/readyz") == 200 or self.popen.poll() is not None, START_S)
        assert self.popen.poll() is None, "".join(self.log)

    def complete(self, max_tokens: int = 4) -> Any:
        body = {"prompt": "hi", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        return httpx.post(f"http://127.0.0.1:{self.port}/v1/completions", json=body, timeout=30).json()

    def stream(self) -> list[Any]:
        """Events of an endless stream as far as they come, and how it ended otherwise."""
        body = {"prompt": "hi", "max_tokens": 4000, "temperature": 0, "ignore_eos": True, "stream": True}
        events: list[Any] = []
        url = f"http://127.0.0.1:{self.port}/v1/completions"
        try:
            with httpx.stream("POST", url, json=body, timeout=30) as response:
                for line in response.iter_lines():
                    data = line.removeprefix("data: ")
                    if data and data != "[DONE]":
                        events.append(strict_json(data))
        except httpx.TransportError as err:
            events.append(err)
        return events

    def descendants(self) -> list[int]:
        """Ids of all processes below this one."""
        found, pending = [], [self.popen.pid]
        while pending:
            path = Path(f"/proc/{pending[0]}/task/{pending.pop(0)}/children")
            children = [int(pid) for pid in path.read_text().split()] if path.exists() else []
            found += children
            pending += children
        return found

    def wait(self, timeout_s: float) -> int:
        """Exit code."""
        code = self.popen.wait(timeout_s)
        self._reader.join(5)
        return code


@contextmanager
def serving(folder: Path, port: int | None = None, *options: str) -> Iterator[Process]:
    """A server of a tiny model."""
    arguments = (str(folder), "--served-model-name", "test", "--dtype", "float32", "--threads", "1",
                 "--num-gpu-blocks-override", "1000", *options)  # fmt: skip
    with running(port or free_port(), *arguments) as process:
        yield process


@contextmanager
def running(port: int, *arguments: str) -> Iterator[Process]:
    """A server, which is gone at the end whatever happened."""
    process = Process(port, *arguments)
    try:
        yield process
    finally:
        process.popen.kill()
        process.wait(10)
        assert process.popen.stderr is not None
        process.popen.stderr.close()


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that waits to be reaped has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(tmp_path_factory.mktemp("served"), context_length=4096)


def test_die_01_a_killed_engine_ends_all_streams_and_the_server_with_one_clear_line(
    folder: Path, tmp_path: Path
) -> None:
    with serving(folder, None, "--crash-dump-folder", str(tmp_path)) as server, ThreadPoolExecutor(4) as pool:
        server.wait_until_ready()
        streams = [pool.submit(server.stream) for _ in range(4)]
        time.sleep(0.5)
        engine = server.descendants()
        assert engine
        start = time.monotonic()
        for pid in engine:
            os.kill(pid, signal.SIGKILL)
        for stream in streams:
            assert "killed by signal 9" in stream.result(10)[-1]["error"]["message"]
        assert time.monotonic() - start < 10
        assert server.get("/health") in (0, 503)
        assert server.wait(30) == 1
        assert all(is_gone(pid) for pid in engine)
        assert sum("killed by signal 9" in line for line in server.log) == 1
        [dump] = tmp_path.iterdir()
        assert len(strict_json(dump.read_bytes())["open"]) == 4
        assert sum(str(dump) in line for line in server.log) == 1
        assert not any("Traceback" in line for line in server.log)


@pytest.mark.parametrize("busy", [True, False])
def test_die_01_a_stopped_engine_is_noticed_within_ten_seconds_busy_or_idle(folder: Path, busy: bool) -> None:
    with serving(folder) as server, ThreadPoolExecutor(4) as pool:
        server.wait_until_ready()
        streams = [pool.submit(server.stream) for _ in range(4 if busy else 0)]
        time.sleep(0.5)
        [engine] = server.descendants()
        start = time.monotonic()
        os.kill(engine, signal.SIGSTOP)
        late = pool.submit(server.complete) if not busy else streams[0]
        assert server.wait(15) == 1 and is_gone(engine)
        assert time.monotonic() - start < 12
        for stream in streams:
            assert "stopped or frozen" in stream.result(0)[-1]["error"]["message"]
        if not busy:
            assert late.result(0)["error"]["type"] == "EngineDeadError"
        assert [line for line in server.log if "stopped or frozen" in line] == server.log[-1:]


def test_die_01_an_engine_is_started_again_and_serves_what_it_served_before(folder: Path) -> None:
    with serving(folder, None, "--restart-engine") as server, ThreadPoolExecutor(4) as pool:
        server.wait_until_ready()
        answer = server.complete()["choices"][0]["text"]
        for number in (signal.SIGKILL, signal.SIGSTOP):
            streams = [pool.submit(server.stream) for _ in range(4)]
            time.sleep(0.5)
            [engine] = server.descendants()
            start = time.monotonic()
            os.kill(engine, number)
            for stream in streams:
                assert stream.result(10)[-1]["error"]["type"] == "EngineDeadError"
            seen = {path: server.get(path) for path in ("/livez", "/readyz", "/health", "/v1/models")}
            assert seen == {"/livez": 200, "/readyz": 503, "/health": 503, "/v1/models": 503}
            wait_for(lambda: server.get("/readyz") == 200, 30)
            assert server.complete()["choices"][0]["text"] == answer and server.get("/health") == 200
            assert is_gone(engine) and len(server.descendants()) == 1
            assert time.monotonic() - start < 30
        text = httpx.get(f"http://127.0.0.1:{server.port}/metrics").text
        assert 'octavo:engine_restarts_total{engine="0",model_name="test"} 2.0' in text
        server.popen.terminate()
        assert server.wait(20) == 0
        assert not any("Traceback" in line for line in server.log)


def test_a_server_that_is_stopped_for_a_while_goes_on_where_it_was(folder: Path) -> None:
    with serving(folder) as server, ThreadPoolExecutor(1) as pool:
        server.wait_until_ready()
        stream = pool.submit(server.stream)
        time.sleep(0.3)
        server.popen.send_signal(signal.SIGSTOP)
        time.sleep(9)
        server.popen.send_signal(signal.SIGCONT)
        assert stream.result(30)[-1]["choices"][0]["finish_reason"] == "length"
        assert server.get("/health") == 200


def test_die_03_a_killed_server_leaves_no_stopped_engine_behind(folder: Path) -> None:
    with serving(folder) as server:
        server.wait_until_ready()
        [engine] = server.descendants()
        os.kill(engine, signal.SIGSTOP)
        server.popen.kill()
        wait_for(lambda: is_gone(engine), 10)


def test_die_03_a_killed_server_leaves_no_engine_behind(folder: Path) -> None:
    with serving(folder) as server:
        server.wait_until_ready()
        below = server.descendants()
        assert below
        server.popen.kill()
        wait_for(lambda: all(is_gone(pid) for pid in below), 10)
    with serving(folder, server.port) as again:
        again.wait_until_ready()
        assert again.complete()["choices"]


def test_die_03_sigterm_while_loading_leaves_nothing_behind(folder: Path) -> None:
    with serving(folder) as server:
        wait_for(lambda: bool(server.descendants()), START_S)
        below = server.descendants()
        server.popen.terminate()
        assert server.wait(15) in (0, 143)
        wait_for(lambda: all(is_gone(pid) for pid in below), 10)


def test_die_03_a_second_sigterm_does_not_wait_for_streams(folder: Path) -> None:
    with serving(folder, None, "--shutdown-timeout", "60") as server, ThreadPoolExecutor(1) as pool:
        server.wait_until_ready()
        stream = pool.submit(server.stream)
        time.sleep(0.3)
        below = server.descendants()
        server.popen.terminate()
        wait_for(lambda: server.get("/readyz") == 503)
        start = time.monotonic()
        server.popen.terminate()
        assert server.wait(10) in (0, 143) and time.monotonic() - start < 5
        stream.result(10)
        wait_for(lambda: all(is_gone(pid) for pid in below), 10)


def test_mul_01_a_taken_port_ends_the_start_before_the_model_is_loaded(folder: Path) -> None:
    with reserve("127.0.0.1", 0) as taken:
        open_to_clients(taken)
        port = taken.getsockname()[1]
        with serving(folder, port) as server:
            assert server.wait(30) not in (0, None)
            assert any(re.search(rf"\b{port}\b", line) for line in server.log)
            assert not server.descendants()


def test_mul_01_several_servers_start_at_the_same_moment(folder: Path) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(folder)) for _ in range(6)]
        for server in servers:
            server.wait_until_ready()
        answers = [server.complete(16)["choices"][0]["text"] for server in servers]
        assert len(set(answers)) == 1
        for server in servers:
            server.popen.terminate()
        assert [server.wait(20) for server in servers] == [0] * 6


def test_a_hangup_reads_the_keys_again_and_hurts_no_request(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(hashed("old", "k-old", Scope).line())

    def status(key: str) -> int:
        return httpx.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code

    with serving(folder, None, "--api-key-file", str(file)) as server:
        server.wait_until_ready()
        url = f"http://127.0.0.1:{server.port}"
        body: dict[str, Any] = {"prompt": "hi", "max_tokens": 1500, "ignore_eos": True, "stream": True}
        body["stream_options"] = {"include_usage": True}
        headers = {"Authorization": "Bearer k-old"}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, headers=headers, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            assert (status("k-old"), status("k-new")) == (200, 401)
            file.write_text(hashed("new", "k-new", Scope).line())
            os.killpg(server.popen.pid, signal.SIGHUP)  # as a terminal does: the engine gets it too
            wait_for(lambda: status("k-new") == 200)
            assert status("k-old") == 401
            file.write_text("no line of a key file")
            server.popen.send_signal(signal.SIGHUP)
            wait_for(lambda: any("keys stay as they are" in line for line in server.log))
            assert status("k-new") == 200
            events = [line for line in lines if line]
        assert events[-1] == "data: [DONE]" and '"completion_tokens":1500' in events[-2]
        server.popen.terminate()
        assert server.wait(20) == 0
