"""Gemma 2: sliding and full attention in turn, soft caps on scores and logits, norms on both sides of a branch."""

from octavo.layers.attention import Attention
from octavo.layers.block import Block
from octavo.layers.config import TextConfig
from octavo.layers.embedding import Embedding, Head
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import GemmaRMSNorm
from octavo.layers.rope import Rope
from octavo.models.base import CausalLM


class Gemma2(CausalLM):
    """Sandwich norms, grouped-query attention with a soft cap, GeGLU."""

    norm = GemmaRMSNorm

    def layer(self, c: TextConfig, i: int) -> Block:
        """Full or windowed, by `layer_types`."""
        attn = Attention(
            c,
            Rope.from_config(c),
            window=c.window_of(i),
            softcap=c.attn_logit_softcapping,
            scale=c.query_pre_attn_scalar**-0.5,
            qkv_bias=c.attention_bias,
            o_bias=c.attention_bias,
        )
        return Block(c, attn, GatedMLP(c, c.hidden_activation), norm=GemmaRMSNorm, sandwich_norm=True)

    def embedding(self, c: TextConfig) -> Embedding:
        """Scaled by the root of its width, rounded as in training."""
        return Embedding(c.vocab_size, c.hidden_size, scale=c.hidden_size**0.5, round_scale=True)

    def head(self, c: TextConfig, tied: Embedding | None) -> Head:
        """Soft-capped."""
        return Head(c.vocab_size, c.hidden_size, softcap=c.final_logit_softcapping, tied=tied)
