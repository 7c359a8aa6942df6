"""Prometheus metrics, under `octavo:` and, for existing dashboards, `vllm:` names. Counts are kept once and exported
under each name; what the engine counts is read at scrape time from its latest statistics, without asking it.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from octavo.messages import SchedulerStats
from octavo.outputs import FinishReason

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

PREFIX, VLLM_PREFIX = "octavo:", "vllm:"

VLLM_ALIASES: Mapping[str, tuple[str, ...]] = {
    "kv_cache_usage_perc": ("gpu_cache_usage_perc",),
    "inter_token_latency_seconds": ("time_per_output_token_seconds",),
    "prefix_cache_queries": ("gpu_prefix_cache_queries",),
    "prefix_cache_hits": ("gpu_prefix_cache_hits",),
    "prefix_cache_hit_rate": ("gpu_prefix_cache_hit_rate",),
    "request_queue_time_seconds": ("time_in_queue_requests",),
}
"""Names that older dashboards still query."""

LATENCY_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
FIRST_TOKEN_S = (
    .001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
INTER_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
HTTP_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
MAX_RETRY_AFTER_S = 60
SAMPLES = (1, 2, 5, 10, 20)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

FINISH_REASONS: tuple[FinishReason, ...] = ("stop", "length", "abort", "error", "repetition")


@dataclass(frozen=True)
class ModelFacts:
    """Labels and constants of the metrics.

    Attributes:
        num_blocks: pages of the first KV group.
    """

    model_name: str
    max_model_len: int
    block_size: int
    num_blocks: int
    enable_prefix_caching: bool
    cache_dtype: str
    gpu_memory_utilization: float | None


class Metrics:
    """All metrics of one served model.

    Args:
        stats: the engine's latest statistics; must return at once.
        vllm_names: export under the `vllm:` names too.
    """

    def __init__(self, facts: ModelFacts, stats: Callable[[], SchedulerStats], *, vllm_names: bool) -> None:
        self.model_name = facts.model_name
        self._labels = {"model_name": facts.model_name, "engine": "0"}
        self._own = CollectorRegistry()
        self._own.register(_EngineCollector(facts, stats))
        tokens = token_buckets(facts.max_model_len)
        self.first_token = self._histogram("time_to_first_token_seconds", "Arrival to first token.", FIRST_TOKEN_S)
        self.inter_token = self._histogram("inter_token_latency_seconds", "Between two tokens.", INTER_TOKEN_S)
        self.per_token = self._histogram(
            "request_time_per_output_token_seconds", "Mean time between the tokens of a request.", INTER_TOKEN_S
        )
        self.latency = self._histogram("e2e_request_latency_seconds", "Arrival to end.", LATENCY_S)
        self.queue = self._histogram("request_queue_time_seconds", "Arrival to first step.", LATENCY_S)
        self.prefill = self._histogram("request_prefill_time_seconds", "First step to first token.", LATENCY_S)
        self.decode = self._histogram("request_decode_time_seconds", "First token to end.", LATENCY_S)
        self.inference = self._histogram("request_inference_time_seconds", "First step to end.", LATENCY_S)
        self.prompt_tokens = self._histogram("request_prompt_tokens", "Tokens of a prompt.", tokens)
        self.computed_tokens = self._histogram(
            "request_prefill_kv_computed_tokens", "Tokens of a prompt that were not cached.", tokens
        )
        self.generation_tokens = self._histogram("request_generation_tokens", "Tokens of a sample.", tokens)
        self.max_generation_tokens = self._histogram(
            "request_max_num_generation_tokens", "Tokens of a request's longest sample.", tokens
        )
        self.n = self._histogram("request_params_n", "The parameter n.", SAMPLES)
        self.max_tokens = self._histogram("request_params_max_tokens", "The parameter max_tokens.", tokens)
        self.preemptions = self._histogram("request_num_preemptions", "Preemptions of a request.", (0, 1, 2, 5, 10))
        self.step_tokens = self._histogram("iteration_tokens_total", "Tokens computed in a step.", STEP_TOKENS)
        finished = Counter(
            f"{PREFIX}request_success", "Requests that ended, by reason.", (*self._labels, "finished_reason"),
            registry=self._own,
        )  # fmt: skip
        self.finished = {reason: finished.labels(**self._labels, finished_reason=reason) for reason in FINISH_REASONS}
        rejected = Counter(
            f"{PREFIX}admission_rejections", "Requests refused because a queue was full.", (*self._labels, "reason"),
            registry=self._own,
        )  # fmt: skip
        self.rejected = rejected.labels(**self._labels, reason="queue_full")
        restarts = Counter(
            f"{PREFIX}engine_restarts", "Times a lost engine came back.", tuple(self._labels), registry=self._own
        )
        self.restarts = restarts.labels(**self._labels)
        prefixes = (PREFIX, VLLM_PREFIX) if vllm_names else (PREFIX,)
        self.recent_latency_s = 1.0
        self._exported = CollectorRegistry()
        self._exported.register(_Renamed(self._own, prefixes))

    def _histogram(self, name: str, doc: str, buckets: Iterable[float]) -> Histogram:
        made = Histogram(f"{PREFIX}{name}", doc, tuple(self._labels), registry=self._own, buckets=tuple(buckets))
        return made.labels(**self._labels)

    def exposition(self) -> bytes:
        """The text of a scrape."""
        return generate_latest(self._exported)

    def note_latency(self, seconds: float) -> None:
        """A request took so long; the last ten or so count."""
        self.recent_latency_s += (seconds - self.recent_latency_s) / 10

    def retry_after_s(self, stats: SchedulerStats) -> int:
        """When a request that finds no place may find one: the queue, at the pace of those that run."""
        rounds = max(1, stats.num_waiting) / max(1, stats.num_running)
        return max(1, min(MAX_RETRY_AFTER_S, math.ceil(self.recent_latency_s * rounds)))


class HttpMetrics:
    """Counts of the HTTP layer, under the names of fastapi-instrumentator, and of the process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._requests = Counter(
            "http_requests", "Answers, by route and status.", ("method", "handler", "status"), registry=self._registry
        )
        self._duration = Histogram(
            "http_request_duration_seconds", "Request to last byte.", ("method", "handler"),
            registry=self._registry, buckets=HTTP_S,
        )  # fmt: skip

    def observe(self, method: str, handler: str, status: int, duration_s: float) -> None:
        """Count one answer."""
        self._requests.labels(method, handler, f"{status // 100}xx").inc()
        self._duration.labels(method, handler).observe(duration_s)

    def exposition(self) -> bytes:
        """The text of a scrape."""
        return generate_latest(self._registry)


