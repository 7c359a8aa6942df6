"""Batches: lines of an uploaded file, run by and by beside interactive requests, whose way they never stand in.

At most `concurrency` lines are open at once, and each ranks behind every other request (`BACKGROUND_PRIORITY`). What is
known of a batch is in the database of the file store, what has been answered in its two output files: a server that
starts again goes on with the lines that have no answer. The oldest few batches run side by side and share the lines.
"""

import asyncio
import time
from pathlib import Path
from typing import Literal

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.errors import ClientError
from octavo.logging import get_logger
from octavo.server.collection import Collection, Page
from octavo.server.files import RETENTION_S, FileStore
from octavo.server.lines import (
    Answer,
    AnswerFile,
    Line,
    LineError,
    read_lines,
    run_lines,
    write_answer,
    write_failure,
)
from octavo.server.serving import Lifecycle, Status

logger = get_logger(__name__)

MAX_BATCHES = 10_000
MAX_RUNNING = 8
"""Batches that run side by side; the others wait for one of them to end."""

MAX_ERRORS = 100
WINDOW_S = 24 * 3600

BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
OPEN = ("validating", "in_progress", "finalizing", "cancelling")


class RequestCounts(msgspec.Struct):
    """Lines of a batch; those answered with an error, or not at all in time, have failed."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchError(msgspec.Struct):
    """What is wrong with one line of the input."""

    code: str
    message: str
    param: str | None
    line: int | None


class BatchErrors(msgspec.Struct):
    """Why a batch was not begun."""

    data: list[BatchError]
    object: Literal["list"] = "list"


class OutputExpiry(msgspec.Struct):
    """How long the output files are kept."""

    anchor: Literal["created_at"]
    seconds: int


class Batch(msgspec.Struct, kw_only=True):
    """A batch, in OpenAI's form."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None = None
    errors: BatchErrors | None = None
    input_file_id: str
    completion_window: str
    status: BatchStatus = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = msgspec.field(default_factory=RequestCounts)
    output_expires_after: OutputExpiry | None = None
    metadata: dict[str, str] | None = None


