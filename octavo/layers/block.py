"""One transformer layer: attention and feed-forward around a residual stream."""

from torch import Tensor, nn

from octavo.attention.batch import ForwardBatch
from octavo.layers.attention import Attention
from octavo.layers.config import TextConfig
from octavo.layers.norm import RMSNorm
from octavo.ops.scale import scale


class Block(nn.Module):
    """Pre-norm by default; with `sandwich_norm` both branches are also normalized before they are added (Gemma 2, 3).

    Args:
        branch_scale: multiplies each branch before it is added (Granite).
    """

    def __init__(
        self,
        c: TextConfig,
        self_attn: Attention,
        mlp: nn.Module,
        *,
        norm: type[RMSNorm] = RMSNorm,
        sandwich_norm: bool = False,
        branch_scale: float = 1.0,
    ) -> None:
        super().__init__()
        size, eps = c.hidden_size, c.rms_norm_eps
        self.input_layernorm = norm(size, eps)
        self.self_attn = self_attn
        # The name follows the checkpoints: without a sandwich, "post attention" is the norm before the feed-forward.
        self.post_attention_layernorm = norm(size, eps)
        self.mlp = mlp
        self.sandwich_norm = sandwich_norm
        if sandwich_norm:
            self.pre_feedforward_layernorm = norm(size, eps)
            self.post_feedforward_layernorm = norm(size, eps)
        self.branch_scale = branch_scale

    def forward(self, branch: Tensor | None, residual: Tensor, batch: ForwardBatch) -> Tensor:
        """Run the layer.

        Args:
            branch: [T, hidden] not yet added to the residual: the layer before leaves its last addition to the fused
                norm here. None in the first layer.
            residual: [T, hidden], **mutated**.

        Returns:
            The branch that the next norm must add.
        """
        x = self.input_layernorm.add(branch, residual)
        x = self.self_attn(x, batch)
        if not self.sandwich_norm:
            x = self.post_attention_layernorm.add(self.scaled(x), residual)
            return self.scaled(self.mlp(x))
        x = self.post_attention_layernorm(x, out=x)
        x = self.pre_feedforward_layernorm.add(self.scaled(x), residual)
        x = self.mlp(x)
        return self.scaled(self.post_feedforward_layernorm(x, out=x))

    def scaled(self, branch: Tensor) -> Tensor:
        """Multiply in place, where the family does so."""
        if self.branch_scale != 1.0:
            scale(branch, self.branch_scale)
        return branch
