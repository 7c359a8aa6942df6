"""Resolve options, model and device into one frozen `EngineConfig`: where "auto" becomes a value. Loads no tensor; what
only the loaded model can tell is filled in by `kv_blocks.py`.
"""

from dataclasses import replace

from octavo.config import CacheConfig, DType, EngineConfig, ModelSpec, SchedulerConfig
from octavo.engine.chat import given_template
from octavo.engine.kv_blocks import is_auto_length
from octavo.engine.options import Sections, make_sections, parse_size
from octavo.errors import ConfigError
from octavo.loader.resolve import resolve_reference
from octavo.logging import get_logger
from octavo.messages import Progress
from octavo.platforms.interface import Platform
from octavo.platforms.registry import select_platform
from octavo.registry import load_plugins

logger = get_logger(__name__)

DTYPE_NAMES: dict[str, DType] = {
    "float32": "float32",
    "float": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "half": "float16",
}

FLOAT16_OVERFLOWS = ("Gemma",)
"""Architectures, by the start of their name, whose activations exceed 65504, the largest float16."""


def make_config(progress: Progress | None = None, /, **options: object) -> EngineConfig:
    """Build the configuration of an engine from flat options, by the names of `octavo.config`.

    Args:
        progress: told about files that have to be fetched first.
        options: e.g. `model="smollm2-135m-instruct", max_model_len="4k"`; None is the default.

    Raises:
        ConfigError: options that are unknown, out of bounds, not in this version, or do not fit the model or device.
        ModelError: the model cannot be found or read.
    """
    load_plugins()
    return resolve_sections(make_sections(options), progress)


def resolve_sections(sections: Sections, progress: Progress | None = None) -> EngineConfig:
    """As `make_config`, from sections that were built already."""
    given_template(sections.model.chat_template)  # what is wrong with it is told before the model is fetched
    platform = select_platform(sections.device.device)
    spec = resolve_reference(sections.model, progress)
    _check_quantization(sections.model.quantization, spec)
    max_model_len = _resolve_max_model_len(sections.model.max_model_len, spec)
    return EngineConfig(
        model=sections.model,
        cache=_resolve_cache(sections.cache),
        scheduler=_resolve_scheduler(sections.scheduler, max_model_len, platform),
        device=replace(sections.device, device=platform.name, distributed_executor_backend="uni"),
        spec=spec,
        dtype=_resolve_dtype(sections.model.dtype, spec, platform),
        max_model_len=max_model_len,
        served_model_name=(sections.model.served_model_name or (spec.name,))[0],
    )


def _resolve_max_model_len(value: int | str | None, spec: ModelSpec) -> int:
    if value is None or is_auto_length(value):
        return spec.context_length
    length = parse_size("max_model_len", value)
    if length < 1:
        raise ConfigError(f"--max-model-len is {value} but must be at least 1, or auto")
    if length > spec.context_length:
        raise ConfigError(
            f"--max-model-len is {length} but {spec.name} was made for {spec.context_length} tokens; lower it, "
            "or give the model a rope scaling with --hf-overrides"
        )
    return length


def _resolve_cache(cache: CacheConfig) -> CacheConfig:
    if cache.kv_cache_memory_bytes is None:
        return cache
    size = parse_size("kv_cache_memory_bytes", cache.kv_cache_memory_bytes)
    if size < 1:
        raise ConfigError(f"--kv-cache-memory-bytes is {cache.kv_cache_memory_bytes} but must be at least 1")
    return replace(cache, kv_cache_memory_bytes=size)


def _resolve_scheduler(scheduler: SchedulerConfig, max_model_len: int, platform: Platform) -> SchedulerConfig:
    budget = scheduler.max_num_batched_tokens
    if budget is None:
        budget = platform.default_token_budget
        if not scheduler.enable_chunked_prefill:
            budget = max(budget, max_model_len)
    if not scheduler.enable_chunked_prefill and budget < max_model_len:
        raise ConfigError(
            f"--max-num-batched-tokens is {budget} but without chunked prefill a step must hold a prompt of "
            f"max_model_len {max_model_len} tokens; raise it, lower --max-model-len, or use --enable-chunked-prefill"
        )
    memory_bound_tokens = scheduler.memory_bound_tokens or platform.memory_bound_tokens
    return replace(scheduler, max_num_batched_tokens=budget, memory_bound_tokens=memory_bound_tokens)


def _resolve_dtype(requested: str, spec: ModelSpec, platform: Platform) -> DType:
    best = DTYPE_NAMES[platform.default_dtype]
    dtype = best if requested == "auto" else DTYPE_NAMES[requested]
    if dtype == "float16" and spec.architecture.startswith(FLOAT16_OVERFLOWS):
        safe: DType = "float32" if best == "float32" else "bfloat16"
        logger.warning("%s overflows in float16; computing in %s instead", spec.architecture, safe)
        return safe
    return dtype


def _check_quantization(requested: str | None, spec: ModelSpec) -> None:
    """Weights are read in the format they are stored in; another one cannot be asked for."""
    if requested is None:
        return
    stored = {spec.checkpoint_dtype.lower(), *(["gguf"] if spec.format == "gguf" else [])}
    if requested.lower() not in stored:
        raise ConfigError(
            f"--quantization is {requested!r} but {spec.name} is stored as {spec.checkpoint_dtype}; "
            "weights are not quantized while loading: remove the option, or choose a checkpoint in that format"
        )
