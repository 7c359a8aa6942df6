"""Gemma 3, text: five sliding layers to a full one, each kind with its own rope, and normalized queries and keys."""

from octavo.layers.attention import Attention
from octavo.layers.block import Block
from octavo.layers.config import TextConfig
from octavo.layers.embedding import Embedding, Head
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import GemmaRMSNorm
from octavo.layers.rope import Rope
from octavo.models.base import CausalLM


class Gemma3(CausalLM):
    """Sandwich norms, grouped-query attention with q and k norms, GeGLU."""

    norm = GemmaRMSNorm

    def layer(self, c: TextConfig, i: int) -> Block:
        """Full or windowed, by `layer_types`."""
        attn = Attention(
            c,
            Rope.from_config(c, c.layer_types[i]),
            qk_norm=GemmaRMSNorm,
            window=c.window_of(i),
            scale=c.query_pre_attn_scalar**-0.5,
            qkv_bias=c.attention_bias,
            o_bias=c.attention_bias,
        )
        return Block(c, attn, GatedMLP(c, c.hidden_activation), norm=GemmaRMSNorm, sandwich_norm=True)

    def embedding(self, c: TextConfig) -> Embedding:
        """Scaled by the root of its width, rounded as in training."""
        return Embedding(c.vocab_size, c.hidden_size, scale=c.hidden_size**0.5, round_scale=True)

    def head(self, c: TextConfig, tied: Embedding | None) -> Head:
        """Soft-capped where the configuration says so."""
        return Head(c.vocab_size, c.hidden_size, softcap=c.final_logit_softcapping, tied=tied)

    def tensor_name(self, name: str) -> str | None:
        """A checkpoint with images keeps the text model under a prefix, and a vision tower that text does not need."""
        if "vision_tower." in name or "multi_modal_projector." in name:
            return None
        for prefix, ours in (("model.language_model.", "model."), ("language_model.", "")):
            if name.startswith(prefix):
                return super().tensor_name(ours + name.removeprefix(prefix))
        return super().tensor_name(name)
