"""Pages of requests: what is shared, what is let go, what is refused."""

import pytest

from octavo.core.kv_cache_manager import MAX_MAPPED_PAGES, KVCacheManager
from octavo.core.request import Request
from octavo.errors import ConfigError
from tests.core.worlds import FULL, make_request, sliding

TOKENS = [7 * i % 31 for i in range(64)]


def make_manager(*groups, num_blocks=16, block_size=4, caching=True):
    counts = [num_blocks] * len(groups) if isinstance(num_blocks, int) else num_blocks
    return KVCacheManager(groups, counts, block_size, caching)


def new(prompt, **options):
    return Request(make_request("r", prompt, **options), rank=(0, 0), max_total_tokens=1000)


def admit(kv, request, prefix=None, num_tokens=None):
    """Admit and compute at once."""
    prefix = prefix or kv.get_computed_blocks(request)
    num_wanted = num_tokens or request.num_tokens - prefix.num_tokens
    num_got = kv.admit(
        request,
        prefix,
        num_wanted,
        min_new_tokens=1,
        num_reserved_tokens=0,
        num_kept_blocks=[0] * len(kv.pools),
    )
    if num_got:
        request.num_computed_tokens = prefix.num_tokens + num_got
        kv.cache_computed_blocks(request)
    return num_got


def compute(kv, request, num_tokens):
    """Compute more tokens of an admitted request; its new block ids."""
    allocation = kv.allocate_slots(request, num_tokens)
    request.num_computed_tokens += allocation.num_tokens
    kv.cache_computed_blocks(request)
    return allocation.block_ids


