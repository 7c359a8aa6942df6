"""The engine process's sign of life while a step runs: a thread that says, once a second, how much CPU time the steps'
thread has used. Whoever hears nothing knows that the process is stopped; see `watchdog.py`.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType

import zmq

from octavo.engine.protocol import Beat, encode

INTERVAL_S = 1.0


class Heartbeat:
    """Beats while the block runs, for the thread that enters it.

    Args:
        connect: makes the thread's own socket to the client; called in it.
    """

    def __init__(self, connect: "Callable[[], zmq.Socket[bytes]]") -> None:
        self._connect = connect
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> None:
        self._clock_id = time.pthread_getcpuclockid(threading.get_ident())
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        try:
            with self._connect() as socket:
                while not self._stop.wait(INTERVAL_S):
                    socket.send(encode(Beat(time.clock_gettime(self._clock_id))))
        except zmq.ContextTerminated:  # the process ends
            pass