def token_buckets(most: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, ... up to `most`."""
    buckets, scale = [], 1
    while scale <= most:
        buckets += [step * scale for step in (1, 2, 5) if step * scale <= most]
        scale *= 10
    return buckets


class _EngineCollector(Collector):
    """What the engine itself counts."""

    def __init__(self, facts: ModelFacts, stats: Callable[[], SchedulerStats]) -> None:
        self._facts = facts
        self._stats = stats
        self._labels = {"model_name": facts.model_name, "engine": "0"}

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        yield self._gauge("num_requests_running", "Sequences that hold pages.", stats.num_running)
        yield self._gauge("num_requests_waiting", "Sequences that wait for a seat.", stats.num_waiting)
        by_reason = self._gauge("num_requests_waiting_by_reason", "The same, by reason.")
        self._add(by_reason, stats.num_waiting, reason="capacity")
        self._add(by_reason, 0, reason="deferred")
        yield by_reason
        queries = max(1, stats.prefix_cache_queries)
        yield self._gauge(
            "prefix_cache_hit_rate", "Hits over queries since the start.", stats.prefix_cache_hits / queries
        )
        yield self._gauge("num_requests_swapped", "Always 0: preempted requests are computed again.", 0)
        yield self._gauge("kv_cache_usage_perc", "Share of pages in use, 0 to 1.", stats.kv_usage)
        yield self._gauge("cpu_cache_usage_perc", "Always 0: no pages are swapped out.", 0)
        yield self._gauge("kv_cache_waste_perc", "Share of allocated slots that hold no token.", stats.kv_waste)
        yield self._counter("prompt_tokens", "Prompt tokens computed or taken from the cache.", stats.prompt_tokens)
        yield self._counter("prompt_tokens_cached", "Prompt tokens from the cache.", stats.prompt_tokens_cached)
        by_source = self._counter("prompt_tokens_by_source", "Prompt tokens, by where they came from.")
        self._add(by_source, stats.prompt_tokens - stats.prompt_tokens_cached, source="computed")
        self._add(by_source, stats.prompt_tokens_cached, source="local_cache_hit")
        yield by_source
        yield self._counter("generation_tokens", "Tokens generated.", stats.generation_tokens)
        yield self._counter("num_preemptions", "Preemptions.", stats.num_preemptions)
        yield self._counter("prefix_cache_queries", "Tokens looked up.", stats.prefix_cache_queries)
        yield self._counter("prefix_cache_hits", "Tokens found.", stats.prefix_cache_hits)
        yield self._counter("engine_steps", "Steps.", stats.steps)
        yield self._counter("engine_step_tokens", "Tokens computed in steps.", stats.step_tokens)
        yield from self._constants()

    def _constants(self) -> Iterator[Metric]:
        facts = self._facts
        info = self._gauge("cache_config_info", "The KV pool.")
        self._add(
            info, 1, block_size=str(facts.block_size), num_gpu_blocks=str(facts.num_blocks),
            enable_prefix_caching=str(facts.enable_prefix_caching), cache_dtype=facts.cache_dtype,
            gpu_memory_utilization=str(facts.gpu_memory_utilization),
        )  # fmt: skip
        yield info
        state = self._gauge("engine_sleep_state", "1 for the state the engine is in.")
        for name in ("awake", "weights_offloaded", "discard_all"):
            self._add(state, name == "awake", sleep_state=name)
        yield state
        lora = self._gauge("lora_requests_info", "Adapters in use.")
        self._add(lora, 0, max_lora="0", running_lora_adapters="", waiting_lora_adapters="")
        yield lora

    def _gauge(self, name: str, doc: str, value: float | None = None) -> Metric:
        made = GaugeMetricFamily(PREFIX + name, doc)
        if value is not None:
            made.samples.append(Sample(PREFIX + name, self._labels, max(0.0, float(value))))
        return made

    def _counter(self, name: str, doc: str, value: float | None = None) -> Metric:
        made = CounterMetricFamily(PREFIX + name, doc)
        if value is not None:
            made.samples.append(Sample(PREFIX + name + "_total", self._labels, float(value)))
        return made

    def _add(self, family: Metric, value: float, **labels: str) -> None:
        name = family.name + ("_total" if family.type == "counter" else "")
        family.samples.append(Sample(name, {**self._labels, **labels}, float(value)))


class _Renamed(Collector):
    """Every metric of a registry under each prefix and alias."""

    def __init__(self, source: CollectorRegistry, prefixes: tuple[str, ...]) -> None:
        self._source = source
        self._prefixes = prefixes

    def collect(self) -> Iterator[Metric]:
        for family in self._source.collect():
            bare = family.name.removeprefix(PREFIX)
            for prefix in self._prefixes:
                aliases = VLLM_ALIASES.get(bare, ()) if prefix == VLLM_PREFIX else ()
                for name in (bare, *aliases):
                    yield _renamed(family, prefix + name)


def _renamed(family: Metric, name: str) -> Metric:
    made = Metric(name, family.documentation, family.type)
    made.samples = [
        sample._replace(name=name + sample.name.removeprefix(family.name))
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]
    return made
