"""The KV pages of all layers, one pool per group. Knows page ids; not whose they are."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from octavo.config import KVGroupSpec
from octavo.messages import BlockCopy
from octavo.ops.empty_pages import empty_pages


class KVPages:
    """Per KV group a pool [L, 2, B, G, block_size, D] (`ops.empty_pages`): layers, keys and values, pages, heads.

    Attributes:
        pools: in the order of the groups; a page's memory is first touched when it is zeroed on being handed out.
    """

    def __init__(
        self,
        groups: Sequence[KVGroupSpec],
        num_blocks: Sequence[int],
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.pools: list[Tensor] = [
            empty_pages(group, count, block_size, dtype, device)
            for group, count in zip(groups, num_blocks, strict=True)
        ]

    def zero(self, block_ids: Sequence[Sequence[int]]) -> None:
        """Clear pages, per group: what a page held before must not reach a masked row as 0 x NaN."""
        for pool, ids in zip(self.pools, block_ids, strict=False):
            for first, count in _runs(ids):
                pool.narrow(2, first, count).zero_()

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Copy pages, one after the other: a page may be copied on in the step that fills it."""
        for copy in copies:
            pool = self.pools[copy.group]
            pool[:, :, copy.dst].copy_(pool[:, :, copy.src])


def _runs(block_ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first, count) of pages that lie side by side: one long write takes a fraction of the time of many short ones."""
    ids = sorted(block_ids)
    start = 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or ids[end] != ids[end - 1] + 1:
            yield ids[start], end - start
            start = end
