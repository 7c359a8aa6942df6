"""One device and the model on it: start-up, memory, steps. Knows platforms, loader and models; no requests."""

from collections.abc import Iterator

import torch

from octavo.config import EngineConfig, KVGroupSpec
from octavo.errors import ConfigError
from octavo.kernels.cpu import native
from octavo.loader.weights import StoredWeight, stored_weights
from octavo.logging import get_logger
from octavo.messages import LOADING_WEIGHTS, ModelRunnerOutput, Progress, SchedulerOutput, TokenMasks
from octavo.models.build import build_model, check_weights, read_weights
from octavo.ops.dispatch import use_providers
from octavo.platforms.registry import select_platform
from octavo.worker.model_runner import Model, ModelRunner

logger = get_logger(__name__)


class Worker:
    """Call `load`, then `free_bytes_for_kv`, then `allocate_kv`; then steps, each `execute` before its `sample`.

    Raises:
        ConfigError: the device is not there.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.platform = select_platform(config.device.device)
        self.kv_dtype: torch.dtype = getattr(torch, config.kv_dtype)
        threads = self.platform.set_threads(config.device.threads)
        if "cpu" in self.platform.providers and native.set_num_threads(threads):
            torch.set_num_threads(1)  # two pools that wait for work in the same step starve each other
        self._model: Model | None = None
        self._runner: ModelRunner | None = None

    def load(self, progress: Progress) -> list[KVGroupSpec]:
        """Read the weights. Returns the KV groups, in the order of every list per group.

        Raises:
            ModelError: files and configuration do not fit each other.
        """
        config, spec = self.config, self.config.spec
        logger.info("device: %s", self.platform.describe())
        dtype: torch.dtype = getattr(torch, config.dtype)
        use_providers(self.platform.providers)  # they say how weights are held
        stored = stored_weights(spec, dtype)
        outline = build_model(spec, dtype, torch.device("meta"), max_model_len=1)  # sizes that are wrong cost no memory
        check_weights(outline, ((weight.name, weight.shape) for weight in stored), spec.path)
        model = build_model(spec, dtype, torch.device(self.platform.device), config.max_model_len)
        read_weights(model, _reported(stored, progress), spec.path)
        self.platform.synchronize()
        # Now that the model has brought in all its ops, each gets its kernel.
        logger.debug("op providers: %s", use_providers(self.platform.providers))
        self._model = model
        return list(model.kv_groups)

    def numerics(self) -> str:
        """What computes, as far as it may change bits."""
        return native.numerics() if "cpu" in self.platform.providers else f"torch {torch.__version__}"

    def free_bytes_for_kv(self) -> int:
        """Bytes the KV pages may take by the platform's rule, now that the weights are loaded."""
        return self.platform.kv_bytes(self.config.cache.gpu_memory_utilization)

    def allocate_kv(self, num_blocks: tuple[int, ...]) -> None:
        """Allocate `num_blocks[g]` pages of each group g.

        Raises:
            ConfigError: they do not fit in the memory that is free.
        """
        assert self._model is not None
        cache = self.config.cache
        groups = self._model.kv_groups
        needed = sum(
            count * group.block_bytes(cache.block_size, self.config.kv_dtype)
            for count, group in zip(num_blocks, groups, strict=True)
        )
        free = self.platform.free_bytes()
        if needed > free:
            raise ConfigError(
                f"the KV pool of {needed} bytes does not fit: {free} bytes are free on {self.platform.name}; "
                "lower --kv-cache-memory-bytes, --num-gpu-blocks-override or --gpu-memory-utilization"
            )
        self._runner = ModelRunner(
            self._model, self.config, num_blocks, self.kv_dtype, torch.device(self.platform.device)
        )

    def execute(self, plan: SchedulerOutput) -> None:
        """Start the forward pass of a plan."""
        assert self._runner is not None
        self._runner.execute(plan)

    def sample(self, plan: SchedulerOutput, masks: TokenMasks | None = None) -> ModelRunnerOutput:
        """Finish the plan that was executed last; `masks` bind the rows they name."""
        assert self._runner is not None
        return self._runner.sample(plan, masks)

    def probe(self) -> None:
        """Compute a token that is nobody's."""
        assert self._runner is not None
        self._runner.probe()

    def close(self) -> None:
        """Release weights and pages. May be called twice."""
        self._model = self._runner = None


def _reported(stored: list[StoredWeight], progress: Progress) -> Iterator[StoredWeight]:
    """Report each one once it has been taken in."""
    progress(LOADING_WEIGHTS, 0, len(stored))
    for done, weight in enumerate(stored, start=1):
        yield weight
        progress(LOADING_WEIGHTS, done, len(stored))
