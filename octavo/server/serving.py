"""What every route works with, and the server's life, from loading to its end. Knows no HTTP beyond statuses."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from starlette.requests import Request

from octavo.config import EngineConfig, ServerConfig
from octavo.engine.chat import make_template
from octavo.engine.input_processor import default_sampling_params
from octavo.errors import EngineDeadError, NotFoundError
from octavo.server.engine import Engine
from octavo.server.errors import ServiceUnavailableError
from octavo.server.keys import KeyRing
from octavo.server.metrics import HttpMetrics, Metrics, ModelFacts
from octavo.server.prompts import PromptReader
from octavo.server.request_log import RequestLog
from octavo.server.tracing import Tracer
from octavo.server.turns import Turns
from octavo.version import VERSION


class Status(StrEnum):
    """Where the server is in its life.

    ```text
    loading ──▶ ready ──▶ draining ──▶ (exit 0)
                │   ▲
                │   └──── restarting ──┐        with --restart-engine
                └─────────▲   │        ▼
                engine lost   └────▶ failed ──▶ (exit 1)
    ```

    A state in which the engine is well but takes no requests (drained today) belongs to `WELL` and not to "ready".
    """

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    RESTARTING = "restarting"
    FAILED = "failed"


WELL = frozenset([Status.READY, Status.DRAINING])
"""The engine is loaded and its steps make progress."""

ALIVE = frozenset(Status) - {Status.FAILED}
"""The process is worth keeping: it serves, or will without help."""


@dataclass(frozen=True)
class Serving:
    """A loaded engine and what is derived from it once.

    Attributes:
        model_names: the first is reported.
        defaults: sampling defaults of the model, by field of `SamplingParams`.
        fingerprint: changes with anything that may change an answer.
        created: Unix time of the start.
    """

    engine: Engine
    config: EngineConfig
    model_names: tuple[str, ...]
    defaults: Mapping[str, Any]
    prompts: PromptReader
    turns: Turns
    metrics: Metrics
    request_log: RequestLog
    fingerprint: str
    created: int

    @property
    def model_name(self) -> str:
        """The name that answers carry."""
        return self.model_names[0]

    def check_model(self, name: str | None) -> None:
        """Raise NotFoundError for a name that is not served; None is the only model there is."""
        if name is not None and name not in self.model_names:
            raise NotFoundError(
                f"model {name[:200]!r} is not served here; known: {', '.join(self.model_names)}",
                param="model",
                code="model_not_found",
            )


class Lifecycle:
    """Owns the server's status; routes ask it for the `Serving`.

    Raises:
        ConfigError: the key file cannot be read.
    """

    def __init__(self, server: ServerConfig) -> None:
        self.server = server
        self.keys = KeyRing(server.api_key, server.api_key_file)
        self.http_metrics = HttpMetrics()
        self.tracer = Tracer(server.otlp_traces_endpoint) if server.otlp_traces_endpoint else None
        self._serving: Serving | None = None
        self._draining = False
        self._failure: str | None = None
        self._listeners: list[Callable[[Status], None]] = []

    @property
    def status(self) -> Status:
        """The status now."""
        if self._failure is not None:
            return Status.FAILED
        if self._draining:
            return Status.DRAINING
        if self._serving is None:
            return Status.LOADING
        if self._lost() is None:
            return Status.READY
        return Status.RESTARTING if self.server.restart_engine else Status.FAILED

    @property
    def loaded(self) -> Serving | None:
        """The serving, whatever became of its engine; None while loading."""
        return self._serving

    def serving(self) -> Serving:
        """For a new request.

        Raises:
            ServiceUnavailableError, EngineDeadError: it cannot be taken now.
        """
        match self.status:
            case Status.LOADING:
                raise ServiceUnavailableError("the model is still being loaded; try again soon")
            case Status.DRAINING:
                raise ServiceUnavailableError("the server is shutting down; send the request to another one")
            case Status.RESTARTING:
                raise ServiceUnavailableError("the engine was lost and is being started again; try again soon")
            case Status.FAILED:
                raise EngineDeadError(self._failure or str(self._lost()))
        assert self._serving is not None  # it is ready
        return self._serving

    def ready(self, serving: Serving) -> None:
        """Requests are taken from now on."""
        self._serving = serving
        self._tell()

    def drain(self) -> None:
        """New requests are refused from now on."""
        self._draining = True
        self._tell()

    def fail(self, cause: str) -> None:
        """The engine is lost for good."""
        self._failure = cause
        self._tell()

    def subscribe(self, listener: Callable[[Status], None]) -> None:
        """Have work that runs on its own told the status: now, and whenever it is changed here."""
        self._listeners.append(listener)
        listener(self.status)

    def _tell(self) -> None:
        for listener in self._listeners:
            listener(self.status)

    def _lost(self) -> EngineDeadError | None:
        if self._serving is None:
            return None
        try:
            self._serving.engine.check_health()
        except EngineDeadError as err:
            return err
        return None


def make_serving(engine: Engine, server: ServerConfig) -> Serving:
    """Derive what routes need from a loaded engine."""
    config, tokenizer = engine.config, engine.tokenizer
    assert engine.facts is not None  # it is loaded
    template = make_template(config, tokenizer)
    names = config.model.served_model_name or (config.served_model_name,)
    facts = ModelFacts(
        model_name=names[0],
        max_model_len=config.max_model_len,
        block_size=config.cache.block_size,
        num_blocks=next(iter(config.cache.num_blocks), 0),
        enable_prefix_caching=config.cache.enable_prefix_caching,
        cache_dtype=config.cache.kv_cache_dtype,
        gpu_memory_utilization=config.cache.gpu_memory_utilization,
    )
    metrics = Metrics(facts, engine.stats, vllm_names=server.metrics_prefix_vllm)
    engine.on_step = metrics.step_tokens.observe
    return Serving(
        engine=engine,
        config=config,
        model_names=tuple(names),
        defaults=default_sampling_params(config),
        prompts=PromptReader(tokenizer, template, config.spec.vocab_size, config.max_model_len),
        turns=Turns(server, template.sources.values(), tokenizer),
        metrics=metrics,
        request_log=RequestLog(server, tokenizer),
        fingerprint=fingerprint(config, engine.facts.numerics),
        created=int(time.time()),
    )


def fingerprint(config: EngineConfig, numerics: str) -> str:
    """A short hash of what decides an answer's bits, as far as it is known without reading the weights.

    Args:
        numerics: as in `EngineFacts`.
    """
    spec = config.spec
    parts = (VERSION, spec.architecture, spec.checkpoint_dtype, spec.hf_config, spec.name, config.dtype,
             config.kv_dtype, config.device.device, numerics, config.model.logprobs_mode)  # fmt: skip
    return "fp_" + hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def lifecycle_of(request: Request) -> Lifecycle:
    """The app's lifecycle."""
    lifecycle: Lifecycle = request.app.state.lifecycle
    return lifecycle