class Batches:
    """Owns all batches and the tasks that run them, which live while the server is ready.

    Args:
        app: has the routes that lines name.
        concurrency: lines that may be open at once; None is a quarter of the engine's seats.
    """

    def __init__(self, files: FileStore, app: ASGIApp, lifecycle: Lifecycle, concurrency: int | None) -> None:
        self._files = files
        self._app = app
        self._lifecycle = lifecycle
        self._concurrency = concurrency
        self._open: dict[str, _OpenBatch] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._seats: asyncio.Semaphore | None = None
        self.objects: Collection[Batch] = Collection(files.database, "batch", "batch", Batch)
        for owner, batch in self.objects.everyones():
            if batch.status in OPEN:
                self._open[batch.id] = _OpenBatch(batch, owner)
        lifecycle.subscribe(self._on_status)

    def create(self, batch: Batch, owner: str) -> None:
        """Queue a batch of an uploaded file."""
        if self.objects.count() - len(self.objects.take_expired()) >= MAX_BATCHES:
            raise ClientError(f"{MAX_BATCHES} batches are kept, which is the limit; try again when some have expired")
        self._files.objects.get(batch.input_file_id, owner, param="input_file_id")
        self._open[batch.id] = _OpenBatch(batch, owner)
        self._save(batch, owner)
        self._wake()

    def get(self, batch_id: str, owner: str) -> Batch:
        """A batch, as it stands now.

        Raises:
            NotFoundError: there is none.
        """
        return self._now(self.objects.get(batch_id, owner))

    def page(self, owner: str, limit: int, after: str | None) -> Page[Batch]:
        """The newest first."""
        items, has_more = self.objects.page(owner, limit=limit, after=after)
        return Page([self._now(batch) for batch in items], has_more)

    def cancel(self, batch_id: str, owner: str) -> Batch:
        """Stop a batch; what is answered stays. One that has ended stays as it is."""
        batch = self.get(batch_id, owner)
        current = self._open.get(batch_id)
        if current is not None:
            current.cancel()
            self._save(batch, owner)
            self._wake()
        return batch

    def user_of(self, file_id: str) -> str | None:
        """The open batch that still reads a file."""
        return next((each.batch.id for each in self._open.values() if each.batch.input_file_id == file_id), None)

    async def close(self) -> None:
        """Stop running; open batches go on with the next server of the folder."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _now(self, batch: Batch) -> Batch:
        """An open batch counts in memory."""
        current = self._open.get(batch.id)
        return batch if current is None else current.batch

    def _on_status(self, status: Status) -> None:
        if status is Status.READY:
            self._wake()
        else:
            for task in self._running.values():
                task.cancel()

    def _wake(self) -> None:
        """Run the oldest batches; those that are to end need no turn."""
        if self._lifecycle.status is not Status.READY:
            return
        waiting = [each for each in self._open.values() if each.batch.id not in self._running]
        for each in sorted(waiting, key=lambda each: not each.cancelled.is_set()):
            if each.cancelled.is_set() or len(self._running) < MAX_RUNNING:
                run = self._run(each)
                self._running[each.batch.id] = asyncio.get_running_loop().create_task(run, name=each.batch.id)

    async def _run(self, current: "_OpenBatch") -> None:
        try:
            await self._run_batch(current)
        except Exception:  # a bug, or a full disk: this batch is over, the others go on
            logger.exception("batch %s failed", current.batch.id)
            current.fail([LineError(0, "the server failed to run this batch; its log has the cause")])
            self._save(current.batch, current.owner)
        finally:
            del self._running[current.batch.id]
        del self._open[current.batch.id]
        self._wake()

    async def _run_line(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The app, behind the seats that all batches share; they take turns."""
        if self._seats is None:
            self._seats = asyncio.Semaphore(self._num_seats())
        async with self._seats:
            await self._app(scope, receive, send)

    async def _run_batch(self, current: "_OpenBatch") -> None:
        batch = current.batch
        path = self._files.path(batch.input_file_id)
        lines, wrong = await asyncio.to_thread(_check_file, path, batch.endpoint)
        if wrong:
            current.fail(wrong)
            return self._save(batch, current.owner)
        outputs = _Outputs(self._files, batch, len(lines))
        try:
            if batch.status == "validating":
                batch.status, batch.in_progress_at = "in_progress", int(time.time())
                self._save(batch, current.owner)
            await self._run_lines(current, path, lines, outputs)
            self._end(current, lines, outputs)
        finally:
            outputs.close()

    async def _run_lines(self, current: "_OpenBatch", path: Path, lines: list[Line], outputs: "_Outputs") -> None:
        """Answer lines until all are, or the batch is cancelled or out of time."""

        def keep(line: Line, answer: Answer) -> None:
            outputs.add(line.custom_id, write_answer(line.custom_id, answer), good=answer.status == 200)

        left = outputs.unanswered(lines)
        running = asyncio.create_task(
            run_lines(self._run_line, path, left, min(self._num_seats(), len(left)), keep, current.owner)
        )
        stopped = asyncio.create_task(current.cancelled.wait())
        try:
            timeout_s = max(0.0, current.batch.expires_at - time.time())
            await asyncio.wait((running, stopped), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        finally:
            for task in (running, stopped):
                task.cancel()
            await asyncio.gather(running, stopped, return_exceptions=True)

    def _end(self, current: "_OpenBatch", lines: list[Line], outputs: "_Outputs") -> None:
        batch, now = current.batch, int(time.time())
        batch.finalizing_at = now
        left = outputs.unanswered(lines)
        if not left:
            batch.status, batch.completed_at = "completed", now
        elif current.cancelled.is_set():
            batch.status, batch.cancelled_at = "cancelled", now
        else:
            for line in left:
                message = f"the line was not reached within {batch.completion_window}"
                outputs.add(line.custom_id, write_failure(line.custom_id, "batch_expired", message), good=False)
            batch.status, batch.expired_at = "expired", now
        outputs.register(current.owner)
        self._save(batch, current.owner)

    def _num_seats(self) -> int:
        if self._concurrency is not None:
            return self._concurrency
        assert self._lifecycle.loaded is not None  # lines run on a server that was ready
        return max(1, self._lifecycle.loaded.config.scheduler.max_num_seqs // 4)

    def _save(self, batch: Batch, owner: str) -> None:
        self.objects.put(batch, owner, batch.created_at + RETENTION_S)


class _OpenBatch:
    """A batch that has not ended."""

    def __init__(self, batch: Batch, owner: str) -> None:
        self.batch = batch
        self.owner = owner
        self.cancelled = asyncio.Event()
        if batch.status == "cancelling":
            self.cancelled.set()

    def cancel(self) -> None:
        """Begin no more lines and end those that run."""
        if not self.cancelled.is_set():
            self.batch.status, self.batch.cancelling_at = "cancelling", int(time.time())
            self.cancelled.set()

    def fail(self, wrong: list[LineError]) -> None:
        """The input cannot be run."""
        errors = [BatchError("invalid_line", str(err), err.param, err.line or None) for err in wrong]
        self.batch.errors = BatchErrors(errors)
        self.batch.status, self.batch.failed_at = "failed", int(time.time())


class _Outputs:
    """The two files a batch writes. Their names follow from its id, so that they are found again."""

    def __init__(self, files: FileStore, batch: Batch, total: int) -> None:
        self._files = files
        self._batch = batch
        self._ids = {True: f"file-{batch.id}-output", False: f"file-{batch.id}-error"}
        self._answers = {good: AnswerFile(files.path(file_id)) for good, file_id in self._ids.items()}
        batch.request_counts.total = total
        self._count()

    def unanswered(self, lines: list[Line]) -> list[Line]:
        """Those that have no answer yet."""
        good, bad = self._answers[True].answered, self._answers[False].answered
        return [line for line in lines if line.custom_id not in good and line.custom_id not in bad]

    def add(self, custom_id: str, line: bytes, *, good: bool) -> None:
        """Keep the answer to a line."""
        self._answers[good].append(custom_id, line)
        self._count()

    def register(self, owner: str) -> None:
        """Let the client have the files that hold something."""
        expiry = self._batch.output_expires_after
        for good, kind in ((True, "output"), (False, "error")):
            if self._answers[good].answered:
                file_id = self._ids[good]
                lifetime_s = RETENTION_S if expiry is None else expiry.seconds
                self._files.register(file_id, f"{self._batch.id}_{kind}.jsonl", "batch_output", owner, lifetime_s)
                setattr(self._batch, f"{kind}_file_id", file_id)
            else:
                self._files.path(self._ids[good]).unlink(missing_ok=True)

    def close(self) -> None:
        """No more answers."""
        for answers in self._answers.values():
            answers.close()

    def _count(self) -> None:
        counts = self._batch.request_counts
        counts.completed, counts.failed = (len(self._answers[good].answered) for good in (True, False))


def _check_file(path: Path, url: str) -> tuple[list[Line], list[LineError]]:
    """The lines of an input file, and what is wrong with it."""
    if not path.exists():
        return [], [LineError(0, "the input file is gone; upload it again")]
    lines: list[Line] = []
    wrong: list[LineError] = []
    for found in read_lines(path, (url,)):
        if isinstance(found, Line):
            lines.append(found)
        elif len(wrong) < MAX_ERRORS:
            wrong.append(found)
    return lines, wrong if lines or wrong else [LineError(0, "the file has no lines")]
