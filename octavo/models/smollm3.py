"""SmolLM3: Llama with every fourth layer free of positions (NoPE)."""

from octavo.layers.attention import Attention
from octavo.layers.block import Block
from octavo.layers.config import TextConfig
from octavo.layers.mlp import GatedMLP
from octavo.layers.rope import Rope
from octavo.models.base import CausalLM


class SmolLM3(CausalLM):
    """Pre-norm, grouped-query attention, SwiGLU; `no_rope_layers[i]` is 1 where layer i *has* a rope."""

    def layer(self, c: TextConfig, i: int) -> Block:
        """With or without positions."""
        rope = Rope.from_config(c) if c.no_rope_layers[i] else None
        attn = Attention(c, rope, window=c.window_of(i), qkv_bias=c.attention_bias, o_bias=c.attention_bias)
        return Block(c, attn, GatedMLP(c, c.hidden_act, bias=c.mlp_bias))
