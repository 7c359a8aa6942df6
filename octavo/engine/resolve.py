"""Resolve options, model and device into one frozen `EngineConfig`, and memory into pages: the only place where
"auto" becomes a value. Loads no tensor.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from octavo.config import CacheConfig, DType, EngineConfig, KVGroupSpec, ModelSpec, SchedulerConfig
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
    platform = select_platform(sections.device.device)
    spec = resolve_reference(sections.model, progress)
    _check_quantization(sections.model.quantization, spec)
    max_model_len = _resolve_max_model_len(sections.model.max_model_len, spec)
    return EngineConfig(
        model=sections.model,
        cache=_resolve_cache(sections.cache),
        scheduler=_resolve_scheduler(sections.scheduler, max_model_len, platform),
        device=replace(sections.device, device=platform.name),
        spec=spec,
        dtype=_resolve_dtype(sections.model.dtype, spec, platform),
        max_model_len=max_model_len,
        served_model_name=(sections.model.served_model_name or (spec.name,))[0],
    )


def with_kv_blocks(config: EngineConfig, groups: Sequence[KVGroupSpec], free_bytes: int) -> EngineConfig:
    """Fill in `cache.num_blocks`, one count per group.

    Every group has the same number of pages, except that a sliding group gets no more than all sequences together can
    hold at once. `--num-gpu-blocks-override` decides alone; `--kv-cache-memory-bytes` replaces `free_bytes`; without
    either, no more is taken than twice what `max_num_seqs` requests of full length need.

    Args:
        free_bytes: memory that the pages may take, by the platform's own rule.

    Raises:
        ConfigError: not one page fits.
    """
    cache, scheduler = config.cache, config.scheduler
    page_bytes = [group.block_bytes(cache.block_size, config.kv_dtype) for group in groups]
    limits = [_useful_blocks(config, group) for group in groups]

    def blocks(count: int) -> tuple[int, ...]:
        return tuple(count if limit is None else min(count, limit) for limit in limits)

    if cache.num_gpu_blocks_override is not None:
        num_blocks = (cache.num_gpu_blocks_override,) * len(groups)
    else:
        pool_bytes, most = free_bytes, 2 * scheduler.max_num_seqs * _ceil_div(config.max_model_len, cache.block_size)
        if cache.kv_cache_memory_bytes is not None:
            pool_bytes = parse_size("kv_cache_memory_bytes", cache.kv_cache_memory_bytes)
            most = pool_bytes
        count = _largest(most, lambda n: sum(b * p for b, p in zip(blocks(n), page_bytes, strict=True)) <= pool_bytes)
        if count == 0:
            raise ConfigError(
                f"the KV pool of {pool_bytes} bytes does not hold one page of {sum(page_bytes)} bytes; "
                "raise --kv-cache-memory-bytes or lower --block-size"
            )
        num_blocks = blocks(count)
    return replace(config, cache=replace(cache, num_blocks=num_blocks))


def fit_max_model_len(config: EngineConfig, pool_tokens: int) -> EngineConfig:
    """Bring `max_model_len` and the pool together: "auto" shrinks to what fits; another length stays, with a warning.

    Args:
        pool_tokens: most tokens of one request that the pages hold.
    """
    if pool_tokens >= config.max_model_len:
        return config
    if _is_auto(config.model.max_model_len):
        logger.info("max_model_len is %d: what the KV pool holds", pool_tokens)
        return replace(config, max_model_len=pool_tokens)
    logger.warning(
        "the KV pool holds %d tokens but max_model_len is %d: a request of more than %d tokens will be refused; "
        "raise --kv-cache-memory-bytes, or set --max-model-len auto",
        pool_tokens,
        config.max_model_len,
        pool_tokens,
    )
    return config


def _useful_blocks(config: EngineConfig, group: KVGroupSpec) -> int | None:
    """Most pages of a group that all running sequences together can hold; None for a full group, which may hold all.

    A sequence of a sliding group holds its window, one step's tokens, and one page more for the alignment.
    """
    if group.window is None:
        return None
    per_sequence = _ceil_div(group.window + config.token_budget, config.cache.block_size) + 1
    return per_sequence * config.scheduler.max_num_seqs


def _resolve_max_model_len(value: int | str | None, spec: ModelSpec) -> int:
    if value is None or _is_auto(value):
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


def _is_auto(value: int | str | None) -> bool:
    return value in ("auto", -1, "-1")


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
    return replace(scheduler, max_num_batched_tokens=budget)


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


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest n in 0..most for which `fits(n)`; true for all smaller n."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)
