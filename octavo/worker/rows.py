"""State of the running sequences, one row each: tokens and block tables. Arrays on the host, which a step indexes by
row all at once. Knows no model and no sampling.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.messages import NewRow, SchedulerOutput

NO_BLOCK = -1
"""In a block table: no page here, because a sliding window has let it go."""


class Rows:
    """Rows 0 .. max_rows - 1.

    Attributes:
        token_ids: [rows, max_model_len] int32; row r holds `num_tokens[r]` of them.
        num_tokens: [rows] int64, prompt and answer.
        num_prompt_tokens: [rows] int64
        block_tables: per KV group [rows, blocks of max_model_len] int32; row r holds `num_blocks[group][r]` of them.
    """

    def __init__(self, max_rows: int, max_model_len: int, num_groups: int, block_size: int) -> None:
        max_blocks = -(-max_model_len // block_size)
        self.token_ids = np.zeros((max_rows, max_model_len), np.int32)
        self.num_tokens = np.zeros(max_rows, np.int64)
        self.num_prompt_tokens = np.zeros(max_rows, np.int64)
        self.block_tables = [np.full((max_rows, max_blocks), NO_BLOCK, np.int32) for _ in range(num_groups)]
        self.num_blocks = [np.zeros(max_rows, np.int64) for _ in range(num_groups)]

    def update(self, plan: SchedulerOutput) -> None:
        """Seats and pages as `plan` says, before its step runs."""
        for row in plan.freed_rows:
            self.free(row)
        for new in plan.new_rows:
            self.add(new)
        for row, block_ids in plan.new_block_ids.items():
            self.append_blocks(row, block_ids)

    def add(self, new: NewRow) -> None:
        """Seat a sequence; whatever the row held is forgotten."""
        self.num_tokens[new.row] = len(new.token_ids)
        self.num_prompt_tokens[new.row] = new.num_prompt_tokens
        self.token_ids[new.row, : len(new.token_ids)] = new.token_ids
        for num_blocks in self.num_blocks:
            num_blocks[new.row] = 0
        self.append_blocks(new.row, new.block_ids)

    def append_blocks(self, row: int, block_ids: Sequence[Sequence[int]]) -> None:
        """Extend a row's block table of every group."""
        for table, num_blocks, ids in zip(self.block_tables, self.num_blocks, block_ids, strict=True):
            if ids:
                start = int(num_blocks[row])
                table[row, start : start + len(ids)] = ids
                num_blocks[row] = start + len(ids)

    def append_tokens(self, rows: NDArray[np.int64], token_ids: NDArray[np.int64]) -> None:
        """Give each of `rows` one more token."""
        self.token_ids[rows, self.num_tokens[rows]] = token_ids
        self.num_tokens[rows] += 1

    def free(self, row: int) -> None:
        """Empty a row."""
        self.num_tokens[row] = 0
