"""Two ways to reach an `EngineCore`: in this thread, or in a process of its own. Neither knows text."""

import asyncio
import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable

import msgspec
import zmq
import zmq.asyncio

from octavo import envs
from octavo.config import EngineConfig
from octavo.engine.core import make_core
from octavo.engine.protocol import (
    Abort,
    EngineFacts,
    Exited,
    Failed,
    FromEngine,
    Loading,
    Ready,
    ResetPrefixCache,
    Submit,
    ToEngine,
    decode_from_engine,
    encode,
    engine_error,
)
from octavo.errors import EngineDeadError
from octavo.messages import EngineOutput, EngineOutputs, EngineRequest, Progress, SchedulerStats

CLOSE_TIMEOUT_S = 5.0
"""How long an engine process may take to leave after its standard input has ended."""

LAST_WORDS_MS = 200
"""How long to look for a dying process's reason after its end was noticed."""


class InProcessClient:
    """An engine in this process, driven by the caller's own calls of `step`."""

    def __init__(self, config: EngineConfig, progress: Progress | None = None) -> None:
        self._core = make_core(config, progress)
        self.config = self._core.config
        self.facts = self._core.facts

    @property
    def is_alive(self) -> bool:
        """Whether it can go on."""
        return self._core.failure is None

    def submit(self, requests: Iterable[EngineRequest]) -> None:
        """Start the sequences of one request, all or none. Raises ClientError if they cannot run."""
        self._core.submit(requests)

    def abort(self, request_ids: Iterable[str]) -> list[EngineOutput]:
        """End sequences early."""
        return self._core.abort(request_ids)

    def has_unfinished(self) -> bool:
        """Whether `step` has anything to do."""
        return self._core.has_unfinished()

    def step(self) -> EngineOutputs:
        """Run one step."""
        return self._core.step()

    def stats(self) -> SchedulerStats:
        """Gauges and counters after the latest step."""
        return self._core.stats()

    def reset_prefix_cache(self) -> bool:
        """Forget cached prompt beginnings."""
        return self._core.reset_prefix_cache()

    def close(self) -> None:
        """Release the model and the pages."""
        self._core.close()


class ProcessClient:
    """An engine in a process of its own, spoken to from one event loop.

    ```text
    submit, abort, reset --PUSH--> <folder>/to_engine   --PULL--> process
    receive              <--PULL-- <folder>/from_engine <--PUSH-- process
                                                        <--PUSH-- watcher thread, once the process has ended
    ```

    The folder is private to this user and new for each client, so any number of engines share a host.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._folder = tempfile.mkdtemp(prefix="octavo-")
        self._context = zmq.asyncio.Context()
        self._outbox: zmq.Socket[bytes] = zmq.Context.shadow(self._context.underlying).socket(zmq.PUSH)
        self._inbox = self._context.socket(zmq.PULL)
        for socket, name in ((self._outbox, "to_engine"), (self._inbox, "from_engine")):
            socket.set_hwm(0)
            socket.setsockopt(zmq.LINGER, 0)
            socket.bind(f"ipc://{self._folder}/{name}")
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: threading.Thread | None = None
        self._closed = False
        self._call_ids = itertools.count()

    async def start(self, progress: Progress | None = None) -> EngineFacts:
        """Start the process and wait until it has loaded the model.

        Raises:
            ConfigError, ModelError: what the process could not do, in its words.
            EngineError: it ended, or was silent for too long (OCTAVO_READY_TIMEOUT).
        """
        self._spawn()
        silence_s = envs.READY_TIMEOUT.get()
        while True:
            try:
                message = await asyncio.wait_for(self.receive(), silence_s)
            except TimeoutError:
                raise EngineDeadError(f"the engine process said nothing for {silence_s:g} s while loading") from None
            if isinstance(message, Loading) and progress is not None:
                progress(message.stage, message.done, message.total)
            elif isinstance(message, Ready):
                return message.facts

    @property
    def process_id(self) -> int | None:
        """Id of the engine process, once there is one."""
        return None if self._process is None else self._process.pid

    def submit(self, requests: Iterable[EngineRequest]) -> None:
        """Start the sequences of one request, all or none; a refusal comes through `receive`."""
        self._send(Submit(list(requests)))

    def abort(self, request_ids: Iterable[str]) -> None:
        """End sequences early."""
        self._send(Abort(list(request_ids)))

    def reset_prefix_cache(self) -> int:
        """Ask to forget cached prompt beginnings. Returns the `call_id` of the `Reply` to come."""
        call_id = next(self._call_ids)
        self._send(ResetPrefixCache(call_id))
        return call_id

    async def receive(self) -> FromEngine:
        """The next message of the process.

        Raises:
            OctavoError: the process has failed or ended; nothing more will come.
        """
        message = decode_from_engine.decode(await self._inbox.recv())
        if isinstance(message, Exited):  # its last words came another way and may still be under way
            while await self._inbox.poll(LAST_WORDS_MS):
                last = decode_from_engine.decode(await self._inbox.recv())
                if isinstance(last, Failed):
                    raise engine_error(last)
            raise EngineDeadError(f"the engine process has ended ({_describe_exit(message.returncode)})")
        if isinstance(message, Failed):
            raise engine_error(message)
        return message

    def close(self) -> None:
        """End the process and remove all traces of it. May be called twice."""
        if self._closed:
            return
        self._closed = True
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()  # the process leaves when this ends
            try:
                self._process.wait(CLOSE_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._watcher is not None:
            self._watcher.join()
        self._inbox.close()
        self._outbox.close()
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _send(self, message: ToEngine) -> None:
        try:
            self._outbox.send(encode(message), zmq.NOBLOCK)
        except zmq.ZMQError as err:
            raise EngineDeadError(f"the engine process cannot be reached: {err}") from None

    def _spawn(self) -> None:
        # A new interpreter rather than a fork: no threads, locks or open files of the server come along, and user
        # scripts need no `if __name__ == "__main__"`. What it prints goes to our stderr, since stdout may be data.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "octavo.engine.core_process", self._folder],
            stdin=subprocess.PIPE,
            stdout=2,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._watcher = threading.Thread(target=self._watch, args=(self._process,), name="engine-watcher", daemon=True)
        self._watcher.start()
        assert self._process.stdin is not None
        payload = msgspec.msgpack.encode(self._config)
        with contextlib.suppress(BrokenPipeError):  # ended already: the watcher reports it
            self._process.stdin.write(len(payload).to_bytes(8, "little") + payload)
            self._process.stdin.flush()

    def _watch(self, process: "subprocess.Popen[bytes]") -> None:
        returncode = process.wait()
        socket: zmq.Socket[bytes] = zmq.Context.shadow(self._context.underlying).socket(zmq.PUSH)
        with socket:
            socket.setsockopt(zmq.LINGER, LAST_WORDS_MS)
            socket.connect(f"ipc://{self._folder}/from_engine")
            socket.send(encode(Exited(returncode)))


def _describe_exit(returncode: int) -> str:
    return f"killed by signal {-returncode}" if returncode < 0 else f"exit code {returncode}"
