"""Small paged batches for kernel tests: requests with random keys and values, scattered over shuffled pages."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from octavo.attention.batch import AttentionBatch
from octavo.config import KVGroupSpec
from octavo.ops.empty_pages import empty_pages


def in_a_pool(pages: Tensor) -> Tensor:
    """The same pages [2, B, G, block, D] as they lie in a pool of two layers."""
    _, num_blocks, heads, block_size, head_dim = pages.shape
    pool = empty_pages(KVGroupSpec("full", 2, heads, head_dim), num_blocks, block_size, pages.dtype, pages.device)
    return pool[1].copy_(pages)


@dataclass
class World:
    """Requests of some lengths, their keys and values in pages, and queries for every position.

    Attributes:
        common: tokens at the beginning of longer requests that lie in the pages of the first one, in whole pages.
        pages: [2, B, G, block, D]; slots that hold no token are NaN, so reading one shows.
        queries: per request, [length, H, D].
        tables: per request, its pages in order.
    """

    lengths: list[int]
    heads: int
    kv_heads: int
    head_dim: int
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype = torch.float32
    seed: int = 0
    common: int = 0
    pages: Tensor = field(init=False)
    queries: list[Tensor] = field(init=False)
    tables: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        counts = [-(-length // self.block_size) for length in self.lengths]
        order = torch.randperm(sum(counts), generator=generator).tolist()
        self.tables = [[order.pop() for _ in range(count)] for count in counts]
        for table, length in zip(self.tables, self.lengths, strict=True):
            shared = self.common // self.block_size if length > self.common else 0
            table[:shared] = self.tables[0][:shared]
        shape = (2, sum(counts), self.kv_heads, self.block_size, self.head_dim)
        values = torch.randn(shape, generator=generator)
        for table, length in zip(self.tables, self.lengths, strict=True):
            values[:, table[-1], :, (length - 1) % self.block_size + 1 :] = float("nan")
        self.pages = in_a_pool(values.to(self.kv_dtype))
        self.queries = [
            (2 * torch.randn(length, self.heads, self.head_dim, generator=generator)).to(self.dtype)
            for length in self.lengths
        ]

    def batch(self, spans: list[tuple[int, int, int]], padding: int = 0) -> tuple[Tensor, AttentionBatch]:
        """Queries [T, H, D] and the batch for rows (request, begin, end): the queries at positions begin .. end - 1."""
        counts = [end - begin for _, begin, end in spans]
        starts = torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
        width = max(len(table) for table in self.tables)
        table = torch.full((len(spans), width + 3), -1, dtype=torch.int32)[:, :width]  # rows with a stride of their own
        for row, (request, _, _) in enumerate(spans):
            table[row, : len(self.tables[request])] = torch.tensor(self.tables[request])
        q = torch.cat([self.queries[request][begin:end] for request, begin, end in spans])
        q = torch.cat([q, q.new_full((padding, self.heads, self.head_dim), 3.0)])
        ends = torch.tensor([end for _, _, end in spans], dtype=torch.int32)
        slots = torch.full((len(q),), -1)
        return q, AttentionBatch(starts, ends, table, slots, max(counts), int(ends.max()))
