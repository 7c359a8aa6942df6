"""One worker, run in the calling thread."""

from concurrent.futures import Future

from octavo.config import EngineConfig, KVGroupSpec
from octavo.messages import ModelRunnerOutput, Progress, SchedulerOutput, TokenMasks
from octavo.worker.worker import Worker


class UniprocExecutor:
    """See `Executor`. Work is done when a call returns; what the worker raises comes out of the call."""

    def __init__(self, config: EngineConfig) -> None:
        self._worker = Worker(config)

    def load(self, progress: Progress) -> list[KVGroupSpec]:
        return self._worker.load(progress)

    def numerics(self) -> str:
        return self._worker.numerics()

    def free_bytes_for_kv(self) -> int:
        return self._worker.free_bytes_for_kv()

    def allocate_kv(self, num_blocks: tuple[int, ...]) -> None:
        self._worker.allocate_kv(num_blocks)

    def execute(self, plan: SchedulerOutput) -> None:
        self._worker.execute(plan)

    def sample(self, plan: SchedulerOutput, masks: TokenMasks | None = None) -> "Future[ModelRunnerOutput]":
        done: Future[ModelRunnerOutput] = Future()
        done.set_result(self._worker.sample(plan, masks))
        return done

    def probe(self) -> None:
        self._worker.probe()

    def close(self) -> None:
        self._worker.close()
