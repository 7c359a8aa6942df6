"""Exclude tokens that a grammar does not allow. Knows no grammars."""

import math

import torch
from torch import Tensor

from octavo.ops.dispatch import op


@op
def mask_logits(logits: Tensor, index: Tensor, bits: Tensor) -> None:
    """Set logits[index[c], t] to -inf where bit t % 32 of bits[c, t // 32] is 0.

    Args:
        logits: [N, V] float32, changed in place.
        index: [C] int64, all different.
        bits: [C, ceil(V / 32)] int32
    """
    places = torch.arange(32, dtype=torch.int32, device=bits.device)
    allowed = (bits[:, :, None] >> places & 1).flatten(1)[:, : logits.shape[1]].bool()
    logits[index] = logits[index].masked_fill(~allowed, -math.inf)
