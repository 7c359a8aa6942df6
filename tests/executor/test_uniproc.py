"""The executor that runs its worker in the calling thread."""

import pytest

from octavo.errors import ConfigError
from octavo.executor import uniproc
from octavo.executor.registry import EXECUTORS
from octavo.executor.uniproc import UniprocExecutor
from octavo.messages import ModelRunnerOutput, SchedulerOutput, TokenMasks
from tests.worker.worlds import make_config


class FakeWorker:
    """Notes what it is asked."""

    def __init__(self, config: object) -> None:
        self.calls: list[str] = []

    def execute(self, plan: SchedulerOutput) -> None:
        self.calls.append(f"execute {plan.step}")
        if plan.step == 13:
            raise RuntimeError("kernel failed")

    def sample(self, plan: SchedulerOutput, masks: TokenMasks | None = None) -> ModelRunnerOutput:
        self.calls.append(f"sample {plan.step}")
        return ModelRunnerOutput(step=plan.step)


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> UniprocExecutor:
    monkeypatch.setattr(uniproc, "Worker", FakeWorker)
    return UniprocExecutor(make_config())


def test_a_sample_is_ready_when_the_call_returns(executor: UniprocExecutor) -> None:
    plan = SchedulerOutput(step=4)
    executor.execute(plan)
    future = executor.sample(plan)
    assert future.done() and future.result().step == 4
    assert executor._worker.calls == ["execute 4", "sample 4"]


def test_what_a_worker_raises_comes_out_of_the_call(executor: UniprocExecutor) -> None:
    with pytest.raises(RuntimeError, match="kernel failed"):
        executor.execute(SchedulerOutput(step=13))


def test_executors_are_known_by_name() -> None:
    assert EXECUTORS.load("uni") is UniprocExecutor
    with pytest.raises(ConfigError, match="unknown executor 'ray'"):
        EXECUTORS.load("ray")
