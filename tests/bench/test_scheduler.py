"""The step loop's benchmark runs what it says it runs."""

import pytest

from octavo.bench import scheduler
from octavo.bench.scheduler import PHASES, run_scheduler_bench


def test_every_phase_has_a_time_and_they_add_up():
    figures = run_scheduler_bench(num_seqs=3, num_steps=4)
    assert (figures["num_seqs"], figures["steps"]) == (3, 4)
    for load in ("decode_us", "mixed_us"):
        times = figures[load]
        assert all(times[phase] > 0 for phase in PHASES)
        assert times["total"] == pytest.approx(sum(times[phase] for phase in PHASES))


@pytest.mark.parametrize("mixed", [False, True])
def test_all_seats_are_taken_in_every_step_and_only_the_mixed_load_has_prompts(mixed, monkeypatch):
    loop, plans = scheduler._Loop(4, 150, mixed=mixed), []
    schedule = loop._scheduler.schedule
    monkeypatch.setattr(loop._scheduler, "schedule", lambda: plans.append(schedule()) or plans[-1])
    loop.run()
    plans = plans[scheduler.WARM_UP_STEPS :]
    assert {len(plan.rows) for plan in plans} == {4}
    assert any(plan.new_rows for plan in plans) is mixed
