"""Progress bars for the terminal. On anything but a terminal they print nothing."""

from collections.abc import Iterator
from contextlib import contextmanager

from octavo.messages import Progress


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Yield a callback `(stage, done, total)` that draws one bar per stage on stderr; total 0 is unknown."""
    from rich.console import Console  # noqa: PLC0415  only commands that draw pay for it
    from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn  # noqa: PLC0415
    from rich.progress import Progress as Bars  # noqa: PLC0415

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:

        def update(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=None)
            bars.update(tasks[stage], completed=done, total=total or None)

        yield update
