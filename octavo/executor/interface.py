"""How the engine has plans executed, wherever the workers are. Knows no models and no devices."""

from concurrent.futures import Future
from typing import Protocol

from octavo.config import EngineConfig, KVGroupSpec
from octavo.messages import ModelRunnerOutput, Progress, SchedulerOutput, TokenMasks


class Executor(Protocol):
    """Runs workers. Plans are executed in order; the result of one comes from `sample` of the same plan."""

    def __init__(self, config: EngineConfig) -> None: ...

    def load(self, progress: Progress) -> list[KVGroupSpec]:
        """Load the model. Returns its KV groups.

        Raises:
            ConfigError, ModelError: it cannot be loaded here.
        """
        ...

    def numerics(self) -> str:
        """What computes, as far as it may change bits: the same on all workers."""
        ...

    def free_bytes_for_kv(self) -> int:
        """Bytes that KV pages may take, by the platform's rule; call after `load`."""
        ...

    def allocate_kv(self, num_blocks: tuple[int, ...]) -> None:
        """Allocate pages, a count per KV group.

        Raises:
            ConfigError: they do not fit.
        """
        ...

    def execute(self, plan: SchedulerOutput) -> None:
        """Start a plan's forward pass."""
        ...

    def sample(self, plan: SchedulerOutput, masks: TokenMasks | None = None) -> "Future[ModelRunnerOutput]":
        """Finish the plan that was executed last; `masks` bind the rows they name."""
        ...

    def probe(self) -> None:
        """Compute a token that is nobody's. Raises what the workers raise if even that fails."""
        ...

    def close(self) -> None:
        """Release everything. May be called twice."""
        ...
