"""Decide what each step computes: who runs, how many tokens of whom, in which pages. Knows no tensors, devices, models.

One token budget serves prefill and decode alike: a request has `num_computed_tokens`, and a step lets it catch up with
its known tokens. In a step, decoding requests come first (one token each), then prompts that are being computed, then
the queue. Seats and pages that `update_from_output` frees are used by the next `schedule`.

One step is in flight at a time. What two would change: the token a row samples next is not known yet, so a request
needs a count of placeholder tokens that `update_from_output` takes back; pages may be hashed, and forked, only up to
the tokens of steps that came back (here that is `num_computed_tokens` between steps); and the result of a row counts
only if the request has not been preempted since.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

import msgspec

from octavo.config import SchedulerConfig
from octavo.core.admission import Admission
from octavo.core.fair_share import GUESSED_ANSWER_TOKENS, FairShare
from octavo.core.kv_cache_manager import KVCacheManager, Prefix
from octavo.core.request import Request, Status
from octavo.core.request_queue import RequestQueue
from octavo.core.step import Outcome, Step
from octavo.grammar.constraint import Constraint
from octavo.logging import get_logger
from octavo.messages import (
    BACKGROUND_PRIORITY,
    EngineOutput,
    EngineRequest,
    ModelRunnerOutput,
    PageMap,
    SchedulerOutput,
    SchedulerStats,
)
from octavo.outputs import FinishReason

logger = get_logger(__name__)


class Scheduler:
    """Continuous batching over a KV cache manager.

    Args:
        max_model_len: most tokens of prompt plus answer.
        token_budget: most tokens one step computes.
        clock: seconds, for the times in outputs.
        constrain: what a request with a grammar must match.

    Raises:
        ConfigError: without chunked prefill, a prompt could be longer than a step.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVCacheManager,
        *,
        max_model_len: int,
        token_budget: int,
        clock: Callable[[], float] = time.monotonic,
        constrain: Callable[[EngineRequest], Constraint] | None = None,
    ) -> None:
        self._admission = Admission(config, kv, max_model_len, token_budget)
        self._kv = kv
        self._clock = clock
        self._constrain = constrain
        self._num_constrained = 0
        self._chunked = config.enable_chunked_prefill
        self._by_priority = config.scheduling_policy == "priority"
        self._token_budget = token_budget
        # Each running request gets at least its one token per step.
        self._max_running = min(config.max_num_seqs, token_budget)
        self._memory_bound_tokens = 0 if config.long_prefill_token_threshold else config.memory_bound_tokens or 0
        self._long_prefill = min(config.long_prefill_token_threshold or max(1, token_budget // 4), token_budget)
        self._num_reserved_tokens = self._admission.max_total_tokens if config.reserve_full_length else 0

        self.waiting = RequestQueue()
        self.running = RequestQueue()
        self._held: dict[Request, None] = {}  # oldest first
        self._behind: dict[str, OrderedDict[Request, None]] = {}  # by the first sample's id, while one is in the queue
        self._requests: dict[str, Request] = {}  # all of these
        self._free_rows = list(range(self._max_running))
        self._freed_rows: list[int] = []
        self._in_flight: list[Request] = []
        self._num_arrived = 0
        self._shares = FairShare()
        self._stats = SchedulerStats()

    # ------------------------------------------------------------ requests come and go

    def add_request(self, spec: EngineRequest) -> None:
        """Queue a request.

        Raises:
            ClientError: its id is in use, or it can never fit.
            OverloadedError: the queue is full.
        """
        request = self._admission.make_request(spec, self._requests, (0, 0, 0))
        if request.parent is None:  # a fork is part of a request that was let in before
            self._admission.check_queue(request, self.waiting, num_free_seats=self._max_running - len(self.running))
        if spec.grammar is not None and self._constrain is not None:
            request.constraint = self._constrain(spec)
            self._num_constrained += 1
        self._requests[request.request_id] = request
        if request.first_sample_id in self._behind:
            request.status = Status.BEHIND
            self._behind[request.first_sample_id][request] = None
        else:
            self._behind[request.first_sample_id] = OrderedDict()
            self._enqueue(request)

    def _enqueue(self, request: Request) -> None:
        """Give a request that was let in its place in the queue."""
        request.status = Status.WAITING
        spec = request.spec
        request.charged_tokens = request.own_tokens + min(request.num_tokens_left, GUESSED_ANSWER_TOKENS)
        start = self._shares.start(spec.tenant, request.charged_tokens)
        priority = spec.priority if self._by_priority or spec.priority == BACKGROUND_PRIORITY else 0
        request.rank = (priority, start, self._num_arrived)
        self._num_arrived += 1
        self.waiting.add(request)

    def _follow(self, request: Request) -> list[Request]:
        """A request has left the queue for the first time: the next of its samples, if any, has a place in it."""
        behind = self._behind[request.first_sample_id]
        if not behind:
            del self._behind[request.first_sample_id]
            return []
        self._enqueue(follower := behind.popitem(last=False)[0])
        return [follower]

    def abort(self, request_ids: Sequence[str]) -> list[EngineOutput]:
        """End requests wherever they are, and let go of held ones; unknown ids are ignored.

        Returns:
            The final output of each that had none yet.
        """
        found = [self._requests[request_id] for request_id in request_ids if request_id in self._requests]
        return self._end(found, "abort")

    def fail_all(self, message: str) -> list[EngineOutput]:
        """End every request with the reason "error", because a step was lost."""
        return self._end(list(self._requests.values()), "error", message)

    def has_unfinished(self) -> bool:
        """Whether `schedule` has something to run."""
        return len(self.running) + len(self.waiting) > 0

    def is_waiting_for_grammars(self) -> bool:
        """Whether nothing can run but what waits for its grammar to be compiled."""
        return not self.running and any(not request.has_grammar for request in self.waiting)

    def _num_waiting(self) -> int:
        return len(self._requests) - len(self.running) - len(self._held)

    def reset_prefix_cache(self) -> bool:
        """Forget cached pages; False, and nothing happens, while a request holds some."""
        return self._kv.reset_prefix_cache()

    def page_maps(self) -> list[PageMap]:
        """What the pages of each KV group hold now."""
        return self._kv.page_maps()

    def stats(self) -> SchedulerStats:
        """Gauges of this moment and counters since the start."""
        return msgspec.structs.replace(
            self._stats,
            num_running=len(self.running),
            num_waiting=self._num_waiting(),
            kv_usage=self._kv.usage,
            kv_waste=self._waste(),
        )

    # ------------------------------------------------------------ a step begins

    def schedule(self) -> SchedulerOutput:
        """The next step. It has rows if `has_unfinished`; one without rows need not be run and holds no news."""
        step = Step(self._token_budget)
        self._schedule_running(step)
        # Nobody comes in while pages are so short, nor gets one that was handed out to another in the same step.
        if self.waiting and len(self.running) < self._max_running and not step.preempted:
            self._schedule_waiting(step)
        return self._emit(step)

    def _schedule_running(self, step: Step) -> None:
        for request in list(self.running):
            num_computed_tokens = request.num_computed_tokens
            if len(request.token_ids) - num_computed_tokens > 1:
                step.prefilling.append(request)
            elif num_computed_tokens < request.block_table.num_slots:
                step.num_tokens[request] = 1
            else:
                self._grow(step, request, 1)
        step.num_decoding = len(step.num_tokens)
        if step.num_decoding and self._chunked and self._memory_bound_tokens:
            step.token_budget = min(step.token_budget, self._bounded_budget(step))
        for request in step.prefilling:
            if request.status is Status.RUNNING:  # not preempted a moment ago
                num_tokens = self._chunk(step, request.num_tokens - request.num_computed_tokens)
                if num_tokens == step.token_budget and self._has_candidate():
                    num_tokens -= step.token_budget // 4  # a long prompt alone must not keep short ones out
                if num_tokens > 0:
                    self._grow(step, request, num_tokens)

    def _bounded_budget(self, step: Step) -> int:
        """What a step may hold beside which requests decode, so that their next token does not come much later.

        A lone prompt makes it two to three times as long; the more prompts wait, the more their waiting weighs.
        """
        num_prompts = len(step.prefilling) + min(self._num_waiting(), self._max_running - len(self.running))
        return step.num_decoding + num_prompts * max(step.num_decoding, self._memory_bound_tokens)

    def _chunk(self, step: Step, num_tokens: int) -> int:
        """How many of a request's missing tokens this step may compute."""
        if not self._chunked:
            return num_tokens if num_tokens <= step.budget_left() else 0
        # Between two tokens of a decoding request there is one step, so its length must be bounded.
        limit = self._long_prefill if step.num_decoding else num_tokens
        return min(num_tokens, limit, step.budget_left())

    def _has_candidate(self) -> bool:
        """Whether somebody waits for nothing but tokens and pages."""
        return len(self.running) < self._max_running and any(not r.must_wait for r in self.waiting)

    def _grow(self, step: Step, request: Request, num_tokens: int) -> None:
        """Schedule up to `num_tokens` of a running request; if no page is left, the last in rank lose theirs."""
        while (allocation := self._kv.allocate_slots(request, num_tokens)) is None:
            if self._drop_oldest_held():
                continue
            victim = self.running.worst
            self._preempt(step, victim)
            if victim is request:
                return
        step.num_tokens[request] = allocation.num_tokens
        step.new_block_ids[request] = allocation.block_ids

    def _preempt(self, step: Step, request: Request) -> None:
        self._leave(request)
        self._kv.free(request)
        step.drop(request)
        request.status = Status.PREEMPTED
        request.num_preemptions += 1
        self._stats.num_preemptions += 1
        self.waiting.add(request)

    # ------------------------------------------------------------ admission

    def _schedule_waiting(self, step: Step) -> None:
        kept_blocks = self._blocks_kept_for_running(step)
        candidates = list(self.waiting)
        for request in candidates:
            if len(self.running) == self._max_running or step.budget_left() == 0:
                break
            if request.must_wait:
                continue
            # First come, first served: nobody slips past one that has to wait, or a big request would wait forever.
            if not self._try_admit(step, request, kept_blocks):
                break
            owed = self._kv.num_owed_blocks(request)
            kept_blocks = [kept + more for kept, more in zip(kept_blocks, owed, strict=True)]
            self.waiting.remove(request)
            if not request.num_preemptions:
                candidates += self._follow(request)

    def _blocks_kept_for_running(self, step: Step) -> list[int]:
        """Per group, pages that newcomers must leave: for prompts not complete yet, and 1 % to grow."""
        kept_blocks = [pool.num_blocks // 100 if self.running else 0 for pool in self._kv.pools]
        for request in step.prefilling:
            owed = self._kv.num_owed_blocks(request)
            kept_blocks = [kept + more for kept, more in zip(kept_blocks, owed, strict=True)]
        return kept_blocks

    def _try_admit(self, step: Step, request: Request, kept_blocks: list[int]) -> bool:
        while True:
            prefix, forked = self._best_prefix(request)
            num_missing_tokens = request.num_tokens - prefix.num_tokens
            num_wanted = self._chunk(step, num_missing_tokens)
            if num_wanted == 0:
                return False
            num_tokens = self._kv.admit(
                request,
                prefix,
                num_wanted,
                min_new_tokens=1 if self._chunked else num_missing_tokens,
                num_reserved_tokens=self._num_reserved_tokens,
                num_kept_blocks=kept_blocks,
            )
            if num_tokens:
                break
            if not self._drop_oldest_held():
                return False
        self._shares.begin(request.rank[1])
        if request.status is Status.WAITING:
            self._note_first_admission(request, 0 if forked else prefix.num_tokens)
        self.running.add(request)
        request.status = Status.RUNNING
        request.row = heappop(self._free_rows)
        request.parent = None
        step.admitted.append(request)
        step.num_tokens[request] = num_tokens
        return True

    def _best_prefix(self, request: Request) -> tuple[Prefix, bool]:
        """What need not be computed, and whether it is a fork."""
        prefix = self._kv.get_computed_blocks(request)
        if request.parent is not None:
            forked = self._kv.fork(request.parent, request)
            if forked is not None and forked.num_tokens > prefix.num_tokens:
                return forked, True
        return prefix, False

    def _note_first_admission(self, request: Request, num_cached_tokens: int) -> None:
        request.scheduled_time_s = self._clock()
        request.num_cached_tokens = num_cached_tokens
        if request.spec.fork_of is None:
            stats = self._stats
            stats.prompt_tokens += request.num_prompt_tokens
            stats.prompt_tokens_cached += num_cached_tokens
            if self._kv.enable_prefix_caching and request.reads_prefix_cache:
                stats.prefix_cache_queries += request.num_prompt_tokens
                stats.prefix_cache_hits += num_cached_tokens

    # ------------------------------------------------------------ the plan

    def _emit(self, step: Step) -> SchedulerOutput:
        """The plan of a finished step; from here on its tokens count as computed."""
        self._in_flight = requests = list(step.num_tokens)
        if not requests:
            return SchedulerOutput(step=self._stats.steps)
        plan = SchedulerOutput(
            step=self._stats.steps,
            freed_rows=self._freed_rows,
            new_rows=[request.as_new_row() for request in step.admitted],
            rows=[request.row for request in requests],
            num_tokens=list(step.num_tokens.values()),
            num_computed_tokens=[request.num_computed_tokens for request in requests],
            new_block_ids={request.row: block_ids for request, block_ids in step.new_block_ids.items()},
            zero_block_ids=self._kv.take_zero_block_ids(),
            block_copies=self._kv.take_copies(),
        )
        for request, num_tokens in step.num_tokens.items():
            request.num_computed_tokens += num_tokens
        plan.samples = [r.num_computed_tokens == len(r.token_ids) < r.max_total_tokens for r in requests]
        self._freed_rows = []
        self._note_step(plan.total_tokens)
        return plan

    def _note_step(self, num_tokens: int) -> None:
        stats, num_used_blocks = self._stats, self._kv.pools[0].num_used
        stats.steps += 1
        stats.step_tokens += num_tokens
        self._kv.note_computed(num_tokens)
        stats.peak_running = max(stats.peak_running, len(self.running) + len(self._held))
        if num_used_blocks > stats.kv_peak_blocks:
            stats.kv_peak_blocks = num_used_blocks
            stats.kv_peak_waste = self._waste()

    def _waste(self) -> float:
        """Share of allocated slots, of all groups together, that hold no token."""
        return self._kv.num_empty_slots() / max(1, self._kv.num_used_slots())

    def constraints(self, plan: SchedulerOutput) -> dict[int, Constraint]:
        """Of the rows that `plan`, the last one scheduled, samples: those of rows that have one."""
        if not self._num_constrained:
            return {}
        rows = zip(self._in_flight, plan.rows, plan.samples, strict=True)
        return {row: request.constraint for request, row, samples in rows if samples and request.constraint is not None}

    # ------------------------------------------------------------ a step ends

    def update_from_output(self, plan: SchedulerOutput, result: ModelRunnerOutput) -> list[EngineOutput]:
        """Take in what the worker computed for `plan`, the last one scheduled.

        Returns:
            News of every request that has any.
        """
        outcome = Outcome(
            token_ids=dict(zip(result.rows, result.token_ids, strict=True)),
            logprobs={row: asked for row, asked in zip(result.rows, result.logprobs, strict=False) if asked},
            prompt_logprobs=result.prompt_logprobs,
            now_s=self._clock(),
        )
        errors, running = result.errors, Status.RUNNING
        outputs: list[EngineOutput] = []
        for request, row, samples in zip(self._in_flight, plan.rows, plan.samples, strict=True):
            if request.status is not running:  # aborted while the step ran
                continue
            if row in errors:
                outputs += self._fail(request, errors[row], refused=row in result.refused)
                continue
            try:
                output = self._take(request, row, samples, outcome)
            except Exception as err:  # what a row brought is its own affair
                logger.exception("request %s failed", request.request_id)
                outputs += self._fail(request, f"the engine could not use its result: {type(err).__name__}: {err}")
                continue
            if request.constraint is not None and request.constraint.error is not None:
                refused = request.constraint.is_refused
                outputs += self._end([request], "error", request.constraint.error, refused=refused)
                continue
            if output.finish_reason is not None:
                self._finish(request, output)
            if samples or output.finish_reason is not None or output.prompt_logprobs is not None:
                outputs.append(output)
        return outputs

    def _take(self, request: Request, row: int, samples: bool, outcome: Outcome) -> EngineOutput:
        """Take in what a step brought for one request."""
        if request.num_computed_tokens >= (request.block_table.num_cached_blocks + 1) * self._kv.block_size:
            self._kv.cache_computed_blocks(request)
        output = EngineOutput(request_id=request.request_id)
        if row in outcome.prompt_logprobs:
            output.prompt_logprobs = request.take_prompt_logprobs(outcome.prompt_logprobs[row])
        if samples:
            output.new_token_ids, output.finish_reason = request.extend(outcome.token_ids[row])
            self._stats.generation_tokens += len(output.new_token_ids)
            if request.constraint is not None and output.finish_reason is None:
                request.constraint.consume(output.new_token_ids)
            if row in outcome.logprobs:
                output.logprobs = outcome.logprobs[row][: len(output.new_token_ids)]
            if not request.has_first_token:
                self._note_first_token(request, output, outcome.now_s)
        elif request.num_computed_tokens == request.max_total_tokens:  # max_tokens=0: only the prompt was wanted
            output.finish_reason = "length"
        return output

    def _note_first_token(self, request: Request, output: EngineOutput, now_s: float) -> None:
        """Report what is known once a request has begun to answer."""
        request.has_first_token = True
        output.num_cached_tokens = request.num_cached_tokens
        output.scheduled_time_s = request.scheduled_time_s
        output.first_token_time_s = now_s

    def _finish(self, request: Request, output: EngineOutput) -> None:
        """End a running request of its own accord; `output` becomes its final message."""
        output.stop_reason = request.stop_reason() if output.finish_reason == "stop" else None
        output.num_cached_tokens = request.num_cached_tokens
        output.num_preemptions = request.num_preemptions
        if request.spec.hold:
            self._leave(request)
            request.status = Status.HELD
            self._held[request] = None
        else:
            self._drop(request)

    def _fail(self, request: Request, message: str, *, refused: bool = False) -> list[EngineOutput]:
        """End a running request that went wrong. Nobody is to find its pages: what is in them may be why."""
        self._kv.forget(request)
        return self._end([request], "error", message, refused=refused)

    def _end(
        self, requests: list[Request], reason: FinishReason, error: str | None = None, *, refused: bool = False
    ) -> list[EngineOutput]:
        """End requests from outside, wherever they are."""
        outputs = []
        for request in requests:
            if request.status is not Status.HELD:  # a held one had its final output
                output = EngineOutput(request_id=request.request_id, finish_reason=reason, error=error, refused=refused)
                output.num_cached_tokens = request.num_cached_tokens
                output.num_preemptions = request.num_preemptions
                outputs.append(output)
            self._drop(request)
        return outputs

    def _leave(self, request: Request) -> None:
        """Take a request out of the place its status says it is in."""
        if request.status is Status.RUNNING:
            self.running.remove(request)
            self._freed_rows.append(request.row)
            heappush(self._free_rows, request.row)
            request.row = -1
        elif request.status is Status.HELD:
            del self._held[request]
        elif request.status is Status.BEHIND:
            del self._behind[request.first_sample_id][request]
        else:
            self.waiting.remove(request)
            if request.status is Status.WAITING:
                self._follow(request)

    def _drop(self, request: Request) -> None:
        """Let go of a request and all it has."""
        if request.status is not Status.BEHIND:
            self._shares.settle(request.spec.tenant, request.own_tokens - request.charged_tokens)
        self._leave(request)
        self._kv.free(request)
        request.status = Status.FINISHED
        request.parent = None
        self._num_constrained -= request.constraint is not None
        del self._requests[request.request_id]

    def _drop_oldest_held(self) -> bool:
        """Take the pages of the request that was held longest; False if none is held."""
        oldest = next(iter(self._held), None)
        if oldest is not None:
            self._drop(oldest)
        return oldest is not None
