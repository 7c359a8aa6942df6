"""What the engine does now, for the console: counters, pages and recent requests, without anything that was said."""

import asyncio
import time

import msgspec

from octavo.engine.crash_dump import RequestShape
from octavo.errors import EngineDeadError
from octavo.messages import PageMap, SchedulerStats
from octavo.server.serving import Lifecycle, Serving

MIN_INTERVAL_S = 0.2
"""The engine is asked for its pages no more often, however many pages are open."""

PATIENCE_S = 0.4
"""A step may take longer; then the pages are those known before."""


class Group(msgspec.Struct, kw_only=True):
    """The pages of one KV group, as in `PageMap`."""

    name: str
    num_blocks: int
    num_used: int
    num_reusable: int
    stride: int
    states: bytes


class RecentRequest(msgspec.Struct, kw_only=True):
    """A request that is open, or has ended. Times are None while they have not come."""

    age_s: float
    prompt_tokens: int
    cached_tokens: int
    tokens: int
    samples: int
    queue_ms: float | None
    ttft_ms: float | None
    total_ms: float | None
    finish_reason: str | None


class EngineState(msgspec.Struct, kw_only=True):
    """Answer of /console/state.

    Attributes:
        now_s: a clock for rates of the counters in `stats`.
        seats: most sequences in one step.
        groups: as of `pages_s` on that clock; empty if unknown.
    """

    now_s: float
    status: str
    model: str
    device: str
    dtype: str
    numerics: str
    max_model_len: int
    block_size: int
    kv_bytes: int
    seats: int
    stats: SchedulerStats
    pages_s: float
    groups: list[Group]
    requests: list[RecentRequest]


class EngineView:
    """Looks at the engine of `lifecycle`, now and then and only when asked."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._asking: asyncio.Task[None] | None = None
        self._asked_s = 0.0
        self._pages_s = 0.0
        self._pages: list[PageMap] = []

    async def state(self) -> EngineState:
        """The state now.

        Raises:
            ServiceUnavailableError: nothing is loaded.
        """
        serving = self._lifecycle.loaded or self._lifecycle.serving()
        await self._look_at_pages(serving)
        now_s, engine, facts = time.monotonic(), serving.engine, serving.engine.facts
        assert facts is not None  # it is loaded
        groups = zip(facts.kv_groups, self._pages, strict=False)
        return EngineState(
            now_s=now_s,
            status=self._lifecycle.status,
            model=serving.model_name,
            device=facts.device,
            dtype=facts.dtype,
            numerics=facts.numerics,
            max_model_len=facts.max_model_len,
            block_size=facts.block_size,
            kv_bytes=facts.kv_bytes,
            seats=serving.config.scheduler.max_num_seqs,
            stats=engine.stats(),
            pages_s=self._pages_s,
            groups=[Group(name=group.name, **msgspec.structs.asdict(pages)) for group, pages in groups],
            requests=[_recent(shape, now_s) for shape in reversed(engine.recent_requests())],
        )

    async def _look_at_pages(self, serving: Serving) -> None:
        """Everybody who wants the pages waits for the same look."""
        now_s = time.monotonic()
        if self._asking is None or (self._asking.done() and now_s - self._asked_s >= MIN_INTERVAL_S):
            self._asked_s = now_s
            self._asking = asyncio.create_task(self._ask(serving), name="look-at-pages")
        await asyncio.wait([self._asking], timeout=PATIENCE_S)

    async def _ask(self, serving: Serving) -> None:
        try:
            self._pages = await serving.engine.page_maps()
        except EngineDeadError:
            self._pages = []
        self._pages_s = time.monotonic()


def _recent(shape: RequestShape, now_s: float) -> RecentRequest:
    reasons = [sample.finish_reason for sample in shape.samples]
    ended = None not in reasons
    return RecentRequest(
        age_s=round(now_s - shape.arrival_s, 3),
        prompt_tokens=shape.num_prompt_tokens,
        cached_tokens=shape.num_cached_tokens,
        tokens=sum(sample.num_tokens for sample in shape.samples),
        samples=len(shape.samples),
        queue_ms=_ms(shape.arrival_s, shape.scheduled_s),
        ttft_ms=_ms(shape.arrival_s, shape.first_token_s),
        total_ms=_ms(shape.arrival_s, shape.finished_s) if ended else None,
        finish_reason=", ".join(sorted({reason for reason in reasons if reason})) if ended else None,
    )


def _ms(begin_s: float, end_s: float) -> float | None:
    return round((end_s - begin_s) * 1000, 1) if end_s else None
