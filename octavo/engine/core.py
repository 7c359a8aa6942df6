"""The engine's inner loop: one step schedules, executes, samples, updates and emits. Knows sequences of token ids; no
text, no tensors, no sockets. One thread drives it.
"""

import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from typing import NamedTuple

from octavo.config import EngineConfig
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.scheduler import Scheduler
from octavo.engine.kv_blocks import fit_max_model_len, with_kv_blocks
from octavo.engine.protocol import EngineFacts
from octavo.errors import EngineDeadError
from octavo.executor.interface import Executor
from octavo.executor.registry import EXECUTORS
from octavo.grammar.compiler import GrammarCompiler
from octavo.grammar.constraint import Constraint
from octavo.grammar.masks import MaskWriter
from octavo.logging import get_logger
from octavo.messages import (
    EngineOutput,
    EngineOutputs,
    EngineRequest,
    ModelRunnerOutput,
    PageMap,
    Progress,
    SchedulerOutput,
    SchedulerStats,
    TokenMasks,
)
from octavo.registry import load_object

logger = get_logger(__name__)

DEPTH = 1
"""Plans in flight at once. Results are always taken in the order of the plans."""

GRAMMAR_POLL_S = 0.001
"""How long to wait for a grammar to be compiled, when nothing else can run, before looking for new requests."""

MAX_FAILED_STEPS = 3
"""After so many steps in a row whose execution raised, the engine is given up unless a probe says that it works."""


class InFlight(NamedTuple):
    """A plan whose outcome is still being computed.

    Attributes:
        masks: of its rows; those they could not be made for have failed before the outcome is known.
    """

    plan: SchedulerOutput
    result: "Future[ModelRunnerOutput]"
    masks: TokenMasks | None


