"""Layer normalization over the last dimension."""

import torch.nn.functional as F
from torch import Tensor

from octavo.ops.dispatch import op


@op
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor | None = None) -> Tensor:
    """`(x - mean) / sqrt(var + eps) * weight + bias` in float32, rounded once.

    Args:
        x: [..., K]
        weight: [K], float32 or the dtype of x.
        bias: [K] or None.
        out: like x, written when given; may be x itself.
    """
    wide_bias = None if bias is None else bias.float()
    normed = F.layer_norm(x.float(), weight.shape, weight.float(), wide_bias, eps).to(x.dtype)
    return normed if out is None else out.copy_(normed)
