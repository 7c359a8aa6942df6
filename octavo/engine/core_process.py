"""The engine's own process: takes requests from a socket, steps, sends news. Started by `client.ProcessClient` as
`python -m octavo.engine.core_process FOLDER`; knows nothing of HTTP or text.

The folder holds the two sockets. Standard input brings the configuration, perhaps long after the start, and then stays
open for as long as the parent lives: its end is the sign to go, so no orphan is left whatever kills the parent.
"""

import ctypes
import gc
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from select import select
from typing import BinaryIO

import msgspec
import zmq

from octavo.config import DeviceConfig, EngineConfig
from octavo.engine.core import EngineCore, make_core
from octavo.engine.heartbeat import Heartbeat
from octavo.engine.protocol import (
    UNREADABLE,
    UNWRITABLE,
    Abort,
    Failed,
    FromEngine,
    Loading,
    MapPages,
    News,
    Ready,
    Reply,
    ResetPrefixCache,
    Submit,
    ToEngine,
    decode_to_engine,
    encode,
    refused,
    request_ids,
)
from octavo.errors import ClientError, ConfigError, EngineDeadError, ModelError
from octavo.executor.registry import EXECUTORS
from octavo.logging import get_logger
from octavo.messages import EngineOutput, EngineOutputs
from octavo.registry import load_plugins

logger = get_logger(__name__)

PROGRESS_INTERVAL_S = 0.1
"""Loading messages are sent no more often than this, but always at the end of a stage."""

PR_SET_PDEATHSIG = 1
"""Linux's `prctl`: the signal this process gets when its parent dies."""

LINGER_MS = 1000
"""How long the last messages may take to leave when the process ends."""


