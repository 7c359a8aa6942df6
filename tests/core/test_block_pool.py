"""The pool against a model made of plain lists."""

import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo.core.block_pool import BlockPool
from tests.core.invariants import check_pool

NUM_EXAMPLES = int(os.environ.get("OCTAVO_TEST_EXAMPLES", "60"))


def test_blank_pages_are_handed_out_before_cached_ones_and_those_least_recently_freed_first():
    pool = BlockPool(4)
    first, second, third = pool.allocate(3)
    pool.cache(first, b"1")
    pool.cache(second, b"2")
    pool.free([second, third, first])
    assert third in pool.allocate(2)
    assert (pool.lookup(b"1"), pool.lookup(b"2")) == (first, second)
    assert pool.allocate(2) == [second, first]
    assert (pool.lookup(b"1"), pool.lookup(b"2")) == (None, None)


def test_a_cached_page_that_is_shared_again_is_not_evicted():
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.cache(first, b"1")
    pool.cache(second, b"2")
    pool.free([first, second])
    pool.share([first])
    assert pool.num_idle([first, second]) == 1
    assert pool.allocate(1) == [second]
    assert pool.num_free == 0 and pool.lookup(b"1") == first


def test_a_twin_of_a_cached_page_stays_anonymous_and_is_blank_when_freed():
    pool = BlockPool(2)
    first, twin = pool.allocate(2)
    pool.cache(first, b"1")
    pool.cache(twin, b"1")
    pool.free([first, twin])
    assert pool.lookup(b"1") == first
    assert pool.allocate(1) == [twin]


def test_clearing_the_cache_forgets_contents_but_not_holders():
    pool = BlockPool(2)
    used, freed = pool.allocate(2)
    pool.cache(used, b"1")
    pool.cache(freed, b"2")
    pool.free([freed])
    pool.clear_cache()
    assert (pool.lookup(b"1"), pool.lookup(b"2"), pool.num_used, pool.num_free) == (None, None, 1, 1)
    check_pool(pool)


def test_freeing_a_page_twice_is_caught():
    pool = BlockPool(1)
    block_ids = pool.allocate(1)
    pool.free(block_ids)
    with pytest.raises(AssertionError, match="freed more often"):
        pool.free(block_ids)


class PoolLife(RuleBasedStateMachine):
    """Random use of a pool, mirrored in lists."""

    @initialize(num_blocks=st.integers(1, 8))
    def start(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.holders: list[int] = []  # one entry per hold
        self.hash_of: dict[int, bytes] = {}
        self.freed: list[int] = []  # free and known by hash, least recently freed first

    @rule(count=st.integers(0, 4))
    def allocate(self, count: int) -> None:
        count = min(count, self.pool.num_free)
        num_blank = self.pool.num_free - len(self.freed)
        evicted = self.freed[: max(0, count - num_blank)]
        block_ids = self.pool.allocate(count)
        assert len(set(block_ids)) == count and not set(block_ids) & set(self.holders)
        assert [block_id for block_id in block_ids if block_id in self.freed] == evicted
        for block_id in evicted:
            del self.hash_of[block_id]
        self.freed = self.freed[len(evicted) :]
        self.holders += block_ids

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        block_ids = data.draw(st.lists(st.sampled_from(self.holders), max_size=3, unique=True))
        self.pool.free(block_ids)
        for block_id in block_ids:
            self.holders.remove(block_id)
            if block_id not in self.holders and block_id in self.hash_of:
                self.freed.append(block_id)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), content=st.integers(0, 9))
    def cache(self, data: st.DataObject, content: int) -> None:
        unknown = sorted(set(self.holders) - self.hash_of.keys())
        if unknown:
            block_id = data.draw(st.sampled_from(unknown))
            self.pool.cache(block_id, b"%d" % content)
            if b"%d" % content not in self.hash_of.values():
                self.hash_of[block_id] = b"%d" % content

    @precondition(lambda self: self.hash_of)
    @rule(data=st.data())
    def hit(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(sorted(self.hash_of)))
        assert self.pool.num_idle([block_id]) == (block_id in self.freed)
        self.pool.share([block_id])
        self.holders.append(block_id)
        if block_id in self.freed:
            self.freed.remove(block_id)

    @rule(dice=st.integers(0, 9))
    def clear(self, dice: int) -> None:
        if dice == 0:
            self.pool.clear_cache()
            self.hash_of.clear()
            self.freed.clear()

    @invariant()
    def agrees_with_the_model(self) -> None:
        if hasattr(self, "pool"):
            check_pool(self.pool)
            assert self.pool.ref_counts == [self.holders.count(b) for b in range(self.pool.num_blocks)]
            for content in range(10):
                found = self.pool.lookup(b"%d" % content)
                assert found == next((b for b, h in self.hash_of.items() if h == b"%d" % content), None)


TestPoolLife = PoolLife.TestCase
TestPoolLife.settings = settings(max_examples=NUM_EXAMPLES, stateful_step_count=40, deadline=None)
