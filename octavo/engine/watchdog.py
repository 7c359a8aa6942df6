"""Whether an engine process lives and its steps make progress, judged from what it says. Knows no sockets and no clock.

Three ways to be lost, beside the process's end:

silent     no message at all, heartbeats included: the process is stopped, or frozen with its machine
asleep     requests are open, no step ends, and the thread that computes steps uses no CPU: it waits for ever
endless    requests are open and no step ends for so long that it cannot be a long one

A long prefill is none of them: heartbeats go on, and its thread computes. Without open requests only silence counts.
"""

SILENCE_S = 7.0
"""Heartbeats come every second; a process that is merely starved of CPU still gets one out in this time."""

ASLEEP_S = 7.0
"""A step waits for a disk or a lock for much less."""

WORKING_CPU_S = 0.01
"""A thread that has used this much CPU since it was last seen working works."""

MAX_TICK_S = 1.0
"""An observer that was itself stopped for longer has missed what was said, and counts no more than this of it."""


class Watchdog:
    """Call `heard`, `looped`, `stepped` and `worked` with the news, and `tick` a few times a second.

    Args:
        step_timeout_s: the limit for "endless".
    """

    def __init__(self, step_timeout_s: float) -> None:
        self._step_timeout_s = step_timeout_s
        self._silent_s = self._asleep_s = self._without_step_s = 0.0
        self._cpu_s = 0.0

    def heard(self) -> None:
        """The process said something."""
        self._silent_s = 0.0

    def stepped(self) -> None:
        """A step has ended, or the first request is open: from here on one should."""
        self._asleep_s = self._without_step_s = 0.0

    def looped(self) -> None:
        """The steps' thread has come round, with or without a step: it may be waiting for a grammar."""
        self._asleep_s = 0.0

    def worked(self, cpu_s: float) -> None:
        """A heartbeat came, with the CPU time that the steps' thread has used since its start."""
        if cpu_s - self._cpu_s >= WORKING_CPU_S:
            self._cpu_s, self._asleep_s = cpu_s, 0.0

    def tick(self, elapsed_s: float, num_open: int) -> str | None:
        """Let time pass. Returns why the engine is lost, or None."""
        elapsed_s = min(elapsed_s, MAX_TICK_S)
        self._silent_s += elapsed_s
        if num_open:
            self._asleep_s += elapsed_s
            self._without_step_s += elapsed_s
        else:
            self.stepped()
        if self._silent_s > SILENCE_S:
            return f"the engine process has said nothing for {self._silent_s:.0f} s: it is stopped or frozen"
        if self._without_step_s > self._step_timeout_s:
            return (
                f"no step has ended for {self._without_step_s:.0f} s while {num_open} requests are open; "
                f"the limit is {self._step_timeout_s:g} s (--watchdog-timeout)"
            )
        if self._asleep_s > ASLEEP_S:
            return f"a step hangs: for {self._asleep_s:.0f} s it has used no CPU; {num_open} requests are open"
        return None
