"""The engine's own process: takes requests from a socket, steps, sends news. Started by `client.ProcessClient` as
`python -m octavo.engine.core_process FOLDER`; knows nothing of HTTP or text.

The folder holds the two sockets. Standard input brings the configuration, perhaps long after the start, and then stays
open for as long as the parent lives: its end is the sign to go, so no orphan is left whatever kills the parent.
"""

import gc
import os
import shutil
import signal
import sys
import threading
import time
from select import select
from typing import BinaryIO

import msgspec
import zmq

from octavo.config import DeviceConfig, EngineConfig
from octavo.engine.core import EngineCore, make_core
from octavo.engine.protocol import (
    Abort,
    Failed,
    FromEngine,
    Loading,
    News,
    Ready,
    Reply,
    ResetPrefixCache,
    Submit,
    ToEngine,
    decode_to_engine,
    encode,
    refused,
)
from octavo.errors import ClientError, ConfigError, EngineDeadError, ModelError
from octavo.executor.registry import EXECUTORS
from octavo.logging import get_logger
from octavo.messages import EngineOutputs
from octavo.registry import load_plugins

logger = get_logger(__name__)

PROGRESS_INTERVAL_S = 0.1
"""Loading messages are sent no more often than this, but always at the end of a stage."""

LINGER_MS = 1000
"""How long the last messages may take to leave when the process ends."""


class EngineProcess:
    """Serves one client over a pair of sockets."""

    def __init__(self, config: EngineConfig, inbox: "zmq.Socket[bytes]", outbox: "zmq.Socket[bytes]") -> None:
        self._config = config
        self._inbox = inbox
        self._outbox = outbox
        self._last_progress_s = 0.0

    def run(self) -> None:
        """Load and serve until something goes wrong, which the client is told before this returns."""
        try:
            load_plugins()
            core = make_core(self._config, self._on_progress)
            gc.freeze()  # what start-up made stays for good; no collection looks at it again
            gc.enable()
            self._send(Ready(core.facts))
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
                self._send(News(core.step()))
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
            self._handle(core, decode_to_engine(data))
            flags = zmq.NOBLOCK

    def _handle(self, core: EngineCore, message: ToEngine) -> None:
        match message:
            case Submit(requests):
                try:
                    core.submit(requests)
                except ClientError as err:
                    self._send(refused(requests[0].request_id, err))
            case Abort(request_ids):
                # Without work no step follows, and the gauges have to return to idle.
                self._send(News(EngineOutputs(outputs=core.abort(request_ids), stats=core.stats())))
            case ResetPrefixCache(call_id):
                self._send(Reply(call_id, core.reset_prefix_cache()))

    def _on_progress(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if done == total or now - self._last_progress_s >= PROGRESS_INTERVAL_S:
            self._last_progress_s = now
            self._send(Loading(stage, done, total))

    def _send(self, message: FromEngine) -> None:
        self._outbox.send(encode(message))


def leave_with_parent(stdin: BinaryIO, folder: str) -> None:
    """Start a thread that ends this process, whatever it is doing, once the parent is gone."""
    parent = os.getppid()

    def watch() -> None:
        # The pipe tells at once; the parent's id also when some other process has inherited the pipe's other end.
        while os.getppid() == parent:
            readable, _, _ = select([stdin], [], [], 2.0)
            if readable and not stdin.read(1):
                break
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)

    threading.Thread(target=watch, name="leave-with-parent", daemon=True).start()


def main() -> None:
    """Read the configuration, connect to the client's sockets and serve. Returns when the engine has failed."""
    # The parent decides when to end: a signal to the whole process group must not cut its running requests off.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    folder, stdin = sys.argv[1], sys.stdin.buffer
    gc.disable()  # a tenth of the time to import torch
    EXECUTORS.load(DeviceConfig().distributed_executor_backend)  # seconds, while the parent finds out what to load
    size = int.from_bytes(stdin.read(8), "little")
    if not size:  # the parent has left before it knew
        shutil.rmtree(folder, ignore_errors=True)
        return
    config = msgspec.msgpack.decode(stdin.read(size), type=EngineConfig)
    leave_with_parent(stdin, folder)
    with zmq.Context() as context, context.socket(zmq.PULL) as inbox, context.socket(zmq.PUSH) as outbox:
        for socket, name in ((inbox, "to_engine"), (outbox, "from_engine")):
            socket.set_hwm(0)
            socket.setsockopt(zmq.LINGER, LINGER_MS)
            socket.connect(f"ipc://{folder}/{name}")
        EngineProcess(config, inbox, outbox).run()


if __name__ == "__main__":
    main()
    sys.stderr.flush()
    os._exit(1)  # the interpreter's own teardown is slow with torch loaded and has nothing left to do
