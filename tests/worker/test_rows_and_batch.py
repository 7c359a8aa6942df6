"""Rows, the batch gathered from them, and the pages: against token-by-token readings of their definitions."""

import random

import numpy as np
import pytest
import torch

from octavo.config import KVGroupSpec
from octavo.messages import BlockCopy, NewRow, SchedulerOutput
from octavo.sampling_params import SamplingParams
from octavo.worker.input_batch import InputBatch
from octavo.worker.kv_pages import KVPages
from octavo.worker.rows import Rows

BLOCK_SIZE = 4
CPU = torch.device("cpu")


def new_row(row: int, token_ids: list[int], block_ids: list[list[int]]) -> NewRow:
    return NewRow(
        request_id=str(row),
        row=row,
        token_ids=token_ids,
        num_prompt_tokens=len(token_ids),
        num_computed_tokens=0,
        block_ids=block_ids,
        sampling=SamplingParams(),
        eos_token_ids=[],
        bad_words_token_ids=[],
        seed=0,
        sample_index=0,
    )


def test_block_tables_grow_per_group_and_start_over_with_a_new_sequence() -> None:
    rows = Rows(max_rows=2, max_model_len=32, num_groups=2, block_size=BLOCK_SIZE)
    rows.add(new_row(1, [5, 6], [[7], [-1, 3]]))
    rows.append_blocks(1, [[8, 9], []])
    rows.append_blocks(1, [[], [4]])
    assert rows.block_tables[0][1, :3].tolist() == [7, 8, 9]
    assert rows.block_tables[1][1, :3].tolist() == [-1, 3, 4]
    rows.append_tokens(np.array([1]), np.array([42]))
    assert rows.token_ids[1, :3].tolist() == [5, 6, 42] and rows.num_tokens.tolist() == [0, 3]
    rows.add(new_row(1, [1], [[2], []]))
    rows.append_blocks(1, [[3], [6]])
    assert rows.block_tables[0][1, :2].tolist() == [2, 3] and rows.block_tables[1][1, 0] == 6
    rows.free(1)
    assert rows.num_tokens.tolist() == [0, 0]


@pytest.mark.parametrize("seed", range(5))
def test_a_gathered_batch_says_of_every_token_what_its_row_says(seed: int) -> None:
    chance = random.Random(seed)
    rows = Rows(max_rows=6, max_model_len=40, num_groups=2, block_size=BLOCK_SIZE)
    batch = InputBatch(100, 6, 10, 2, BLOCK_SIZE, CPU)
    for row in range(6):
        tables = [chance.sample(range(200), 10), [-1, -1, *chance.sample(range(200), 8)]]
        rows.add(new_row(row, chance.choices(range(1000), k=40), tables))
    for _ in range(3):  # buffers are used again
        scheduled = chance.sample(range(6), chance.randint(1, 6))
        computed = [chance.randint(0, 39) for _ in scheduled]
        counts = [1 if seed == 0 else chance.randint(1, min(16, 40 - c)) for c in computed]
        plan = SchedulerOutput(step=0, rows=scheduled, num_tokens=counts, num_computed_tokens=computed)
        forward = batch.gather(plan, rows, [])
        token = 0
        for i, (row, first, count) in enumerate(zip(scheduled, computed, counts, strict=True)):
            for attention in forward.attention:
                assert attention.query_start[i : i + 2].tolist() == [token, token + count]
                assert attention.seq_lens[i] == first + count
            for position in range(first, first + count):
                assert forward.positions[token] == position
                assert forward.input_ids[token] == rows.token_ids[row, position]
                for table, attention in zip(rows.block_tables, forward.attention, strict=True):
                    page = int(table[row, position // BLOCK_SIZE])
                    slot = -1 if page < 0 else page * BLOCK_SIZE + position % BLOCK_SIZE
                    assert attention.slot_mapping[token] == slot
                token += 1
            for table, attention in zip(rows.block_tables, forward.attention, strict=True):
                used = -(-(first + count) // BLOCK_SIZE)
                assert attention.block_table[i, :used].tolist() == table[row, :used].tolist()
        for attention in forward.attention:
            assert (attention.max_query_len, attention.max_seq_len) == (max(counts), attention.seq_lens.max())
            assert attention.block_table.is_contiguous()
            assert {t.dtype for t in (attention.query_start, attention.seq_lens, attention.block_table)} == {
                torch.int32
            }
        assert len(forward.input_ids) == len(forward.positions) == token


def make_pages() -> KVPages:
    groups = [KVGroupSpec("full", 3, 2, 8), KVGroupSpec("sliding-8", 1, 1, 4, window=8)]
    return KVPages(groups, (10, 6), BLOCK_SIZE, torch.float32, CPU)


def test_pools_have_the_documented_shape() -> None:
    pools = make_pages().pools
    assert [list(pool.shape) for pool in pools] == [[3, 2, 10, 2, 4, 8], [1, 2, 6, 1, 4, 4]]


@pytest.mark.parametrize("block_ids", [[2, 9], [0], [9, 8, 4, 3], [5, 5, 6], list(range(10))])
def test_zeroing_clears_the_pages_named_in_every_layer_and_no_other(block_ids: list[int]) -> None:
    pages = make_pages()
    for pool in pages.pools:
        pool.fill_(float("nan"))
    pages.zero([block_ids, []])
    cleared = [(~pool.isnan()).flatten(3).all(-1).all(0).all(0).nonzero()[:, 0].tolist() for pool in pages.pools]
    touched = [(~pool.isnan()).flatten(3).any(-1).any(0).any(0).nonzero()[:, 0].tolist() for pool in pages.pools]
    assert cleared == touched == [sorted(set(block_ids)), []]


def test_copies_happen_in_order_so_that_a_copy_can_be_copied() -> None:
    pages = make_pages()
    for pool in pages.pools:
        pool.copy_(torch.arange(pool.numel()).view(pool.shape))
    source, other = pages.pools[0][:, :, 1].clone(), pages.pools[1].clone()
    pages.copy([BlockCopy(0, 1, 4), BlockCopy(0, 4, 7)])
    assert torch.equal(pages.pools[0][:, :, 4], source) and torch.equal(pages.pools[0][:, :, 7], source)
    assert torch.equal(pages.pools[1], other)
