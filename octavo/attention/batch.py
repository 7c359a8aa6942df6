"""What a forward pass needs to know beside the weights: tokens, positions and, per KV group, where pages are.

The worker fills one `ForwardBatch` per step from preallocated buffers; layers only read it.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(slots=True)
class AttentionBatch:
    """One KV group's view of the step. R rows, T tokens; all int32 unless said otherwise.

    ```text
    tokens of row r in the batch:  query_start[r] .. query_start[r + 1]
    their positions:               seq_lens[r] - (query_start[r + 1] - query_start[r]) .. seq_lens[r]
    page of position p:            block_table[r, p // block_size]   (-1: outside the window, never read)
    ```

    Attributes:
        query_start: [R + 1]
        seq_lens: [R] tokens of the row after this step, this step's included.
        block_table: [R, max_blocks]
        slot_mapping: [T] int64, page * block_size + offset to write to; -1 writes nothing (padding).
        max_query_len, max_seq_len: Python ints, so that no kernel has to ask the device.
    """

    query_start: Tensor
    seq_lens: Tensor
    block_table: Tensor
    slot_mapping: Tensor
    max_query_len: int
    max_seq_len: int


@dataclass(slots=True)
class ForwardBatch:
    """One step's input to a model.

    Attributes:
        input_ids: [T] int64
        positions: [T] int64 ([3, T] for models with three rope axes)
        attention: per KV group.
        lengths: [T] int64, tokens of the sequence as a rope whose base grows with it counts them: the prompt's, or for
            a token behind the prompt those up to it, itself included.
        kv_pages: per KV group, the pool [L, 2, B, kv_heads, block_size, head_dim]: L layers of the group, keys then
            values, B pages.
        inputs_embeds: [T, hidden], in place of input_ids when given.
        adapter_index: [T], reserved for LoRA.
    """

    input_ids: Tensor
    positions: Tensor
    lengths: Tensor
    attention: list[AttentionBatch]
    kv_pages: list[Tensor]
    inputs_embeds: Tensor | None = None
    adapter_index: Tensor | None = None
