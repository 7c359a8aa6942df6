"""What is written down when an engine is lost: the requests of the last minutes by their shapes and times, and what the
scheduler said. No text, no token ids: a dump may be shown to others.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from octavo.engine.output_processor import RequestState
from octavo.errors import ConfigError
from octavo.logging import get_logger
from octavo.messages import SchedulerStats
from octavo.outputs import FinishReason
from octavo.sampling_params import SamplingParams
from octavo.version import VERSION

logger = get_logger(__name__)

KEPT_S = 300.0
MAX_REQUESTS = 2000
"""Of those that have ended, the last ones."""

STATS_INTERVAL_S = 1.0


class SampleShape(msgspec.Struct):
    """One sample of a request."""

    num_tokens: int
    finish_reason: FinishReason | None


class RequestShape(msgspec.Struct):
    """One request. Times are seconds of the monotonic clock; 0 has not come."""

    request_id: str
    num_prompt_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    params: dict[str, Any]
    arrival_s: float
    scheduled_s: float
    first_token_s: float
    finished_s: float
    samples: list[SampleShape]


class StatsMoment(msgspec.Struct):
    """The scheduler's state at a time."""

    at_s: float
    stats: SchedulerStats


class CrashDump(msgspec.Struct):
    """The file.

    Attributes:
        now_s: the loss, by the clock of all other times.
        engine: facts about the loaded model.
    """

    version: str
    cause: str
    utc: str
    now_s: float
    engine: dict[str, Any]
    open: list[RequestShape]
    ended: list[RequestShape]
    stats: list[StatsMoment]


class CrashRecorder:
    """Remembers the last minutes, within bounds.

    Raises:
        ConfigError: files cannot be made in the folder.
    """

    def __init__(self, folder: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = Path(folder).expanduser()
        self._clock = clock
        self._ended: deque[RequestShape] = deque(maxlen=MAX_REQUESTS)
        self._stats: deque[StatsMoment] = deque(maxlen=int(KEPT_S / STATS_INTERVAL_S))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise ConfigError(f"--crash-dump-folder {folder} cannot be made: {err.strerror}") from None
        if not os.access(self._folder, os.W_OK | os.X_OK):
            raise ConfigError(f"--crash-dump-folder {folder} is not writable; choose another folder")

    def end(self, shape: RequestShape) -> None:
        """A request has ended."""
        self._ended.append(shape)

    def observe(self, stats: SchedulerStats) -> None:
        """Take note of the scheduler's state, once a second."""
        now_s = self._clock()
        if not self._stats or now_s - self._stats[-1].at_s >= STATS_INTERVAL_S:
            self._stats.append(StatsMoment(now_s, stats))

    def write(self, cause: str, engine: dict[str, Any], still_open: Iterable[RequestState]) -> None:
        """Write the file and say where it is; a disk that does not take it makes nothing worse."""
        now_s, utc = self._clock(), datetime.now(UTC)
        dump = CrashDump(
            version=VERSION,
            cause=cause,
            utc=utc.isoformat(timespec="seconds"),
            now_s=now_s,
            engine=engine,
            open=[shape_of(state) for state in still_open],
            ended=[shape for shape in self._ended if now_s - shape.arrival_s <= KEPT_S],
            stats=[moment for moment in self._stats if now_s - moment.at_s <= KEPT_S],
        )
        path = self._folder / f"octavo-crash-{utc:%Y%m%dT%H%M%S.%f}-{os.getpid()}.json"
        try:
            path.write_bytes(msgspec.json.format(msgspec.json.encode(dump), indent=1))
        except OSError as err:
            logger.warning("the crash dump %s cannot be written: %s", path, err.strerror)
        else:
            logger.warning("crash dump of %d open and %d ended requests: %s", len(dump.open), len(dump.ended), path)


def shape_of(state: RequestState) -> RequestShape:
    """All of a request that is not its content."""
    submission, metrics = state.submission, state.metrics
    return RequestShape(
        request_id=submission.request_id,
        num_prompt_tokens=len(submission.prompt_token_ids),
        num_cached_tokens=state.num_cached_tokens,
        num_preemptions=metrics.num_preemptions,
        params=shape_of_params(submission.params),
        arrival_s=metrics.arrival_time_s,
        scheduled_s=metrics.scheduled_time_s,
        first_token_s=metrics.first_token_time_s,
        finished_s=metrics.finished_time_s,
        samples=[SampleShape(len(sample.token_ids), sample.finish_reason) for sample in state.samples],
    )


def shape_of_params(params: SamplingParams) -> dict[str, Any]:
    """Parameters that are not the default: numbers as they are, of all else only how much of it there is."""
    plain = SamplingParams()
    changed = {name: getattr(params, name) for name in params.__struct_fields__}
    return {name: _shape(value) for name, value in changed.items() if value != getattr(plain, name)}


def _shape(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, msgspec.Struct):
        return {name: _shape(part) for name, part in msgspec.structs.asdict(value).items() if part is not None}
    return f"{len(value)} characters" if isinstance(value, str) else f"{len(value)} items"  # type: ignore[arg-type]
