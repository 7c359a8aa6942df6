"""Granite 3: Llama with four multipliers (embeddings, attention scores, branches, logits)."""

from octavo.layers.attention import Attention
from octavo.layers.block import Block
from octavo.layers.config import TextConfig
from octavo.layers.embedding import Embedding, Head
from octavo.layers.mlp import GatedMLP
from octavo.layers.rope import Rope
from octavo.models.base import CausalLM


class Granite(CausalLM):
    """Pre-norm, grouped-query attention, SwiGLU, scaled."""

    def layer(self, c: TextConfig, i: int) -> Block:
        """Every layer is alike."""
        bias = c.attention_bias
        attn = Attention(c, Rope.from_config(c), scale=c.attention_multiplier, qkv_bias=bias, o_bias=bias)
        return Block(c, attn, GatedMLP(c, c.hidden_act, bias=c.mlp_bias), branch_scale=c.residual_multiplier)

    def embedding(self, c: TextConfig) -> Embedding:
        """Scaled."""
        return Embedding(c.vocab_size, c.hidden_size, scale=c.embedding_multiplier)

    def head(self, c: TextConfig, tied: Embedding | None) -> Head:
        """Scaled down."""
        return Head(c.vocab_size, c.hidden_size, divisor=c.logits_scaling, tied=tied)
