"""Mistral: Llama with a sliding window, where the configuration has one."""

from octavo.layers.attention import Attention
from octavo.layers.block import Block
from octavo.layers.config import TextConfig
from octavo.layers.mlp import GatedMLP
from octavo.layers.rope import Rope
from octavo.models.base import CausalLM


class Mistral(CausalLM):
    """Pre-norm, grouped-query attention over a window, SwiGLU."""

    def layer(self, c: TextConfig, i: int) -> Block:
        """Full or windowed, by `layer_types`."""
        return Block(c, Attention(c, Rope.from_config(c), window=c.window_of(i)), GatedMLP(c, c.hidden_act))
