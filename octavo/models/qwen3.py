"""Qwen3: Llama with normalized queries and keys, and optionally a sliding window in the upper layers."""

from octavo.layers.attention import Attention
from octavo.layers.block import Block
from octavo.layers.config import TextConfig
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import RMSNorm
from octavo.layers.rope import Rope
from octavo.models.base import CausalLM


class Qwen3(CausalLM):
    """Pre-norm, grouped-query attention with q and k norms, SwiGLU."""

    def layer(self, c: TextConfig, i: int) -> Block:
        """Full or windowed, by `layer_types`."""
        bias, window = c.attention_bias, c.window_of(i)
        attn = Attention(c, Rope.from_config(c), qk_norm=RMSNorm, window=window, qkv_bias=bias, o_bias=bias)
        return Block(c, attn, GatedMLP(c, c.hidden_act))
