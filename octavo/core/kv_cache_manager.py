"""Assign KV pages to requests, group by group. Deals in token ids and block ids; knows no tensors, rows or models.

A *full* group needs every page of a sequence. A *sliding* group needs the pages its window reaches; those before it are
let go and their table entry becomes -1. Each group has its own pool. Two requests share only full pages, never one that
either of them still writes to: a fork gets a copy of its parent's partial page.
"""

import sys
from collections.abc import Sequence
from typing import NamedTuple

from octavo.config import KVGroupSpec
from octavo.core.block_pool import BlockPool
from octavo.core.block_table import BlockTable
from octavo.core.request import Request
from octavo.errors import ConfigError
from octavo.messages import BlockCopy, PageMap

MAX_MAPPED_PAGES = 4096
"""A `PageMap` tells of no more pages than this, so that it costs a fraction of a step however many there are."""


class Prefix(NamedTuple):
    """Leading tokens of a request whose pages exist already.

    Attributes:
        block_ids: per group, its whole pages, -1 where the window has passed.
        tail_block_ids: per group, the page to copy for the last `num_tokens % block_size` tokens; empty if none.
    """

    num_tokens: int
    block_ids: list[list[int]]
    tail_block_ids: list[int]


class Allocation(NamedTuple):
    """Tokens that got room, and the pages that were added per group for them."""

    num_tokens: int
    block_ids: list[list[int]]


class Shortage(NamedTuple):
    """A group whose pool is too small for a request even when it is alone."""

    group: str
    num_needed: int
    num_blocks: int


