"""Masks on the native kernel against the torch reference, bit for bit."""

import pytest
import torch

from octavo.kernels.cpu import sample as native
from octavo.ops.mask_logits import mask_logits


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 97, 4099])
@pytest.mark.parametrize("strided", [False, True])
def test_a_mask_excludes_what_the_reference_excludes(vocab_size: int, strided: bool) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    wide = torch.randn(7, vocab_size + strided, generator=generator)
    words = -(-vocab_size // 32)
    bits = torch.randint(-(2**31), 2**31, (3, words), generator=generator).to(torch.int32)
    bits[1, : words // 2], bits[2, words // 2 :] = -1, 0
    index = torch.tensor([5, 0, 3])
    native_logits, expected = wide.clone()[:, :vocab_size], wide.clone()[:, :vocab_size]
    native.mask_logits(native_logits, index, bits)
    mask_logits.reference(expected, index, bits)
    assert torch.equal(native_logits, expected)
    for row, mask in zip(index.tolist(), bits, strict=True):
        for token_id in range(0, vocab_size, 29):
            allowed = mask[token_id // 32].item() >> token_id % 32 & 1
            assert expected[row, token_id] == (wide[row, token_id] if allowed else -torch.inf)
    assert torch.equal(expected[[1, 2, 4, 6]], wide[[1, 2, 4, 6], :vocab_size])
