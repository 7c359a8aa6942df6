from octavo.engine.watchdog import ASLEEP_S, SILENCE_S, Watchdog


class World:
    """An engine that says what a test wants, and the watchdog that listens.

    Attributes:
        beats: whether it sends heartbeats.
        cpu_share: of a core, by the thread of its steps.
    """

    def __init__(self, step_timeout_s: float = 300.0, *, beats: bool = True, cpu_share: float = 0.0) -> None:
        self.watchdog = Watchdog(step_timeout_s)
        self._beats = beats
        self._cpu_share = cpu_share
        self._cpu_s = 0.0

    def run(self, seconds: float, num_open: int) -> str | None:
        """Let time pass in quarter seconds. Returns the first cause."""
        for tick in range(int(seconds * 4)):
            if self._beats and tick % 4 == 0:
                self._cpu_s += self._cpu_share
                self.watchdog.heard()
                self.watchdog.worked(self._cpu_s)
            cause = self.watchdog.tick(0.25, num_open)
            if cause is not None:
                return cause
        return None


def test_silence_is_an_end_with_and_without_requests():
    for num_open in (0, 3):
        world = World(beats=False)
        assert world.run(SILENCE_S, num_open) is None
        assert "has said nothing for 7 s" in world.run(1, num_open)


def test_an_idle_engine_that_beats_lives_for_ever():
    assert World(10).run(1000, num_open=0) is None


def test_a_long_prefill_lives_as_long_as_it_computes_and_is_not_endless():
    world = World(300, cpu_share=0.05)
    assert world.run(300, num_open=1) is None
    assert "--watchdog-timeout" in world.run(1, num_open=1)


def test_a_step_that_uses_no_cpu_hangs():
    world = World()
    assert world.run(ASLEEP_S, num_open=2) is None
    assert world.run(1, num_open=2) == "a step hangs: for 7 s it has used no CPU; 2 requests are open"


def test_steps_that_end_start_the_time_again():
    world = World(20)
    for _ in range(20):
        world.watchdog.stepped()
        assert world.run(ASLEEP_S - 1, num_open=1) is None


def test_a_thread_that_comes_round_without_a_step_is_not_asleep():
    world = World(60)
    for _ in range(8):
        world.watchdog.looped()
        assert world.run(ASLEEP_S - 1, num_open=1) is None


def test_time_that_the_observer_was_stopped_for_does_not_count():
    assert Watchdog(300).tick(3600.0, 5) is None
