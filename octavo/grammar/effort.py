"""What following a grammar costs the engine's thread, which all requests wait for. Knows no matcher.

llguidance bounds the items of a step, not the work for one: in an ambiguous grammar that grows with the square of the
text, within every limit, to a second for a token.
"""

import time

STEP_SECONDS = 0.01
"""What a grammar may take of each step for as long as it likes."""

ROW_SECONDS = 0.002
"""The same for each row, if those are more: what twenty rows take of a usual grammar."""

MOST_DEBT_SECONDS = 0.5
"""What a grammar may take beyond that, in all."""

NEW_CREDIT_SECONDS = 0.05
"""What a new sequence may take at least, whatever others with its grammar did."""

WAY_OUT = "simplify it: let fewer rules and repetitions fit the same text, and bound them"


class Effort:
    """Of all sequences with one grammar together, in processor time, which other processes do not change.

    Use as a context manager around work.
    """

    def __init__(self) -> None:
        self._debt = 0.0
        self._began = 0.0

    @property
    def is_high(self) -> bool:
        """Whether steps have taken longer than they may, lately."""
        return self._debt > 0

    @property
    def error(self) -> str | None:
        """Why no sequence may go on with the grammar, if so."""
        if self._debt <= MOST_DEBT_SECONDS:
            return None
        limit, debt = f"{1000 * STEP_SECONDS:.0f} ms a token", f"{1000 * MOST_DEBT_SECONDS:.0f} ms more"
        return f"the grammar takes too long to follow: the limit is {limit}, and it has taken {debt}; {WAY_OUT}"

    def welcome(self) -> None:
        """A sequence begins."""
        self._debt = min(self._debt, MOST_DEBT_SECONDS - NEW_CREDIT_SECONDS)

    def begin_step(self, num_rows: int) -> None:
        """A step begins in which so many sequences need a mask."""
        self._debt = max(0.0, self._debt - max(STEP_SECONDS, num_rows * ROW_SECONDS))

    def __enter__(self) -> None:
        self._began = time.thread_time()

    def __exit__(self, *exc_info: object) -> None:
        self._debt += time.thread_time() - self._began
