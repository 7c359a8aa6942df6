"""Start a runner, give it the job, read what it says. Knows processes and the protocol; no engine, no ratios."""

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from octavo.bench.peers.runner import RequestTimes
from octavo.bench.timing import summarize
from octavo.errors import OctavoError

LAST_WORDS = 12
"""Lines of a failed runner's standard error that are shown."""

EXIT_TIMEOUT_S = 20.0


class PeerError(OctavoError):
    """A runner ended, or took too long, before it had said everything."""


@dataclass(frozen=True)
class Peer:
    """An engine to run: the interpreter that has it, the script that drives it, the model as it reads it."""

    name: str
    interpreter: str
    script: Path
    model: str
    env: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)


class Run(NamedTuple):
    """One run of one peer.

    Attributes:
        start_s: from starting the interpreter until the model is loaded and could answer.
        peak_bytes: memory resident at the peak, added up over the processes of the peer.
        passes: figures as `summarize` gives them, with "users", one per entry of the job.
    """

    version: str
    start_s: float
    peak_bytes: int
    passes: list[dict[str, Any]]


def run_peer(peer: Peer, job: dict[str, Any], timeout_s: float) -> Run:
    """Run the job on the peer in a process of its own, which is gone afterwards.

    Raises:
        PeerError: with the last lines of what it wrote to standard error.
    """
    with tempfile.TemporaryFile() as errors:
        start_s = time.perf_counter()
        process = _start(peer, errors)
        watchdog = threading.Timer(timeout_s, _kill, (process,))
        watchdog.start()
        try:
            assert process.stdin is not None and process.stdout is not None
            _send(process.stdin, {**job, "model": peer.model, "peer_options": peer.options})
            version = _next_message(process.stdout)["version"]
            ready_s = time.perf_counter() - start_s
            passes = [_figures(_next_message(process.stdout)) for _ in job["users"]]
            return Run(version, ready_s, _peak_bytes(process.pid), passes)
        except (_Ended, OSError) as err:
            process.wait()
            raise PeerError(f"{peer.name} ended early ({process.returncode}):\n{_last_words(errors)}") from err
        finally:
            watchdog.cancel()
            _stop(process)


class _Ended(Exception):
    """The runner's standard output has ended."""


def _start(peer: Peer, errors: IO[bytes]) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(
            [peer.interpreter, str(peer.script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=os.environ | peer.env,
            start_new_session=True,  # what it starts in turn is found, and ended, by the session
        )
    except OSError as err:
        raise PeerError(f"{peer.name}: {peer.interpreter} cannot be started: {err.strerror}") from None


def _send(pipe: IO[bytes], job: dict[str, Any]) -> None:
    pipe.write(json.dumps(job).encode() + b"\n")
    pipe.flush()


def _next_message(pipe: IO[bytes]) -> dict[str, Any]:
    line = pipe.readline()
    if not line:
        raise _Ended
    message: dict[str, Any] = json.loads(line)
    return message


def _figures(message: dict[str, Any]) -> dict[str, Any]:
    times = msgspec.convert(message["times"], list[RequestTimes])
    return {"users": message["users"], **summarize(times, message["elapsed_s"])}


def _peak_bytes(session: int) -> int:
    return sum(_peak_of(int(folder.name)) for folder in Path("/proc").glob("[0-9]*") if _session(folder) == session)


def _session(folder: Path) -> int | None:
    with suppress(OSError):
        return os.getsid(int(folder.name))
    return None


def _peak_of(pid: int) -> int:
    """The `VmHWM` line of a process, KiB in /proc; 0 when it is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _stop(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None and process.stdout is not None
    with suppress(OSError):
        process.stdin.close()  # the runner leaves when this ends
    with suppress(subprocess.TimeoutExpired):
        process.wait(EXIT_TIMEOUT_S)
    _kill(process)
    process.wait()
    process.stdout.close()


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _last_words(errors: IO[bytes]) -> str:
    errors.seek(0)
    return "\n".join(errors.read().decode(errors="replace").splitlines()[-LAST_WORDS:])
