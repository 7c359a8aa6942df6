"""From free memory to KV pages, once the model is loaded and its KV groups are known. Arithmetic; allocates nothing."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from octavo.config import EngineConfig, KVGroupSpec
from octavo.engine.options import parse_size
from octavo.errors import ConfigError
from octavo.logging import get_logger

logger = get_logger(__name__)


def with_kv_blocks(config: EngineConfig, groups: Sequence[KVGroupSpec], free_bytes: int) -> EngineConfig:
    """Fill in `cache.num_blocks`, one count per group.

    Every group has the same number of pages, except that a sliding group gets no more than all sequences together can
    hold at once. `--num-gpu-blocks-override` decides alone; `--kv-cache-memory-bytes` replaces `free_bytes`; without
    either, no more is taken than twice what `max_num_seqs` requests of full length need. A count that is there already
    stays: an engine that is started again has the sizes it had.

    Args:
        free_bytes: memory that the pages may take, by the platform's own rule.

    Raises:
        ConfigError: not one page fits.
    """
    cache, scheduler = config.cache, config.scheduler
    if cache.num_blocks:
        return config
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
    if is_auto_length(config.model.max_model_len):
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


def is_auto_length(value: int | str | None) -> bool:
    """Whether a `max_model_len` means "as many tokens as the pool holds"."""
    return value in ("auto", -1, "-1")


def _useful_blocks(config: EngineConfig, group: KVGroupSpec) -> int | None:
    """Most pages of a group that all running sequences together can hold; None for a full group, which may hold all.

    A sequence of a sliding group holds its window, one step's tokens, and one page more for the alignment.
    """
    if group.window is None:
        return None
    per_sequence = _ceil_div(group.window + config.token_budget, config.cache.block_size) + 1
    return per_sequence * config.scheduler.max_num_seqs


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest n in 0..most for which `fits(n)`; true for all smaller n."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)
