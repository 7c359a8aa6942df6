"""A worker and a model made of integers, to judge the core by what comes out.

The model has one layer per KV group. At each position a layer writes a value to its page and reads, through the block
table, every value its window sees; its output is a hash of those and feeds the next layer; the last picks the token.
So a token depends on the content of every page the request may see, and a page that is shared, copied, evicted, zeroed
or let go wrongly changes the answer. `oracle` computes the same without pages.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from octavo.config import KVGroupSpec, SchedulerConfig
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.request import Request
from octavo.core.scheduler import Scheduler
from octavo.messages import (
    EngineOutput,
    EngineRequest,
    ModelRunnerOutput,
    NewRow,
    PositionLogprobs,
    PromptLogprobs,
    SchedulerOutput,
)
from octavo.sampling_params import SamplingParams

VOCAB_SIZE = 40
EOS = 1

FULL = KVGroupSpec("full", num_layers=1, num_kv_heads=1, head_dim=1)


def sliding(window: int) -> KVGroupSpec:
    """A KV group whose queries see `window` tokens."""
    return KVGroupSpec(f"sliding-{window}", num_layers=1, num_kv_heads=1, head_dim=1, window=window)


def make_request(
    request_id: str,
    prompt: Sequence[int] | int,
    max_tokens: int | None = 4,
    *,
    min_tokens: int = 0,
    ignore_eos: bool = True,
    stop_token_ids: Sequence[int] = (),
    prompt_logprobs: int | None = None,
    seed: int = 0,
    sample_index: int = 0,
    priority: int = 0,
    cache_salt: str | None = None,
    fork_of: str | None = None,
    hold: bool = False,
) -> EngineRequest:
    """A request; a prompt given as a length is made of tokens that depend on `request_id`."""
    if isinstance(prompt, int):
        prompt = [2 + hash_values((*request_id.encode(), i)) % (VOCAB_SIZE - 2) for i in range(prompt)]
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=list(prompt),
        sampling=SamplingParams(
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            ignore_eos=ignore_eos,
            stop_token_ids=list(stop_token_ids),
            prompt_logprobs=prompt_logprobs,
        ),
        eos_token_ids=[EOS],
        seed=seed,
        sample_index=sample_index,
        priority=priority,
        cache_salt=cache_salt,
        fork_of=fork_of,
        hold=hold,
    )


# ---------------------------------------------------------------- the model


def hash_values(values: tuple[int, ...]) -> int:
    """One number for many; hashes of integer tuples do not depend on the process."""
    return hash(values)


def pick(output: int, request: EngineRequest | NewRow, position: int, num_output_tokens: int) -> int:
    """Sample: depends on seed and sample, and honours min_tokens as the real sampler does."""
    token_id = hash_values((output, request.seed, request.sample_index, position)) % VOCAB_SIZE
    if num_output_tokens < request.sampling.min_tokens:
        while token_id in (EOS, *(request.sampling.stop_token_ids or ())):
            token_id = (token_id + 1) % VOCAB_SIZE
    return token_id


@lru_cache(maxsize=100_000)
def oracle_output(token_ids: tuple[int, ...], windows: tuple[int | None, ...]) -> int:
    """Output of the last layer at the last position, from tokens alone."""
    values = [hash_values((token_id, position)) for position, token_id in enumerate(token_ids)]
    for window in windows:
        values = [
            hash_values(tuple(values[0 if window is None else max(0, position - window + 1) : position + 1]))
            for position in range(len(values))
        ]
    return values[-1]


def oracle(request: EngineRequest, windows: tuple[int | None, ...], max_total_tokens: int) -> list[int]:
    """All tokens that the request generates when it is alone."""
    sampling, token_ids = request.sampling, list(request.prompt_token_ids)
    num_prompt = len(token_ids)
    wanted = max_total_tokens if sampling.max_tokens is None else num_prompt + sampling.max_tokens
    stops = {*(sampling.stop_token_ids or ()), *(() if sampling.ignore_eos else request.eos_token_ids)}
    while len(token_ids) < min(max_total_tokens, wanted):
        num_output = len(token_ids) - num_prompt
        output = oracle_output(tuple(token_ids), windows)
        token_ids.append(pick(output, request, len(token_ids), num_output))
        if token_ids[-1] in stops and num_output >= sampling.min_tokens:
            break
    return token_ids[num_prompt:]


# ---------------------------------------------------------------- the worker


@dataclass
class Row:
    """What the worker knows of one sequence."""

    new: NewRow
    token_ids: list[int]
    num_computed: int
    tables: list[list[int]]


@dataclass
class PagedWorker:
    """Runs plans on simulated pages, in the order the contract gives, and refuses whatever the contract forbids.

    A page is a list of values by slot; None is a zeroed or never written slot and must not be read.
    """

    windows: tuple[int | None, ...]
    num_blocks: Sequence[int]
    block_size: int
    max_num_seqs: int
    token_budget: int
    rows: dict[int, Row] = field(default_factory=dict)
    last_step: int = -1

    def __post_init__(self) -> None:
        self.pages = [[[-7] * self.block_size for _ in range(count)] for count in self.num_blocks]

    def run(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """One step."""
        assert plan.step == self.last_step + 1 and plan.rows and plan.total_tokens <= self.token_budget
        self.last_step = plan.step
        self._seat(plan)
        self._prepare_pages(plan)
        self._check_owners(plan)
        result = ModelRunnerOutput(step=plan.step)
        outputs = self._forward(plan)
        for row_id, samples in zip(plan.rows, plan.samples, strict=True):
            row = self.rows[row_id]
            at_end = row.num_computed == len(row.token_ids)
            assert samples == (at_end and row.new.sampling.max_tokens != 0), "samples exactly at the last known token"
            if samples:
                num_output = len(row.token_ids) - row.new.num_prompt_tokens
                token_id = pick(outputs[row_id][-1], row.new, len(row.token_ids), num_output)
                row.token_ids.append(token_id)
                result.rows.append(row_id)
                result.token_ids.append([token_id])
                result.logprobs.append(None)
            self._add_prompt_logprobs(result, row_id, outputs[row_id])
        return result

    def _seat(self, plan: SchedulerOutput) -> None:
        for row_id in plan.freed_rows:
            del self.rows[row_id]
        for new in plan.new_rows:
            assert 0 <= new.row < self.max_num_seqs and new.row not in self.rows
            self.rows[new.row] = Row(
                new, list(new.token_ids), new.num_computed_tokens, [list(ids) for ids in new.block_ids]
            )
        assert len(set(plan.rows)) == len(plan.rows)

    def _prepare_pages(self, plan: SchedulerOutput) -> None:
        fresh = [set(ids) for ids in plan.zero_block_ids]
        for pages, ids in zip(self.pages, plan.zero_block_ids, strict=True):
            for block_id in ids:
                pages[block_id] = [None] * self.block_size
        for copy in plan.block_copies:
            assert copy.dst not in fresh[copy.group], "a copy target needs no zeroing"
            fresh[copy.group].add(copy.dst)
            self.pages[copy.group][copy.dst] = list(self.pages[copy.group][copy.src])
        for new in plan.new_rows:
            for group, ids in enumerate(new.block_ids):
                for block_id in ids[new.num_computed_tokens // self.block_size :]:
                    assert block_id in fresh[group], "a page to write to is zeroed or a copy"
        assert plan.new_block_ids.keys() <= set(plan.rows) - {new.row for new in plan.new_rows}
        for row_id, block_ids in plan.new_block_ids.items():
            for group, ids in enumerate(block_ids):
                assert fresh[group].issuperset(ids)
                self.rows[row_id].tables[group].extend(ids)

    def _check_owners(self, plan: SchedulerOutput) -> None:
        """A page written in this step is in reach of exactly one row."""
        holders: list[dict[int, set[int]]] = [{} for _ in self.pages]
        for row_id, row in self.rows.items():
            for group, window in enumerate(self.windows):
                first = 0 if window is None else max(0, row.num_computed - window + 1) // self.block_size
                for block_id in row.tables[group][first:]:
                    holders[group].setdefault(block_id, set()).add(row_id)
        for row_id, num_tokens in zip(plan.rows, plan.num_tokens, strict=True):
            row = self.rows[row_id]
            first, last = row.num_computed // self.block_size, (row.num_computed + num_tokens - 1) // self.block_size
            for group, table in enumerate(row.tables):
                for block_id in table[first : last + 1]:
                    assert holders[group][block_id] == {row_id}, "a written page has one owner"

    def _forward(self, plan: SchedulerOutput) -> dict[int, list[int]]:
        """Layer by layer, all rows write before any row reads. Returns outputs of the computed positions by row."""
        values: dict[int, list[int]] = {}
        spans: dict[int, range] = {}
        for row_id, num_tokens, num_computed in zip(plan.rows, plan.num_tokens, plan.num_computed_tokens, strict=True):
            row = self.rows[row_id]
            assert num_tokens >= 1 and row.num_computed == num_computed
            span = spans[row_id] = range(num_computed, num_computed + num_tokens)
            assert span.stop <= len(row.token_ids)
            values[row_id] = [hash_values((row.token_ids[position], position)) for position in span]
        for group, window in enumerate(self.windows):
            for row_id, span in spans.items():
                for position, value in zip(span, values[row_id], strict=True):
                    self._page(group, row_id, position)[position % self.block_size] = value
            for row_id, span in spans.items():
                values[row_id] = [self._attend(group, row_id, position, window) for position in span]
        for row_id, span in spans.items():
            self.rows[row_id].num_computed = span.stop
        return values

    def _attend(self, group: int, row_id: int, position: int, window: int | None) -> int:
        first = 0 if window is None else max(0, position - window + 1)
        seen = [self._page(group, row_id, p)[p % self.block_size] for p in range(first, position + 1)]
        assert None not in seen, "read a slot that was never written"
        return hash_values(tuple(seen))

    def _page(self, group: int, row_id: int, position: int) -> list[int]:
        block_id = self.rows[row_id].tables[group][position // self.block_size]
        assert block_id >= 0, "a page in reach was let go"
        return self.pages[group][block_id]

    def _add_prompt_logprobs(self, result: ModelRunnerOutput, row_id: int, outputs: list[int]) -> None:
        row = self.rows[row_id]
        start = row.num_computed - len(outputs) + 1
        stop = min(row.num_computed + 1, row.new.num_prompt_tokens)
        if row.new.sampling.prompt_logprobs is not None and start < stop:
            positions = [PositionLogprobs([row.token_ids[p]], [-1.0], 1) for p in range(start, stop)]
            result.prompt_logprobs[row_id] = PromptLogprobs(start, positions)


# ---------------------------------------------------------------- both together


@dataclass
class World:
    """A scheduler, a worker and everything they said."""

    scheduler: Scheduler
    kv: KVCacheManager
    worker: PagedWorker
    max_total_tokens: int
    outputs: dict[str, list[EngineOutput]] = field(default_factory=dict)
    requests: dict[str, EngineRequest] = field(default_factory=dict)
    plans: list[SchedulerOutput] = field(default_factory=list)

    def add(self, *requests: EngineRequest) -> None:
        """Queue requests."""
        for request in requests:
            self.scheduler.add_request(request)
            self.requests[request.request_id] = request
            self.outputs[request.request_id] = []

    def step(self) -> SchedulerOutput:
        """Schedule, run, update."""
        plan = self.scheduler.schedule()
        if plan.rows:
            self.plans.append(plan)
            self.take(self.scheduler.update_from_output(plan, self.worker.run(plan)))
        return plan

    def take(self, outputs: list[EngineOutput]) -> None:
        """Keep outputs; none may follow a final one."""
        for output in outputs:
            so_far = self.outputs[output.request_id]
            assert not (so_far and so_far[-1].finish_reason), f"{output.request_id} ended before"
            so_far.append(output)

    def abort(self, *request_ids: str) -> None:
        """Abort requests."""
        self.take(self.scheduler.abort(request_ids))

    def run(self, max_steps: int = 1000) -> int:
        """Step until all is done; the number of steps."""
        for num_steps in range(max_steps):
            if not self.scheduler.has_unfinished():
                return num_steps
            assert self.step().rows, "work is left but the step is empty"
        raise AssertionError(f"not done after {max_steps} steps")

    def tokens(self, request_id: str) -> list[int]:
        """What a request has generated so far."""
        return [token_id for output in self.outputs[request_id] for token_id in output.new_token_ids]

    def reason(self, request_id: str) -> str | None:
        """Why it ended, or None."""
        return self.outputs[request_id][-1].finish_reason if self.outputs[request_id] else None

    def expected(self, request_id: str) -> list[int]:
        """What it generates when it is alone."""
        return oracle(self.requests[request_id], self.worker.windows, self.max_total_tokens)

    def check_answers(self) -> None:
        """Every finished request said what it says when it is alone."""
        for request_id, outputs in self.outputs.items():
            if outputs and outputs[-1].finish_reason in ("stop", "length"):
                assert self.tokens(request_id) == self.expected(request_id), request_id

    def tokens_computed(self, step: int, request_id: str) -> int:
        """Tokens that a running request computes in a plan."""
        plan, request = self.plans[step], self.find(request_id)
        return plan.num_tokens[plan.rows.index(request.row)] if request.row in plan.rows else 0

    def find(self, request_id: str) -> Request:
        """The core's state of a request that is running or waiting."""
        both = [*self.scheduler.running, *self.scheduler.waiting]
        return next(request for request in both if request.request_id == request_id)

    def check_idle(self) -> None:
        """Nothing is running, queued or allocated."""
        stats = self.scheduler.stats()
        assert (stats.num_running, stats.num_waiting, stats.kv_usage, stats.kv_waste) == (0, 0, 0.0, 0.0)


def make_world(
    *,
    groups: Sequence[KVGroupSpec] = (FULL,),
    num_blocks: int | Sequence[int] = 64,
    block_size: int = 4,
    caching: bool = True,
    max_model_len: int = 256,
    token_budget: int = 64,
    max_num_seqs: int = 8,
    **options: object,
) -> World:
    """The smallest engine core that `options` of `SchedulerConfig` can describe."""
    counts = [num_blocks] * len(groups) if isinstance(num_blocks, int) else list(num_blocks)
    config = SchedulerConfig(max_num_seqs=max_num_seqs, **options)
    kv = KVCacheManager(groups, counts, block_size, caching)
    scheduler = Scheduler(config, kv, max_model_len=max_model_len, token_budget=token_budget, clock=lambda: 1.0)
    worker = PagedWorker(tuple(group.window for group in groups), counts, block_size, max_num_seqs, token_budget)
    limit = min(max_model_len, kv.max_request_tokens(whole_prompts=not config.enable_chunked_prefill))
    return World(scheduler, kv, worker, limit)