@pytest.mark.parametrize("length, num_cached", [(3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (31, 28), (32, 28), (33, 32)])
def test_a_full_hit_is_whole_blocks_and_leaves_a_token_to_compute(length, num_cached):
    kv = make_manager(FULL)
    first = new(TOKENS[:length])
    admit(kv, first)
    again = kv.get_computed_blocks(new(TOKENS[:length]))
    assert again.num_tokens == num_cached
    assert again.block_ids == [first.block_table.groups[0][: num_cached // 4]]


def test_a_prompt_that_differs_inside_a_block_does_not_reuse_it():
    kv = make_manager(FULL)
    admit(kv, new(TOKENS[:16]))
    assert kv.get_computed_blocks(new([*TOKENS[:10], 99, *TOKENS[11:16]])).num_tokens == 8


def test_a_block_is_not_found_before_its_tokens_are_computed():
    kv = make_manager(FULL)
    request = new(TOKENS[:16])
    admit(kv, request, num_tokens=9)
    assert kv.get_computed_blocks(new(TOKENS[:16])).num_tokens == 8


def test_generated_tokens_are_cached_too():
    kv = make_manager(FULL)
    request = new(TOKENS[:6])
    admit(kv, request)
    for token_id in TOKENS[6:9]:
        request.extend([token_id])
        compute(kv, request, 1)
    assert kv.get_computed_blocks(new(TOKENS[:20])).num_tokens == 8


def test_other_salts_and_caching_off_share_nothing():
    kv = make_manager(FULL)
    admit(kv, new(TOKENS[:16], cache_salt="a"))
    assert kv.get_computed_blocks(new(TOKENS[:16], cache_salt="a")).num_tokens == 12
    assert kv.get_computed_blocks(new(TOKENS[:16], cache_salt="b")).num_tokens == 0
    assert kv.get_computed_blocks(new(TOKENS[:16])).num_tokens == 0
    off = make_manager(FULL, caching=False)
    admit(off, new(TOKENS[:16]))
    assert off.get_computed_blocks(new(TOKENS[:16])).num_tokens == 0


def test_a_request_with_prompt_logprobs_does_not_read_the_cache_but_fills_it():
    kv = make_manager(FULL)
    admit(kv, new(TOKENS[:16], prompt_logprobs=1))
    assert kv.get_computed_blocks(new(TOKENS[:16], prompt_logprobs=1)).num_tokens == 0
    assert kv.get_computed_blocks(new(TOKENS[:16])).num_tokens == 12


def test_the_tail_of_a_prompt_is_evicted_before_its_head():
    kv = make_manager(FULL, num_blocks=4)
    request = new(TOKENS[:16])
    admit(kv, request)
    kv.free(request)
    for num_left in (12, 8, 4):
        other = new([50 + num_left] * 4)
        admit(kv, other)
        assert kv.get_computed_blocks(new(TOKENS[:17])).num_tokens == num_left


def test_a_sliding_group_lets_pages_go_once_the_window_has_passed_them():
    kv = make_manager(sliding(5), FULL, num_blocks=16)
    request = new(TOKENS[:40])
    admit(kv, request, num_tokens=8)
    compute(kv, request, 8)
    assert request.block_table.groups[0][0] >= 0, "a query at position 8 still sees 4"
    compute(kv, request, 1)
    table = request.block_table
    assert table.groups[0][:2] == [-1, -1] and -1 not in table.groups[0][2:]
    assert -1 not in table.groups[1] and len(table.groups[1]) == len(table.groups[0]) == 5
    assert (kv.pools[0].num_used, kv.pools[1].num_used) == (3, 5)


def test_a_hit_needs_every_page_of_full_groups_and_the_last_window_of_sliding_ones():
    kv = make_manager(sliding(5), FULL, num_blocks=(16, 16))
    request = new(TOKENS[:32])
    admit(kv, request)
    prefix = kv.get_computed_blocks(new(TOKENS[:29]))
    # A query at 28 sees 24..28: of the sliding group only block 6 is needed.
    assert prefix.num_tokens == 28
    assert prefix.block_ids == [[-1] * 6 + request.block_table.groups[0][6:7], request.block_table.groups[1][:7]]


@pytest.mark.parametrize("block_size", [1, 2, 4])
@pytest.mark.parametrize("window", range(1, 10))
def test_a_hit_brings_exactly_the_pages_that_the_next_query_sees(window, block_size):
    kv = make_manager(sliding(window), num_blocks=64, block_size=block_size)
    admit(kv, new(TOKENS[:25]))
    num_tokens, (table,), _ = kv.get_computed_blocks(new(TOKENS[:25]))
    seen = {position // block_size for position in range(max(0, num_tokens - window + 1), num_tokens)}
    assert num_tokens == 24
    assert {index for index, block_id in enumerate(table) if block_id >= 0} == seen and len(table) == 24 // block_size


@pytest.mark.parametrize("num_common", [1, 5, 8, 9])
def test_a_fork_shares_no_more_than_the_tokens_both_have(num_common):
    kv = make_manager(FULL, caching=False)
    parent, child = new(TOKENS[:12]), new([*TOKENS[:num_common], 99, 98])
    admit(kv, parent)
    child.num_common_tokens = num_common
    assert kv.fork(parent, child).num_tokens == num_common


def test_a_gap_in_the_window_shortens_the_hit_to_where_a_window_is_whole():
    kv = make_manager(sliding(9), FULL, num_blocks=16)
    request = new(TOKENS[:32])
    admit(kv, request)
    kv.free(request)
    pool = kv.pools[0]
    hashes = request.block_hashes
    # Of the sliding group keep blocks 0, 1, 3 and 4: a query at 20 needs 12..20, so blocks 3 and 4.
    keep = [pool.lookup(hashes[i]) for i in (0, 1, 3, 4)]
    pool.share(keep)
    pool.allocate(pool.num_free)
    assert kv.get_computed_blocks(new(TOKENS[:32])).num_tokens == 20
    assert kv.get_computed_blocks(new(TOKENS[:20])).num_tokens == 8


def test_two_sliding_groups_agree_on_one_length():
    kv = make_manager(sliding(5), sliding(9), num_blocks=16)
    request = new(TOKENS[:32])
    admit(kv, request)
    kv.free(request)
    for pool, kept in zip(kv.pools, [(0, 2, 4), (0, 1, 3, 4)], strict=True):
        pool.share([pool.lookup(request.block_hashes[i]) for i in kept])
        pool.allocate(pool.num_free)
    # The first would do with 20, 12 or 4 tokens; the second with 20, 8 or 4.
    assert kv.get_computed_blocks(new(TOKENS[:32])).num_tokens == 20
    assert kv.get_computed_blocks(new(TOKENS[:20])).num_tokens == 4


def test_a_fork_shares_full_pages_and_copies_the_partial_one():
    kv = make_manager(FULL, caching=False)
    parent, child = new(TOKENS[:11]), new(TOKENS[:11])
    admit(kv, parent)
    kv.take_zero_block_ids()
    child.num_common_tokens = 11
    prefix = kv.fork(parent, child)
    assert prefix.num_tokens == 10, "the last token is computed again"
    admit(kv, child, prefix)
    ours, theirs = child.block_table.groups[0], parent.block_table.groups[0]
    assert ours[:2] == theirs[:2] and ours[2] != theirs[2]
    assert [(copy.src, copy.dst) for copy in kv.take_copies()] == [(theirs[2], ours[2])]
    assert kv.take_zero_block_ids() == [[]]
    kv.free(parent)
    assert kv.pools[0].num_used == 3
    kv.free(child)
    assert kv.pools[0].num_used == 0


def test_a_fork_at_a_page_boundary_copies_nothing():
    kv = make_manager(FULL, caching=False)
    parent, child = new(TOKENS[:9]), new(TOKENS[:9])
    admit(kv, parent)
    child.num_common_tokens = 9
    admit(kv, child, kv.fork(parent, child))
    assert kv.take_copies() == []
    assert child.block_table.groups[0][:2] == parent.block_table.groups[0][:2]


def test_the_source_of_a_copy_is_not_handed_out_before_the_copy_is_taken():
    kv = make_manager(FULL, num_blocks=3, caching=False)
    parent, child = new(TOKENS[:6]), new(TOKENS[:6])
    admit(kv, parent)
    child.num_common_tokens = 6
    admit(kv, child, kv.fork(parent, child))
    source = parent.block_table.groups[0][1]
    kv.free(parent)
    assert kv.pools[0].num_free == 0
    assert kv.take_copies()[0].src == source
    assert kv.pools[0].allocate(1) == [source]


def test_a_fork_whose_window_has_passed_shares_nothing():
    kv = make_manager(sliding(4), FULL)
    parent, child = new(TOKENS[:30]), new(TOKENS[:9])
    admit(kv, parent, num_tokens=16)
    compute(kv, parent, 1)
    child.num_common_tokens = 9
    assert kv.fork(parent, child) is None


@pytest.mark.parametrize("window", [1, 4, 5, 8])
def test_a_fork_right_after_its_parent_went_on_by_a_token_still_finds_its_window(window):
    for length in range(2, 30):
        kv = make_manager(sliding(window))
        parent, child = new(TOKENS[:length]), new(TOKENS[:length])
        admit(kv, parent)
        parent.extend([1])
        compute(kv, parent, 1)
        child.num_common_tokens = length
        assert kv.fork(parent, child).num_tokens == length - 1


def test_admission_needs_room_for_the_whole_prompt_and_what_is_kept_for_others():
    kv = make_manager(FULL, num_blocks=4)
    request = new(TOKENS[:13])
    prefix = kv.no_prefix
    options = {"min_new_tokens": 1, "num_reserved_tokens": 0}
    assert kv.admit(request, prefix, 4, num_kept_blocks=[1], **options) == 0
    assert kv.pools[0].num_free == 4 and request.block_table.groups == []
    assert kv.admit(request, prefix, 4, num_kept_blocks=[0], **options) == 4
    assert kv.pools[0].num_used == 1 and kv.num_owed_blocks(request) == [3]


def test_pages_of_a_hit_that_are_free_are_not_counted_as_room():
    kv = make_manager(FULL, num_blocks=4)
    request = new(TOKENS[:16])
    admit(kv, request)
    kv.free(request)
    again = new(TOKENS[:20])
    assert kv.get_computed_blocks(again).num_tokens == 16
    assert admit(kv, again) == 0


def test_a_chunk_is_cut_to_what_a_small_sliding_pool_holds():
    kv = make_manager(sliding(4), FULL, num_blocks=(2, 8))
    request = new(TOKENS[:32])
    assert admit(kv, request) == 8
    num_computed = [request.num_computed_tokens]
    while num_computed[-1] < 32:
        compute(kv, request, 32)
        num_computed.append(request.num_computed_tokens)
    assert num_computed == [8, 12, 16, 20, 24, 28, 32]


def test_capacity_counts_windows_only_when_prompts_may_be_chunked():
    kv = make_manager(sliding(8), FULL, num_blocks=(3, 10))
    assert kv.max_request_tokens(whole_prompts=False) == 40
    assert kv.max_request_tokens(whole_prompts=True) == 12
    assert kv.shortage(40) is None
    assert kv.shortage(41) == ("full", 11, 10)
    assert kv.shortage(13, num_step_tokens=13) == ("sliding-8", 4, 3)
    assert make_manager(sliding(8), num_blocks=2).max_request_tokens(whole_prompts=False) == 8


def test_zeroed_pages_are_those_handed_out_and_are_told_once():
    kv = make_manager(FULL, sliding(5))
    admit(kv, new(TOKENS[:8]))
    shared = new(TOKENS[:8])
    kv.take_zero_block_ids()
    admit(kv, shared)
    tables = shared.block_table.groups
    assert kv.take_zero_block_ids() == [tables[0][1:], tables[1][1:]]
    assert kv.take_zero_block_ids() == [[], []]


def test_the_cache_is_reset_only_while_nobody_holds_pages():
    kv = make_manager(FULL)
    request = new(TOKENS[:16])
    admit(kv, request)
    assert not kv.reset_prefix_cache()
    kv.free(request)
    assert kv.get_computed_blocks(new(TOKENS[:16])).num_tokens == 12
    assert kv.reset_prefix_cache()
    assert kv.get_computed_blocks(new(TOKENS[:16])).num_tokens == 0


def test_a_group_without_pages_stops_the_start():
    with pytest.raises(ConfigError, match="'sliding-4' has 0 pages"):
        make_manager(FULL, sliding(4), num_blocks=(3, 0))
    with pytest.raises(ConfigError, match="2 KV groups but 1 page counts"):
        make_manager(FULL, sliding(4), num_blocks=(3,))


@pytest.mark.parametrize(("num_blocks", "stride"), [(1, 1), (4096, 1), (4097, 2), (100_000, 25)])
def test_a_map_of_pages_stays_small_however_many_there_are(num_blocks, stride):
    kv = make_manager(FULL, num_blocks=num_blocks)
    [pages] = kv.page_maps()
    assert (pages.num_blocks, pages.stride) == (num_blocks, stride)
    assert len(pages.states) == -(-num_blocks // stride) <= MAX_MAPPED_PAGES
