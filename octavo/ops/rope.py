"""Rotary position embedding, applied to queries and keys in place."""

from torch import Tensor

from octavo.ops.dispatch import op


@op
def rope(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor, interleaved: bool) -> None:
    """Rotate the first `rot` dimensions of every head by the angle of its position.

    Args:
        q: [T, H, D], **mutated**; T may be strided (a slice of a fused projection).
        k: [T, G, D], **mutated**, likewise.
        positions: [T] int64, each below P.
        cos_sin: [P, rot] float32; row p holds the cosines of the rot/2 frequencies at position p, then the sines.
        interleaved: pairs are (0, 1), (2, 3), ... instead of (0, rot/2), (1, rot/2 + 1), ...
    """
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, -1)  # [T, 1, rot/2]
    rotate(q[..., : cos_sin.shape[1]], cos, sin, interleaved)
    rotate(k[..., : cos_sin.shape[1]], cos, sin, interleaved)


@rope.meta_kernel
def _(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor, interleaved: bool) -> None:
    return None


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> None:
    """Rotate x [T, heads, rot] in place, in float32, rounding once."""
    first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    a, b = first.float(), second.float()  # of a float32 x these are views: compute both before writing either
    turned = a * cos - b * sin, b * cos + a * sin
    first.copy_(turned[0])
    second.copy_(turned[1])
