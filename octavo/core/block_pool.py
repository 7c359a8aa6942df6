"""The pages of one KV group: how many hold each, and which free ones still carry a reusable prefix.

Deals in block ids and opaque hashes; knows no requests, tokens, tensors or other groups. Every operation is O(1) per
block.
"""

from collections import OrderedDict
from collections.abc import Iterable


class BlockPool:
    """Ref-counted pages with a cache of content hashes.

    ```text
    blank      free, content worthless; handed out first
    reusable   free, content known by hash; evicted least recently freed first, and only when no blank page is left
    in use     ref_counts[block_id] >= 1 tables hold it; may be known by hash too
    ```
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.ref_counts = [0] * num_blocks
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._reusable: OrderedDict[int, None] = OrderedDict()
        self._block_by_hash: dict[bytes, int] = {}
        self._hash_by_block: list[bytes | None] = [None] * num_blocks

    @property
    def num_free(self) -> int:
        """Pages that `allocate` can hand out, reusable ones included."""
        return len(self._blank) + len(self._reusable)

    @property
    def num_used(self) -> int:
        """Pages that some table holds."""
        return self.num_blocks - self.num_free

    @property
    def num_reusable(self) -> int:
        """Free pages that `lookup` may still find."""
        return len(self._reusable)

    def states(self, stride: int) -> bytes:
        """A byte for every `stride`-th page: 0 blank, 1 reusable, 2 in use by one holder, 3 by several."""
        pages = zip(self.ref_counts[::stride], self._hash_by_block[::stride], strict=True)
        return bytes([(3 if count > 1 else 2) if count else block_hash is not None for count, block_hash in pages])

    def num_idle(self, block_ids: Iterable[int]) -> int:
        """How many of these are free, so that sharing them makes `num_free` smaller."""
        return sum(self.ref_counts[block_id] == 0 for block_id in block_ids)

    def allocate(self, count: int) -> list[int]:
        """Hand out `count` <= `num_free` pages with one holder each."""
        block_ids = [self._blank.pop() if self._blank else self._evict() for _ in range(count)]
        for block_id in block_ids:
            self.ref_counts[block_id] = 1
        return block_ids

    def share(self, block_ids: Iterable[int]) -> None:
        """Add a holder to each page, in use or reusable."""
        for block_id in block_ids:
            if self.ref_counts[block_id] == 0:
                del self._reusable[block_id]
            self.ref_counts[block_id] += 1

    def free(self, block_ids: Iterable[int]) -> None:
        """Take a holder off each page. Of those that become reusable, the first given is evicted first."""
        for block_id in block_ids:
            self.ref_counts[block_id] -= 1
            if self.ref_counts[block_id] > 0:
                continue
            assert self.ref_counts[block_id] == 0, f"block {block_id} was freed more often than it was taken"
            if self._hash_by_block[block_id] is None:
                self._blank.append(block_id)
            else:
                self._reusable[block_id] = None

    def cache(self, block_id: int, block_hash: bytes) -> None:
        """Make a page in use findable. A twin that is findable already stays; this page then remains anonymous."""
        if block_hash not in self._block_by_hash:
            assert self.ref_counts[block_id] > 0 and self._hash_by_block[block_id] is None
            self._block_by_hash[block_hash] = block_id
            self._hash_by_block[block_id] = block_hash

    def forget(self, block_ids: Iterable[int]) -> None:
        """Pages in use are not findable any more."""
        for block_id in block_ids:
            block_hash = self._hash_by_block[block_id]
            if block_hash is not None:
                del self._block_by_hash[block_hash]
                self._hash_by_block[block_id] = None

    def lookup(self, block_hash: bytes) -> int | None:
        """The page with this content, if there is one."""
        return self._block_by_hash.get(block_hash)

    def clear_cache(self) -> None:
        """Forget all contents; who holds what stays."""
        self._block_by_hash.clear()
        self._hash_by_block = [None] * self.num_blocks
        self._blank.extend(self._reusable)
        self._reusable.clear()

    def _evict(self) -> int:
        block_id, _ = self._reusable.popitem(last=False)
        block_hash = self._hash_by_block[block_id]
        assert block_hash is not None
        del self._block_by_hash[block_hash]
        self._hash_by_block[block_id] = None
        return block_id
