"""Two ways to reach an `EngineCore`: in this thread, or in a process of its own. Neither knows text."""

import asyncio
import itertools
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterable

import msgspec
import zmq
import zmq.asyncio

from octavo import envs
from octavo.config import EngineConfig
from octavo.engine.child import EngineChild, private_folder
from octavo.engine.core import make_core
from octavo.engine.protocol import (
    UNREADABLE,
    Abort,
    EngineFacts,
    Exited,
    Failed,
    FromEngine,
    Loading,
    MapPages,
    News,
    Ready,
    ResetPrefixCache,
    Submit,
    ToEngine,
    decode_from_engine,
    encode,
    engine_error,
    request_ids,
)
from octavo.errors import EngineDeadError
from octavo.logging import get_logger
from octavo.messages import EngineOutput, EngineOutputs, EngineRequest, Progress, SchedulerStats

logger = get_logger(__name__)

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
    submit, abort, calls --PUSH--> <folder>/to_engine   --PULL--> process
    receive              <--PULL-- <folder>/from_engine <--PUSH-- process
                                                        <--PUSH-- watcher thread, once the process has ended
    ```

    Args:
        child: started earlier to save time, and from now on this client's; it begins to load at once.
    """

    def __init__(self, config: EngineConfig, child: EngineChild | None = None) -> None:
        self._config = config
        self._folder = private_folder() if child is None else child.folder
        self._context = zmq.asyncio.Context()
        self._outbox: zmq.Socket[bytes] = zmq.Context.shadow(self._context.underlying).socket(zmq.PUSH)
        self._inbox = self._context.socket(zmq.PULL)
        for socket, name in ((self._outbox, "to_engine"), (self._inbox, "from_engine")):
            socket.set_hwm(0)
            socket.setsockopt(zmq.LINGER, 0)
            socket.bind(f"ipc://{self._folder}/{name}")
        self._child: EngineChild | None = None
        self._watcher: threading.Thread | None = None
        self._closed = False
        self._call_ids = itertools.count()
        if child is not None:
            self._adopt(child)

    async def start(self, progress: Progress | None = None) -> EngineFacts:
        """Start the process and wait until it has loaded the model.

        Raises:
            ConfigError, ModelError: what the process could not do, in its words.
            EngineError: it ended, or was silent for too long (OCTAVO_READY_TIMEOUT).
        """
        if self._child is None:
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
        return None if self._child is None else self._child.process.pid

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

    def map_pages(self) -> int:
        """Ask what the KV pages hold. Returns the `call_id` of the `Reply` to come."""
        call_id = next(self._call_ids)
        self._send(MapPages(call_id))
        return call_id

    async def receive(self) -> FromEngine:
        """The next message of the process. One that cannot be read ends the sequences it is about, and no others.

        Raises:
            OctavoError: the process has failed or ended; nothing more will come.
        """
        data = await self._inbox.recv()
        try:
            message = decode_from_engine.decode(data)
        except UNREADABLE as err:
            return self._give_up(data, err)
        if isinstance(message, Exited):  # its last words came another way and may still be under way
            while await self._inbox.poll(LAST_WORDS_MS):
                last = decode_from_engine.decode(await self._inbox.recv())
                if isinstance(last, Failed):
                    raise engine_error(last)
            raise EngineDeadError(f"the engine process has ended ({_describe_exit(message.returncode)})")
        if isinstance(message, Failed):
            raise engine_error(message)
        return message

    def _give_up(self, data: bytes, err: Exception) -> News:
        logger.error("a message of %d bytes from the engine cannot be read: %s", len(data), err)
        ids = request_ids(data)
        self.abort(ids)
        error = f"the engine's answer cannot be read: {err}"
        ends = [EngineOutput(request_id=each, finish_reason="error", error=error) for each in ids]
        return News(EngineOutputs(outputs=ends))

    def kill(self) -> None:
        """End the process now, whatever state it is in; `close` tidies up."""
        if self._child is not None:
            self._child.kill()

    def close(self) -> None:
        """End the process and remove all traces of it. May be called twice."""
        if self._closed:
            return
        self._closed = True
        if self._child is not None:
            self._child.close()
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
        self._adopt(EngineChild(self._folder))

    def _adopt(self, child: EngineChild) -> None:
        self._child = child
        self._watcher = threading.Thread(target=self._watch, args=(child.process,), name="engine-watcher", daemon=True)
        self._watcher.start()
        child.configure(msgspec.msgpack.encode(self._config))

    def _watch(self, process: "subprocess.Popen[bytes]") -> None:
        returncode = process.wait()
        socket: zmq.Socket[bytes] = zmq.Context.shadow(self._context.underlying).socket(zmq.PUSH)
        with socket:
            socket.setsockopt(zmq.LINGER, LAST_WORDS_MS)
            socket.connect(f"ipc://{self._folder}/from_engine")
            socket.send(encode(Exited(returncode)))


def _describe_exit(returncode: int) -> str:
    if returncode == -signal.SIGKILL:
        return f"killed by signal {-returncode}, perhaps because memory ran out"
    return f"killed by signal {-returncode}" if returncode < 0 else f"exit code {returncode}"
