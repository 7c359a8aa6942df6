"""Ranks and most likely tokens against a stable sort of the whole vocabulary, with many ties."""

import pytest
import torch

from octavo.ops.rank_tokens import rank_tokens

torch.set_num_threads(1)  # tensors this small only lose by being shared out


@pytest.mark.parametrize("vocab_size", [40, 1000, 1024])
@pytest.mark.parametrize("count", [0, 1, 3, 10, 16, 40])
def test_ranked_tokens_equal_a_stable_sort(vocab_size: int, count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    logits = torch.randint(-8, 9, (30, vocab_size), generator=generator).float()  # a tie for nearly every token
    logits[::3, 5:] -= 30
    logits[1] = 0.0
    logits[2, 7:] = -torch.inf
    logits[4] = 0.0
    logits[4, [-1, -2, 10]] = torch.tensor([5.0, 3.0, 3.0])  # a tie with a block whose own peak is higher
    token_ids = torch.randint(0, vocab_size, (30,), generator=generator)
    order = logits.sort(dim=1, descending=True, stable=True).indices
    expected_ids = torch.cat((token_ids[:, None], order[:, :count]), 1)
    for normalized in (False, True):
        ranked = rank_tokens(logits, token_ids, count, normalized=normalized)
        values = logits.log_softmax(-1) if normalized else logits
        assert torch.equal(ranked.token_ids, expected_ids)
        assert ranked.ranks.tolist() == [
            1 + row.tolist().index(token_id) for row, token_id in zip(order, token_ids.tolist(), strict=True)
        ]
        torch.testing.assert_close(ranked.values, values.gather(1, expected_ids), rtol=1e-6, atol=2e-6)


def test_values_of_a_position_do_not_depend_on_the_others() -> None:
    logits = torch.randn(9, 777, generator=torch.Generator().manual_seed(0)) * 4
    token_ids = torch.arange(9)
    together = rank_tokens(logits, token_ids, 5, normalized=True)
    for i in range(9):
        alone = rank_tokens(logits[i : i + 1], token_ids[i : i + 1], 5, normalized=True)
        assert torch.equal(alone.values[0], together.values[i])
