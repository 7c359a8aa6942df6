"""Llama 2 and 3.x, and the many that share its form (SmolLM2, TinyLlama, Yi, ...)."""

from octavo.layers.attention import Attention
from octavo.layers.block import Block
from octavo.layers.config import TextConfig
from octavo.layers.mlp import GatedMLP
from octavo.layers.rope import Rope
from octavo.models.base import CausalLM


class Llama(CausalLM):
    """Pre-norm, grouped-query attention, SwiGLU."""

    def layer(self, c: TextConfig, i: int) -> Block:
        """Every layer is alike."""
        attn = Attention(c, Rope.from_config(c), qkv_bias=c.attention_bias, o_bias=c.attention_bias)
        return Block(c, attn, GatedMLP(c, c.hidden_act, bias=c.mlp_bias))
