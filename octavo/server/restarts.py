"""How often a lost engine is started again, and how soon. Counts and times only; starts nothing."""

from collections import deque

DELAYS_S = (0.0, 1.0, 2.0, 4.0, 8.0)
"""Before each start of those that are made within `WINDOW_S`; after the last the server gives up."""

WINDOW_S = 600.0


class Restarts:
    """The starts of the last ten minutes."""

    def __init__(self) -> None:
        self._starts_s: deque[float] = deque()

    def next_delay_s(self, now_s: float) -> float | None:
        """Note a start and return how long to wait before it; None if there were too many."""
        while self._starts_s and now_s - self._starts_s[0] > WINDOW_S:
            self._starts_s.popleft()
        if len(self._starts_s) == len(DELAYS_S):
            return None
        self._starts_s.append(now_s)
        return DELAYS_S[len(self._starts_s) - 1]
