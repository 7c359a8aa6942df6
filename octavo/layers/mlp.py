"""The gated feed-forward network."""

from torch import Tensor, nn

from octavo.errors import ModelError
from octavo.layers.config import TextConfig
from octavo.layers.linear import Linear
from octavo.ops.gelu_mul import gelu_mul
from octavo.ops.gelu_tanh_mul import gelu_tanh_mul
from octavo.ops.silu_mul import silu_mul

ACTIVATIONS = {
    "silu": silu_mul,
    "swish": silu_mul,
    "gelu": gelu_mul,
    "gelu_tanh": gelu_tanh_mul,
    "gelu_pytorch_tanh": gelu_tanh_mul,
}
"""Names that config.json files use, and the op for "activation of the gate, times the other half"."""


class GatedMLP(nn.Module):
    """`down(activation(gate(x)) * up(x))`.

    Raises:
        ModelError: for an activation that is not in `ACTIVATIONS`.
    """

    def __init__(self, c: TextConfig, activation: str, bias: bool = False) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ModelError(f"unknown activation {activation!r} in config.json; known: {', '.join(ACTIVATIONS)}")
        self.activation = ACTIVATIONS[activation]
        width = c.intermediate_size
        self.gate_up_proj = Linear(c.hidden_size, {"gate_proj": width, "up_proj": width}, bias)
        self.down_proj = Linear(width, c.hidden_size, bias)

    def forward(self, x: Tensor) -> Tensor:
        """[T, hidden] -> [T, hidden]."""
        return self.down_proj(self.activation(self.gate_up_proj(x)))
