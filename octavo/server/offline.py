"""A file of requests answered by an engine of its own: the routes of the server without a server."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from octavo.config import EngineConfig, ServerConfig
from octavo.engine.async_llm import AsyncLLM
from octavo.errors import ClientError, ConfigError
from octavo.messages import Progress
from octavo.server.app import inner_app
from octavo.server.lines import (
    URLS,
    Answer,
    AnswerFile,
    Line,
    LineError,
    read_lines,
    run_lines,
    write_answer,
)
from octavo.server.serving import Lifecycle, make_serving

WATCH_INTERVAL_S = 0.5
STAGE = "answering"


class Counts(NamedTuple):
    """Lines of the file: how many there are, had an answer already, got one now, and got an error now."""

    total: int
    resumed: int
    completed: int
    failed: int


def check_input(path: Path) -> list[Line]:
    """The lines of a file.

    Raises:
        ClientError: some cannot be run; names the first.
    """
    try:
        found = list(read_lines(path, URLS))
    except OSError as err:
        raise ClientError(f"{path} cannot be read: {err.strerror}") from None
    wrong = [line for line in found if isinstance(line, LineError)]
    if wrong:
        more = f" (and {len(wrong) - 1} more lines)" if len(wrong) > 1 else ""
        raise ClientError(f"{path}, line {wrong[0].line}: {wrong[0]}{more}")
    return [line for line in found if isinstance(line, Line)]


async def run_batch(config: EngineConfig, source: Path, lines: list[Line], target: Path, progress: Progress) -> Counts:
    """Answer those `lines` of `source` that have no answer in `target` yet.

    Raises:
        ConfigError: `target` cannot be written. ModelError, EngineDeadError: of the engine.
    """
    try:
        answers = AnswerFile(target)
    except OSError as err:
        raise ConfigError(f"{target} cannot be written: {err.strerror}") from None
    failed = 0

    def keep(line: Line, answer: Answer) -> None:
        nonlocal failed
        failed += answer.status != 200
        answers.append(line.custom_id, write_answer(line.custom_id, answer))
        progress(STAGE, len(answers.answered), len(lines))

    left = [line for line in lines if line.custom_id not in answers.answered]
    try:
        if left:
            engine = AsyncLLM(config, log_stats=False)
            try:
                await engine.start(progress)
                await _run(engine, source, left, keep)
            finally:
                engine.close()
    finally:
        answers.close()
    return Counts(len(lines), len(lines) - len(left), len(left) - failed, failed)


async def _run(engine: AsyncLLM, source: Path, lines: list[Line], keep: Callable[[Line, Answer], None]) -> None:
    """All lines, as many at a time as keep every seat taken; ends early if the engine does."""
    server = ServerConfig()
    lifecycle = Lifecycle(server)
    lifecycle.ready(make_serving(engine, server))
    concurrency = min(len(lines), 2 * engine.config.scheduler.max_num_seqs)
    running = asyncio.create_task(run_lines(inner_app(lifecycle), source, lines, concurrency, keep))
    try:
        while not running.done():
            await asyncio.wait((running,), timeout=WATCH_INTERVAL_S)
            engine.check_health()
        running.result()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
