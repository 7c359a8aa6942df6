"""Self-attention over pages. Knows its place among the KV groups; block tables and slots come with the batch."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from octavo.attention.batch import ForwardBatch
from octavo.config import KVGroupSpec
from octavo.layers.build import Build, NamedSlot
from octavo.layers.config import TextConfig
from octavo.layers.linear import Linear
from octavo.layers.norm import RMSNorm
from octavo.layers.rope import Rope
from octavo.ops.paged_attention import paged_attention
from octavo.ops.rope import rope as rotate
from octavo.ops.write_kv import write_kv
from octavo.quantization.interface import slot_of


class Attention(nn.Module):
    """Grouped-query causal attention.

    Args:
        rope: None for a layer without positions.
        qk_norm: class of the norm over each query and key head, before the rope.
        window: tokens a query sees, itself included; None sees all.
        softcap: scores become `softcap * tanh(score / softcap)`.
        sinks: a learned logit per head takes part in the softmax.
        scale: multiplies q . k; head_dim ** -0.5 by default.
        qkv_bias, o_bias: whether the projections have one.
    """

    kv_group: int
    kv_layer: int

    def __init__(
        self,
        c: TextConfig,
        rope: Rope | None,
        *,
        qk_norm: type[RMSNorm] | None = None,
        window: int | None = None,
        softcap: float | None = None,
        sinks: bool = False,
        scale: float | None = None,
        qkv_bias: bool = False,
        o_bias: bool = False,
    ) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        self.qkv_proj = Linear(c.hidden_size, {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}, qkv_bias)
        self.o_proj = Linear(q_size, c.hidden_size, o_bias)
        self.q_norm = qk_norm(self.head_dim, c.rms_norm_eps) if qk_norm else None
        self.k_norm = qk_norm(self.head_dim, c.rms_norm_eps) if qk_norm else None
        self.rope = rope
        self.window = window
        self.softcap = softcap
        self.has_sinks = sinks
        self.scale = self.head_dim**-0.5 if scale is None else scale

    def kv_spec(self) -> KVGroupSpec:
        """The group of layers this one can share block tables with, as a group of one."""
        name = "full" if self.window is None else f"sliding-{self.window}"
        return KVGroupSpec(name, 1, self.num_kv_heads, self.head_dim, self.window)

    def create(self, name: str, build: Build) -> None:
        """Create or share the rope table, and the sinks."""
        if self.rope:
            self.cos_sin = self.rope.table(build)
        self.sinks = torch.empty(self.num_heads, device=build.device) if self.has_sinks else None

    def slots(self, name: str) -> Iterator[NamedSlot]:
        """The sinks; the projections and norms list their own."""
        if self.sinks is not None:
            yield NamedSlot(f"{name}.sinks", slot_of(self.sinks))

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """[T, hidden] -> [T, hidden]; writes this step's keys and values to their pages first."""
        heads = self.qkv_proj(x).unflatten(-1, (-1, self.head_dim))  # [T, H + 2G, D]
        q, k, v = heads.split((self.num_heads, self.num_kv_heads, self.num_kv_heads), dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            self.q_norm(q, out=q)
            self.k_norm(k, out=k)
        if self.rope is not None:
            rows, cos_sin = batch.positions, self.cos_sin
            if self.rope.by_length:
                cos_sin = self.rope.rotations(self.cos_sin, batch.positions, batch.lengths)
                rows = torch.arange(len(cos_sin), device=cos_sin.device)
            rotate(q, k, rows, cos_sin, self.rope.interleaved)
        pages = batch.kv_pages[self.kv_group][self.kv_layer]
        group = batch.attention[self.kv_group]
        write_kv(k, v, pages, group.slot_mapping)
        attended = paged_attention(q, pages, group, self.scale, self.window, self.softcap, self.sinks)
        return self.o_proj(attended.flatten(1))