class KVCacheManager:
    """Block tables of all requests over one pool per group.

    Args:
        groups: kinds of attention; at least one.
        num_blocks: pages per group.
        block_size: tokens per page, the same in all groups.
        enable_prefix_caching: whether finished pages stay findable by content.

    Raises:
        ConfigError: a group without pages.
    """

    def __init__(
        self, groups: Sequence[KVGroupSpec], num_blocks: Sequence[int], block_size: int, enable_prefix_caching: bool
    ) -> None:
        if not groups or len(groups) != len(num_blocks):
            raise ConfigError(f"{len(groups)} KV groups but {len(num_blocks)} page counts; give one count per group")
        for group, count in zip(groups, num_blocks, strict=True):
            if count < 1:
                raise ConfigError(
                    f"KV group {group.name!r} has {count} pages but needs at least 1; raise --kv-cache-memory-bytes"
                )
        self.groups = tuple(groups)
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.pools = [BlockPool(count) for count in num_blocks]
        self._windows = [group.window for group in groups]
        self._sliding = [(g, window) for g, window in enumerate(self._windows) if window is not None]
        self._to_zero: list[list[int]] = [[] for _ in groups]
        self._copies: list[BlockCopy] = []
        self._num_entries = 0  # of all requests' tables, all groups
        self._num_computed_tokens = 0  # of all requests that have a table
        self.no_prefix = Prefix(0, [[] for _ in groups], [])

    # ------------------------------------------------------------ how much fits

    def num_resident_blocks(self, group: int, num_tokens: int, num_step_tokens: int = 1) -> int:
        """Most pages that one request of `num_tokens` holds at once when it computes `num_step_tokens` per step."""
        num_blocks = -(-num_tokens // self.block_size)
        window = self._windows[group]
        if window is None:
            return num_blocks
        # One token more than a query sees is kept (`_let_passed_go`): window + step tokens, wherever they start.
        return min(num_blocks, -(-(window + num_step_tokens - 1) // self.block_size) + 1)

    def shortage(self, num_tokens: int, num_step_tokens: int = 1) -> Shortage | None:
        """The first group whose pool cannot hold a lone request of `num_tokens`."""
        for index, (group, pool) in enumerate(zip(self.groups, self.pools, strict=True)):
            num_needed = self.num_resident_blocks(index, num_tokens, num_step_tokens)
            if num_needed > pool.num_blocks:
                return Shortage(group.name, num_needed, pool.num_blocks)
        return None

    def max_request_tokens(self, whole_prompts: bool) -> int:
        """Tokens of the longest lone request that fits; `sys.maxsize` if windows keep every group bounded.

        Args:
            whole_prompts: a request computes all its known tokens in one step, so that no page is let go meanwhile.
        """
        limit = sys.maxsize
        for index, pool in enumerate(self.pools):
            if whole_prompts or self.num_resident_blocks(index, sys.maxsize) > pool.num_blocks:
                limit = min(limit, pool.num_blocks * self.block_size)
        return limit

    def num_owed_blocks(self, request: Request) -> list[int]:
        """Per group, pages that an admitted request will still take for the tokens it has."""
        num_tokens = request.num_tokens
        return [
            max(0, self.num_resident_blocks(group, num_tokens) - request.block_table.num_held(group))
            for group in range(len(self.pools))
        ]

    # ------------------------------------------------------------ what can be shared

    def get_computed_blocks(self, request: Request) -> Prefix:
        """The longest prefix in the cache: all its pages in full groups, the last window of them in sliding groups."""
        # At least one token is left to compute: its output is what the request waits for.
        num_blocks = (request.num_tokens - 1) // self.block_size
        if not self.enable_prefix_caching or not request.reads_prefix_cache or num_blocks == 0:
            return self.no_prefix
        block_hashes = request.hash_blocks(num_blocks, self.block_size)
        num_blocks = self._longest_hit(block_hashes, num_blocks)
        num_tokens = num_blocks * self.block_size
        block_ids = []
        for pool, window in zip(self.pools, self._windows, strict=True):
            first = self._first_visible_block(num_tokens, window)
            found = [pool.lookup(block_hash) for block_hash in block_hashes[first:num_blocks]]
            block_ids.append([-1] * first + [block_id for block_id in found if block_id is not None])
        return Prefix(num_tokens, block_ids, [])

    def fork(self, parent: Request, child: Request) -> Prefix | None:
        """What `child` can share of the pages that `parent` has filled; None if nothing, or a window has passed it."""
        num_tokens = min(parent.num_computed_tokens, child.num_common_tokens, child.num_tokens - 1)
        if num_tokens <= 0:
            return None
        num_whole, num_used = num_tokens // self.block_size, -(-num_tokens // self.block_size)
        prefix = Prefix(num_tokens, [], [])
        for ids, window in zip(parent.block_table.groups, self._windows, strict=True):
            first = self._first_visible_block(num_tokens, window)
            if -1 in ids[first:num_used]:
                return None
            prefix.block_ids.append([-1] * first + ids[first:num_whole])
            prefix.tail_block_ids.extend(ids[num_whole:num_used])
        return prefix

    # ------------------------------------------------------------ giving and taking pages

    def admit(
        self,
        request: Request,
        prefix: Prefix,
        num_new_tokens: int,
        *,
        min_new_tokens: int,
        num_reserved_tokens: int,
        num_kept_blocks: Sequence[int],
    ) -> int:
        """Give a request that has no pages its prefix and room for the tokens after it.

        Admission needs room for *all* tokens the request has, though only this step's are allocated: a prompt that
        cannot be completed would only take pages from those who can.

        Args:
            min_new_tokens: fewer than this many new tokens are of no use.
            num_reserved_tokens: allocate pages for this many tokens at once, whatever is needed now.
            num_kept_blocks: per group, free pages that must be left for others.

        Returns:
            How many of `num_new_tokens` got room; 0 if none, and then nothing changed.
        """
        block_size = self.block_size
        num_total_tokens = max(request.num_tokens, num_reserved_tokens)
        num_new = num_new_tokens
        for group, (pool, shared) in enumerate(zip(self.pools, prefix.block_ids, strict=True)):
            held = shared[shared.count(-1) :]
            num_available = pool.num_free - pool.num_idle(held) - num_kept_blocks[group]
            if num_available < self.num_resident_blocks(group, num_total_tokens) - len(held):
                return 0
            num_new = min(num_new, (len(shared) + num_available) * block_size - prefix.num_tokens)
        if num_new < min_new_tokens:
            return 0

        table = BlockTable([ids.copy() for ids in prefix.block_ids])
        table.num_cached_blocks = prefix.num_tokens // block_size
        for group, pool in enumerate(self.pools):
            ids, num_passed = table.groups[group], table.num_passed[group]
            pool.share(ids[num_passed:])
            num_blocks = max(
                -(-(prefix.num_tokens + num_new) // block_size), self.num_resident_blocks(group, num_reserved_tokens)
            )
            added = pool.allocate(num_blocks - len(ids))
            ids.extend(added)
            if prefix.tail_block_ids:
                self._copy(group, prefix.tail_block_ids[group], added[0])
                del added[0]
            self._to_zero[group].extend(added)
        table.num_slots = block_size * min(map(len, table.groups))
        request.block_table = table
        request.num_computed_tokens = prefix.num_tokens
        self._num_entries += sum(map(len, table.groups))
        self._num_computed_tokens += prefix.num_tokens
        return num_new

    def allocate_slots(self, request: Request, num_new_tokens: int) -> Allocation | None:
        """Room for the next tokens of a running request, as many as fit; None if not one does."""
        table, block_size, num_computed_tokens = request.block_table, self.block_size, request.num_computed_tokens
        self._let_passed_go(table, num_computed_tokens)
        num_new = num_new_tokens
        for ids, pool in zip(table.groups, self.pools, strict=True):
            num_new = min(num_new, (len(ids) + pool.num_free) * block_size - num_computed_tokens)
        if num_new <= 0:
            return None
        num_blocks = -(-(num_computed_tokens + num_new) // block_size)
        added = []
        for ids, pool, to_zero in zip(table.groups, self.pools, self._to_zero, strict=True):
            block_ids = pool.allocate(max(0, num_blocks - len(ids)))
            ids.extend(block_ids)
            to_zero.extend(block_ids)
            added.append(block_ids)
            self._num_entries += len(block_ids)
        table.num_slots = block_size * min(map(len, table.groups))
        return Allocation(num_new, added)

    def note_computed(self, num_tokens: int) -> None:
        """Requests that have pages count so many more tokens, all together, as computed."""
        self._num_computed_tokens += num_tokens

    def cache_computed_blocks(self, request: Request) -> None:
        """Make the full pages of computed tokens findable, generated ones included."""
        if not self.enable_prefix_caching:
            return
        table, num_blocks = request.block_table, request.num_computed_tokens // self.block_size
        if table.num_cached_blocks >= num_blocks:
            return
        block_hashes = request.hash_blocks(num_blocks, self.block_size)
        # A window passes only pages of earlier steps, so all of these are still there.
        for ids, pool in zip(table.groups, self.pools, strict=True):
            for index in range(table.num_cached_blocks, num_blocks):
                pool.cache(ids[index], block_hashes[index])
        table.num_cached_blocks = num_blocks

    def forget(self, request: Request) -> None:
        """Nobody finds the pages of this request any more; those who have them keep them."""
        for ids, pool in zip(request.block_table.groups, self.pools, strict=False):
            pool.forget(block_id for block_id in ids if block_id != -1)

    def free(self, request: Request) -> None:
        """Take all pages from a request, so that none of its tokens is computed any more."""
        table = request.block_table
        for ids, num_passed, pool in zip(table.groups, table.num_passed, self.pools, strict=False):
            # In reverse: the tail of a sequence is the least shared, so it is to be evicted first.
            pool.free(ids[: num_passed - 1 if num_passed else None : -1])
        self._num_entries -= sum(map(len, table.groups))
        self._num_computed_tokens -= request.num_computed_tokens
        request.block_table = BlockTable()
        request.num_computed_tokens = 0

    def take_zero_block_ids(self) -> list[list[int]]:
        """Per group, the pages handed out since the last call that are not copied into."""
        taken, self._to_zero = self._to_zero, [[] for _ in self.pools]
        return taken

    def take_copies(self) -> list[BlockCopy]:
        """The copies due before the step runs."""
        taken, self._copies = self._copies, []
        for copy in taken:
            self.pools[copy.group].free((copy.src,))
        return taken

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content; refused (False) while a request holds pages, whose content would live on."""
        if any(pool.num_used for pool in self.pools):
            return False
        for pool in self.pools:
            pool.clear_cache()
        return True

    # ------------------------------------------------------------ gauges

    @property
    def usage(self) -> float:
        """Share of pages that requests hold, 0..1, in the fullest group."""
        return max(pool.num_used / pool.num_blocks for pool in self.pools)

    def num_used_slots(self) -> int:
        """Token slots of all pages that requests hold; a shared page counts once."""
        return sum(pool.num_used for pool in self.pools) * self.block_size

    def num_empty_slots(self) -> int:
        """Slots of all requests' pages that hold no token. They are one request's own: shared pages are full."""
        return self._num_entries * self.block_size - len(self.pools) * self._num_computed_tokens

    def page_maps(self) -> list[PageMap]:
        """What the pages of each group hold now."""
        return [_page_map(pool) for pool in self.pools]

    # ------------------------------------------------------------ windows

    def _first_visible_block(self, position: int, window: int | None) -> int:
        """Index of the block with the first token that a query at `position` sees."""
        return 0 if window is None else max(0, position - window + 1) // self.block_size

    def _let_passed_go(self, table: BlockTable, num_computed_tokens: int) -> None:
        """Free the pages of sliding groups that no query from `num_computed_tokens` on sees."""
        for group, window in self._sliding:
            ids, num_passed = table.groups[group], table.num_passed[group]
            # Keep one token more than the next query sees: a fork computes the token before it once more.
            first = max(0, num_computed_tokens - window) // self.block_size
            if first > num_passed:
                self.pools[group].free(ids[num_passed:first])
                ids[num_passed:first] = [-1] * (first - num_passed)
                table.num_passed[group] = first

    def _longest_hit(self, block_hashes: Sequence[bytes], num_blocks: int) -> int:
        """Leading blocks, at most `num_blocks`, whose pages every group still has as far as it needs them."""
        for pool, window in zip(self.pools, self._windows, strict=True):
            if window is None:
                found = (index for index in range(num_blocks) if pool.lookup(block_hashes[index]) is None)
                num_blocks = next(found, num_blocks)
        agreed = False
        while not agreed:
            before = num_blocks
            for group, window in self._sliding:
                num_blocks = self._longest_windowed_hit(self.pools[group], window, block_hashes, num_blocks)
            agreed = num_blocks == before
        return num_blocks

    def _longest_windowed_hit(
        self, pool: BlockPool, window: int, block_hashes: Sequence[bytes], num_blocks: int
    ) -> int:
        """The largest end <= `num_blocks` before which a window of pages is there without a gap."""
        num_needed = -(-(window - 1) // self.block_size)
        first = end = num_blocks
        while first > 0 and end - first < num_needed:
            first -= 1
            if pool.lookup(block_hashes[first]) is None:
                end = first
        return end

    # ------------------------------------------------------------ copy on write

    def _copy(self, group: int, src: int, dst: int) -> None:
        # The source may lose its holder before the worker copies it; held here, it cannot be handed out and zeroed.
        self.pools[group].share((src,))
        self._copies.append(BlockCopy(group, src, dst))


def _page_map(pool: BlockPool) -> PageMap:
    stride = -(-pool.num_blocks // MAX_MAPPED_PAGES)
    return PageMap(
        num_blocks=pool.num_blocks,
        num_used=pool.num_used,
        num_reusable=pool.num_reusable,
        stride=stride,
        states=pool.states(stride),
    )