class EngineProcess:
    """Serves one client over a pair of sockets.

    Args:
        connect: makes one more socket like `outbox`, for another thread.
    """

    def __init__(
        self,
        config: EngineConfig,
        inbox: "zmq.Socket[bytes]",
        outbox: "zmq.Socket[bytes]",
        connect: "Callable[[], zmq.Socket[bytes]]",
    ) -> None:
        self._config = config
        self._inbox = inbox
        self._outbox = outbox
        self._connect = connect
        self._last_progress_s = 0.0

    def run(self) -> None:
        """Load and serve until something goes wrong, which the client is told before this returns."""
        try:
            load_plugins()
            core = make_core(self._config, self._on_progress)
            gc.freeze()  # what start-up made stays for good; no collection looks at it again
            gc.enable()
            self._send(Ready(core.facts))
            with Heartbeat(self._connect):
                self._serve(core)
        except (ConfigError, ModelError, EngineDeadError) as err:
            self._send(Failed(type(err).__name__, str(err)))
        except Exception as err:  # the last boundary: the client must learn why, whatever it was
            logger.exception("the engine process ends")
            self._send(Failed(EngineDeadError.__name__, f"the engine has failed: {type(err).__name__}: {err}"))

    def _serve(self, core: EngineCore) -> None:
        """Busy while there is work; asleep in the socket while there is none."""
        while True:
            self._read_inbox(core)
            if core.has_unfinished():
                self._send_news(core, core.step())
            if core.failure is not None:
                raise core.failure

    def _read_inbox(self, core: EngineCore) -> None:
        """Handle all messages that are there, waiting for one if there is no work."""
        flags = zmq.NOBLOCK if core.has_unfinished() else 0
        while True:
            try:
                data = self._inbox.recv(flags)
            except zmq.Again:
                return
            try:
                self._handle(core, decode_to_engine(data))
            except UNREADABLE as err:  # what it was about ends, if that can be read; the rest goes on
                logger.error("a message of %d bytes cannot be read: %s", len(data), err)
                for request_id in request_ids(data):
                    self._send(refused(request_id, err))
            flags = zmq.NOBLOCK

    def _handle(self, core: EngineCore, message: ToEngine) -> None:
        match message:
            case Submit(requests):
                try:
                    core.submit(requests)
                except EngineDeadError:
                    raise
                except Exception as err:  # none of its sequences was added: whatever it was, it is theirs alone
                    if not isinstance(err, ClientError):
                        logger.exception("request %s cannot be taken", requests[0].request_id)
                    self._send(refused(requests[0].request_id, err))
            case Abort(ids):
                # Without work no step follows, and the gauges have to return to idle.
                self._send_news(core, EngineOutputs(outputs=core.abort(ids), stats=core.stats()))
            case ResetPrefixCache(call_id):
                self._send(Reply(call_id, core.reset_prefix_cache()))
            case MapPages(call_id):
                self._send(Reply(call_id, core.page_maps()))

    def _send_news(self, core: EngineCore, news: EngineOutputs) -> None:
        try:
            self._send(News(news))
        except UNWRITABLE as err:  # what cannot be written ends alone
            logger.exception("news of %d sequences cannot be written", len(news.outputs))
            bad = [output for output in news.outputs if not _can_be_sent(output)]
            core.abort(output.request_id for output in bad)
            error = f"the answer could not be sent: {type(err).__name__}"
            ends = [EngineOutput(request_id=output.request_id, finish_reason="error", error=error) for output in bad]
            good = [output for output in news.outputs if output not in bad]
            self._send(News(EngineOutputs(outputs=good + ends, stats=core.stats())))

    def _on_progress(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if done == total or now - self._last_progress_s >= PROGRESS_INTERVAL_S:
            self._last_progress_s = now
            self._send(Loading(stage, done, total))

    def _send(self, message: FromEngine) -> None:
        self._outbox.send(encode(message))


def _can_be_sent(output: EngineOutput) -> bool:
    try:
        encode(News(EngineOutputs(outputs=[output])))
    except UNWRITABLE:
        return False
    return True


def leave_with_parent(stdin: BinaryIO, folder: str) -> None:
    """Start a thread that ends this process, whatever it is doing, once the parent is gone."""
    parent = os.getppid()
    if sys.platform == "linux":  # a stopped process has no thread to notice: it is to go on then, and leave
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT)

    def watch() -> None:
        # The pipe tells at once; the parent's id also when some other process has inherited the pipe's other end.
        while os.getppid() == parent:
            readable, _, _ = select([stdin], [], [], 2.0)
            if readable and not stdin.read(1):
                break
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)

    threading.Thread(target=watch, name="leave-with-parent", daemon=True).start()


def connected(context: "zmq.Context[zmq.Socket[bytes]]", kind: int, path: str) -> "zmq.Socket[bytes]":
    """A socket to one of the client's."""
    socket: zmq.Socket[bytes] = context.socket(kind)
    socket.set_hwm(0)
    socket.setsockopt(zmq.LINGER, LINGER_MS)
    socket.connect(f"ipc://{path}")
    return socket


def main() -> None:
    """Read the configuration, connect to the client's sockets and serve. Returns when the engine has failed."""
    # The parent decides when to end: a signal to the whole process group must not cut its running requests off.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    folder, stdin = sys.argv[1], sys.stdin.buffer
    gc.disable()  # a tenth of the time to import torch
    EXECUTORS.load(DeviceConfig().distributed_executor_backend)  # seconds, while the parent finds out what to load
    size = int.from_bytes(stdin.read(8), "little")
    if not size:  # the parent has left before it knew
        shutil.rmtree(folder, ignore_errors=True)
        return
    config = msgspec.msgpack.decode(stdin.read(size), type=EngineConfig)
    leave_with_parent(stdin, folder)
    with zmq.Context() as context:

        def outbox() -> "zmq.Socket[bytes]":
            return connected(context, zmq.PUSH, f"{folder}/from_engine")

        with connected(context, zmq.PULL, f"{folder}/to_engine") as inbox, outbox() as own_outbox:
            EngineProcess(config, inbox, own_outbox, outbox).run()


if __name__ == "__main__":
    main()
    sys.stderr.flush()
    os._exit(1)  # the interpreter's own teardown is slow with torch loaded and has nothing left to do
