"""Every registered model runs on the meta device: shapes only, as a plan is traced."""

from pathlib import Path

import pytest
import torch

from octavo.attention.batch import AttentionBatch, ForwardBatch
from octavo.models.build import build_model
from tests.tiny import FAMILIES, VOCAB_SIZE, spec_for, tiny_checkpoint

META = torch.device("meta")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_can_be_traced_without_weights_or_pages(family: str, tmp_path: Path) -> None:
    model = build_model(spec_for(tiny_checkpoint(family, tmp_path)), torch.bfloat16, META)
    num_tokens, num_rows, block_size = 7, 3, 16

    def ints(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=META)

    rows = AttentionBatch(
        query_start=ints(num_rows + 1),
        seq_lens=ints(num_rows),
        block_table=ints(num_rows, 4),
        slot_mapping=ints(num_tokens, dtype=torch.int64),
        max_query_len=5,
        max_seq_len=60,
    )
    pools = [
        torch.empty(g.num_layers, 2, 9, g.num_kv_heads, block_size, g.head_dim, dtype=torch.bfloat16, device=META)
        for g in model.kv_groups
    ]
    ids = ints(num_tokens, dtype=torch.int64)
    hidden = model(ForwardBatch(ids, ids, ids, [rows] * len(pools), pools))
    assert (hidden.shape, hidden.dtype) == ((num_tokens, 64), torch.bfloat16)
    logits = model.logits(hidden[:num_rows])
    assert (logits.shape, logits.dtype) == ((num_rows, VOCAB_SIZE), torch.float32)
