"""Gather a step's rows into the buffers that a forward pass reads. Knows rows and pages; no requests, no sampling."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.attention.batch import AttentionBatch, ForwardBatch
from octavo.messages import SchedulerOutput
from octavo.worker.rows import Rows


class HostBuffer:
    """Preallocated host memory that is filled through numpy and read by the device."""

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device) -> None:
        self._array: NDArray[np.integer] = torch.zeros(size, dtype=dtype).numpy()
        self._device = None if device.type == "cpu" else device

    def view(self, *shape: int) -> NDArray[np.integer]:
        """The beginning of the buffer, as an array of this shape."""
        return self._array[: math.prod(shape)].reshape(shape)

    def on_device(self, *shape: int) -> Tensor:
        """The same as a tensor on the device: on a CPU the same memory, else a copy."""
        host = torch.from_numpy(self.view(*shape))
        return host if self._device is None else host.to(self._device, non_blocking=True)


class InputBatch:
    """Buffers for one step, filled anew by each `gather`.

    Args:
        token_budget: most tokens of a step.
        max_rows: most rows of a step.
        max_blocks: width of a full block table.

    Attributes:
        rows, ends: [R] of the last `gather`, each row and the end of its tokens in the batch.
    """

    def __init__(
        self, token_budget: int, max_rows: int, max_blocks: int, num_groups: int, block_size: int, device: torch.device
    ) -> None:
        self.block_size = block_size
        self.rows: NDArray[np.int64] = np.zeros(0, np.int64)
        self.ends: NDArray[np.int64] = np.zeros(0, np.int64)
        self._input_ids = HostBuffer(token_budget, torch.int64, device)
        self._positions = HostBuffer(token_budget, torch.int64, device)
        self._lengths = HostBuffer(token_budget, torch.int64, device)
        self._query_start = HostBuffer(max_rows + 1, torch.int32, device)
        self._seq_lens = HostBuffer(max_rows, torch.int32, device)
        self._tables = [HostBuffer(max_rows * max_blocks, torch.int32, device) for _ in range(num_groups)]
        self._slots = [HostBuffer(token_budget, torch.int64, device) for _ in range(num_groups)]

    def gather(self, plan: SchedulerOutput, rows: Rows, kv_pages: list[Tensor]) -> ForwardBatch:
        """The forward pass of `plan`, which schedules at least one row. The result is valid until the next call."""
        self.rows = batch_rows = np.array(plan.rows)
        num_tokens = np.array(plan.num_tokens)
        num_computed = np.array(plan.num_computed_tokens)
        self.ends = num_tokens.cumsum()
        num_rows, total = len(batch_rows), int(self.ends[-1])

        query_start = self._query_start.view(num_rows + 1)
        query_start[1:] = self.ends
        seq_lens = self._seq_lens.view(num_rows)
        np.add(num_computed, num_tokens, out=seq_lens, casting="same_kind")

        # Row and position of every token: a row's tokens lie side by side.
        token_rows = batch_rows.repeat(num_tokens)
        positions = self._positions.view(total)
        np.add(np.arange(total), (num_computed - query_start[:-1]).repeat(num_tokens), out=positions)
        self._input_ids.view(total)[:] = rows.token_ids[token_rows, positions]
        np.maximum(rows.num_prompt_tokens[token_rows], positions + 1, out=self._lengths.view(total))

        max_seq_len = int(seq_lens.max())
        width = -(-max_seq_len // self.block_size)
        block_of_token, offset = np.divmod(positions, self.block_size)
        for group, table in enumerate(rows.block_tables):
            out = self._tables[group].view(num_rows, width)
            np.take(table[:, :width], batch_rows, axis=0, out=out, mode="clip")
            block = table[token_rows, block_of_token].astype(np.int64)
            slots = self._slots[group].view(total)
            np.add(block * self.block_size, offset, out=slots)
            slots[block < 0] = -1  # the page is out of the window already: nobody will read it

        query_start_tensor = self._query_start.on_device(num_rows + 1)
        seq_lens_tensor = self._seq_lens.on_device(num_rows)
        attention = [
            AttentionBatch(
                query_start=query_start_tensor,
                seq_lens=seq_lens_tensor,
                block_table=table.on_device(num_rows, width),
                slot_mapping=slots.on_device(total),
                max_query_len=int(num_tokens.max()),
                max_seq_len=max_seq_len,
            )
            for table, slots in zip(self._tables, self._slots, strict=True)
        ]
        return ForwardBatch(
            input_ids=self._input_ids.on_device(total),
            positions=self._positions.on_device(total),
            lengths=self._lengths.on_device(total),
            attention=attention,
            kv_pages=kv_pages,
        )


def probe_batch(kv_pages: list[Tensor], device: torch.device) -> ForwardBatch:
    """A forward pass of the token 0, which reads the first page and writes to none."""
    one = torch.ones(1, dtype=torch.int32, device=device)
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    attention = AttentionBatch(
        query_start=torch.arange(2, dtype=torch.int32, device=device),
        seq_lens=one,
        block_table=torch.zeros((1, 1), dtype=torch.int32, device=device),
        slot_mapping=zero - 1,
        max_query_len=1,
        max_seq_len=1,
    )
    return ForwardBatch(zero, zero, one.long(), [attention] * len(kv_pages), kv_pages)
