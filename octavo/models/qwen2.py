"""Qwen2 and Qwen2.5: Llama with biases on q, k and v, and optionally a sliding window in the upper layers."""

from octavo.layers.attention import Attention
from octavo.layers.block import Block
from octavo.layers.config import TextConfig
from octavo.layers.mlp import GatedMLP
from octavo.layers.rope import Rope
from octavo.models.base import CausalLM


class Qwen2(CausalLM):
    """Pre-norm, grouped-query attention with biases, SwiGLU."""

    def layer(self, c: TextConfig, i: int) -> Block:
        """Full or windowed, by `layer_types`."""
        attn = Attention(c, Rope.from_config(c), window=c.window_of(i), qkv_bias=True)
        return Block(c, attn, GatedMLP(c, c.hidden_act))