class EngineCore:
    """Loads a model through its executor, sizes the pages, and then runs steps.

    Attributes:
        config: as given, with `cache.num_blocks` filled in.
        facts: what there is to know about the loaded engine.
        failure: why the engine cannot go on, or None while it can. Then every call but `close` raises it.

    Raises:
        ConfigError, ModelError: the model cannot be loaded or does not fit.
    """

    def __init__(self, config: EngineConfig, executor: Executor, progress: Progress | None = None) -> None:
        start_s = time.monotonic()
        groups = executor.load(progress or _no_progress)
        config = with_kv_blocks(config, groups, executor.free_bytes_for_kv())
        cache, scheduler = config.cache, config.scheduler
        executor.allocate_kv(cache.num_blocks)
        kv = KVCacheManager(groups, cache.num_blocks, cache.block_size, cache.enable_prefix_caching)
        pool_tokens = kv.max_request_tokens(whole_prompts=not scheduler.enable_chunked_prefill)
        self.config = config = fit_max_model_len(config, pool_tokens)
        self.executor = executor
        self._grammars = GrammarCompiler(lambda: load_object("octavo.engine.vocabulary:load_tokens")(config))
        self._masks = MaskWriter(config.spec.vocab_size)
        self.scheduler = Scheduler(
            scheduler,
            kv,
            max_model_len=config.max_model_len,
            token_budget=config.token_budget,
            constrain=self._constrain,
        )
        page_bytes = [group.block_bytes(cache.block_size, config.kv_dtype) for group in groups]
        self.facts = EngineFacts(
            device=config.device.device,
            dtype=config.dtype,
            numerics=executor.numerics(),
            kv_dtype=config.kv_dtype,
            block_size=cache.block_size,
            num_blocks=cache.num_blocks,
            kv_groups=tuple(groups),
            kv_bytes=sum(count * size for count, size in zip(cache.num_blocks, page_bytes, strict=True)),
            max_model_len=config.max_model_len,
            max_request_tokens=min(config.max_model_len, pool_tokens),
            load_s=time.monotonic() - start_s,
        )
        self.failure: EngineDeadError | None = None
        self._in_flight: deque[InFlight] = deque()
        self._failed_steps = 0

    def submit(self, requests: Iterable[EngineRequest]) -> None:
        """Add the sequences of one request, all or none.

        Raises:
            ClientError: one of them can never run, or the queue is full.
        """
        self._check_alive()
        added: list[str] = []
        try:
            for request in requests:
                self.scheduler.add_request(request)
                added.append(request.request_id)
        except Exception:
            self.scheduler.abort(added)
            raise

    def abort(self, request_ids: Iterable[str]) -> list[EngineOutput]:
        """End sequences early and free what they hold; ids that are not live are ignored."""
        self._check_alive()
        return self.scheduler.abort(list(request_ids))

    def has_unfinished(self) -> bool:
        """Whether `step` has anything to do."""
        return self.failure is None and (bool(self._in_flight) or self.scheduler.has_unfinished())

    def step(self) -> EngineOutputs:
        """Run one step and return its news. A step whose execution fails ends its own sequences with "error"."""
        self._check_alive()
        # Asked before: a grammar that is ready a moment after `schedule` has looked is no reason to give up.
        waits_for_grammars = self.scheduler.is_waiting_for_grammars()
        while len(self._in_flight) < DEPTH and (plan := self.scheduler.schedule()).rows:
            self._in_flight.append(self._execute(plan))
        if not self._in_flight:
            if waits_for_grammars:
                time.sleep(GRAMMAR_POLL_S)
            elif self.scheduler.has_unfinished():  # better an end than requests that wait for ever
                self.failure = EngineDeadError("requests are waiting but the scheduler finds none to run")
            return self._emit([])
        oldest = self._in_flight.popleft()
        return self._emit(self.scheduler.update_from_output(oldest.plan, self._collect(oldest)))

    def stats(self) -> SchedulerStats:
        """Gauges and counters after the latest step."""
        return self.scheduler.stats()

    def reset_prefix_cache(self) -> bool:
        """Forget cached prompt beginnings; False if pages in use kept some of them."""
        self._check_alive()
        return self.scheduler.reset_prefix_cache()

    def page_maps(self) -> list[PageMap]:
        """What the pages of each KV group hold now."""
        return self.scheduler.page_maps()

    def close(self) -> None:
        """Release the model and the pages. May be called twice."""
        self.failure = self.failure or EngineDeadError("the engine is closed")
        self._grammars.close()
        self.executor.close()

    def _constrain(self, request: EngineRequest) -> Constraint:
        assert request.grammar is not None
        return Constraint(self._grammars.compile(request.grammar), request.sampling.stop_token_ids or ())

    def _execute(self, plan: SchedulerOutput) -> InFlight:
        try:
            self.executor.execute(plan)
            masks = self._masks.write(self.scheduler.constraints(plan))
            return InFlight(plan, self.executor.sample(plan, masks), masks)
        except Exception as err:  # whatever a model or kernel raises ends this plan's sequences, not the engine
            failed: Future[ModelRunnerOutput] = Future()
            failed.set_exception(err)
            return InFlight(plan, failed, None)

    def _collect(self, flight: InFlight) -> ModelRunnerOutput:
        """Wait for a plan's outcome; a failed one becomes an error of each of its rows."""
        plan, result, masks = flight
        try:
            output = result.result()
        except Exception as err:  # see _execute
            logger.exception("step %d failed with %d sequences", plan.step, len(plan.rows))
            if isinstance(err, EngineDeadError) or self._is_broken():
                self.failure = EngineDeadError(f"the engine cannot go on: {_describe(err)}")
            message = f"the engine failed while it computed this request: {_describe(err)}"
            return ModelRunnerOutput(step=plan.step, errors=dict.fromkeys(plan.rows, message))
        self._failed_steps = 0
        if masks is not None:
            output.errors |= masks.errors
            output.refused |= masks.refused
        return output

    def _is_broken(self) -> bool:
        """Whether the step that just failed is one too many. Each may have failed for its own requests' sake, however
        many follow each other, so that a step without any has to tell.
        """
        self._failed_steps += 1
        if self._failed_steps < MAX_FAILED_STEPS:
            return False
        try:
            self.executor.probe()
        except Exception:  # whatever a model or kernel raises
            logger.exception("%d steps in a row failed, and so did one without requests", self._failed_steps)
            return True
        self._failed_steps = 0
        return False

    def _emit(self, outputs: list[EngineOutput]) -> EngineOutputs:
        if self.failure is not None:
            outputs = outputs + self.scheduler.fail_all(str(self.failure))
        return EngineOutputs(outputs=outputs, stats=self.scheduler.stats())

    def _check_alive(self) -> None:
        if self.failure is not None:
            raise self.failure


def make_core(config: EngineConfig, progress: Progress | None = None) -> EngineCore:
    """Build the executor that `config` names, and the core on top of it."""
    executor = EXECUTORS.load(config.device.distributed_executor_backend)(config)
    try:
        return EngineCore(config, executor, progress)
    except BaseException:
        executor.close()
        raise


def _no_progress(stage: str, done: int, total: int) -> None:
    pass


def _describe(err: BaseException) -> str:
    return f"{type(err).__name__}: {err}"
