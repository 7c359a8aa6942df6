from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config import CacheConfig, KVGroupSpec, ModelConfig
from octavo.engine.kv_blocks import fit_max_model_len, with_kv_blocks
from octavo.errors import ConfigError
from tests.core.worlds import FULL, sliding
from tests.engine.worlds import make_engine_config

WIDE = KVGroupSpec("full", num_layers=3, num_kv_heads=2, head_dim=8)


def sized(groups, free_bytes, *, cache=None, **options):
    config = make_engine_config(**options)
    config = replace(config, cache=replace(CacheConfig(block_size=4), **(cache or {})))
    return with_kv_blocks(config, groups, free_bytes)


def test_all_full_groups_get_the_same_number_of_pages():
    page_bytes = WIDE.block_bytes(4, "float32") + FULL.block_bytes(4, "float32")
    config = sized([WIDE, FULL], page_bytes * 10 + page_bytes - 1)
    assert config.cache.num_blocks == (10, 10)


def test_a_sliding_group_gets_no_more_than_its_sequences_can_hold():
    # 8 sequences of ceil((6 + 10) / 4) + 1 pages each
    config = sized([WIDE, sliding(6)], 1 << 20, token_budget=10, max_num_seqs=8)
    assert config.cache.num_blocks[1] == 40 < config.cache.num_blocks[0]


def test_what_a_sliding_group_leaves_goes_to_the_full_one():
    page = [group.block_bytes(4, "float32") for group in (WIDE, sliding(6))]
    config = sized([WIDE, sliding(6)], 50 * page[0] + 40 * page[1], token_budget=10, max_num_seqs=8)
    assert config.cache.num_blocks == (50, 40)


def test_the_override_decides_alone():
    assert sized([WIDE, sliding(6)], 0, cache={"num_gpu_blocks_override": 7}).cache.num_blocks == (7, 7)


def test_the_pool_size_option_replaces_the_share_and_its_limit():
    page_bytes = FULL.block_bytes(4, "float32")
    cache = {"kv_cache_memory_bytes": page_bytes * 5000}
    assert sized([FULL], 1, cache=cache).cache.num_blocks == (5000,)


def test_without_options_no_more_is_taken_than_twice_what_all_seats_can_use():
    config = sized([FULL], 1 << 40, max_num_seqs=3, context_length=100)
    assert config.cache.num_blocks == (2 * 3 * 25,)


def test_a_pool_without_a_single_page_is_refused_with_both_sizes():
    with pytest.raises(ConfigError, match=f"31 bytes does not hold one page of {FULL.block_bytes(4, 'float32')} bytes"):
        sized([FULL], 31)


@given(
    st.lists(st.sampled_from([WIDE, FULL, sliding(3), sliding(50)]), min_size=1, max_size=4), st.integers(1, 1 << 22)
)
def test_pages_fit_the_memory_and_one_more_of_each_would_not(groups, free_bytes):
    page = [group.block_bytes(4, "float32") for group in groups]
    if sum(page) > free_bytes:
        return
    counts = sized(groups, free_bytes, context_length=1 << 20).cache.num_blocks
    assert sum(c * p for c, p in zip(counts, page, strict=True)) <= free_bytes
    growing = [p for c, p in zip(counts, page, strict=True) if c == max(counts)]
    is_capped = all(group.window is not None for group in groups)
    assert is_capped or sum(c * p for c, p in zip(counts, page, strict=True)) + sum(growing) > free_bytes


def test_auto_length_shrinks_to_the_pool_and_a_fixed_one_stays_with_a_warning(caplog):
    fixed = make_engine_config(context_length=256)
    assert fit_max_model_len(fixed, 100).max_model_len == 256
    assert "more than 100 tokens will be refused" in caplog.text
    for auto in ("auto", -1):
        config = replace(fixed, model=ModelConfig(max_model_len=auto))
        assert fit_max_model_len(config, 100).max_model_len == 100
        assert fit_max_model_len(config, 1000).max_model_len == 256
