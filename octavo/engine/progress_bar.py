"""The progress bar of `LLM.generate`: prompts done and tokens per second, on stderr."""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from octavo.engine.output_processor import RequestState

if TYPE_CHECKING:
    from rich.progress import Progress


class GenerationBar:
    """Shown while in the `with` block, if `enabled`."""

    def __init__(self, num_prompts: int, *, enabled: bool) -> None:
        self._num_prompts = num_prompts
        self._enabled = enabled
        self._bar: Progress | None = None
        self._start_s = 0.0
        self._drawn_s = 0.0

    def __enter__(self) -> "GenerationBar":
        if self._enabled:
            from rich.console import Console  # noqa: PLC0415  rich is slow to import and often not wanted
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

            columns = (
                TextColumn("prompts"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.description}"),
            )
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._task = self._bar.add_task("", total=self._num_prompts)
            self._bar.start()
            self._start_s = time.monotonic()
        return self

    def update(self, states: Sequence[RequestState]) -> None:
        """Show how far the requests are; looks at them ten times a second at most."""
        now = time.monotonic()
        if self._bar is None or (now - self._drawn_s < 0.1 and not all(state.finished for state in states)):
            return
        self._drawn_s = now
        elapsed_s = max(now - self._start_s, 1e-9)
        prompt_tokens = sum(len(s.submission.prompt_token_ids) for s in states if s.metrics.first_token_time_s)
        output_tokens = sum(len(sample.token_ids) for state in states for sample in state.samples)
        rates = f"in {prompt_tokens / elapsed_s:.1f}, out {output_tokens / elapsed_s:.1f} tokens/s"
        self._bar.update(self._task, completed=sum(state.finished for state in states), description=rates)

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
