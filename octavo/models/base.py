"""A causal language model, stated for one device. A family gives its `layer`, and what differs around the layers.

Knows no files, requests or devices: tensors come through slots (`models/build.py`), the batch from the worker.
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from octavo.attention.batch import ForwardBatch
from octavo.config import KVGroupSpec
from octavo.layers.attention import Attention
from octavo.layers.block import Block
from octavo.layers.build import Build, Layer, NamedSlot
from octavo.layers.config import TextConfig
from octavo.layers.embedding import Embedding, Head
from octavo.layers.norm import RMSNorm


class Decoder(nn.Module):
    """Embedding, layers and the last norm, under the names that checkpoints use."""

    def __init__(self, embed_tokens: Embedding, layers: list[Block], norm: RMSNorm) -> None:
        super().__init__()
        self.embed_tokens = embed_tokens
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Hidden states [T, hidden] after the last norm."""
        if batch.inputs_embeds is None:
            residual = self.embed_tokens(batch.input_ids)
        else:
            residual = batch.inputs_embeds.clone()  # layers add to it in place
        branch: Tensor | None = None
        for layer in self.layers:
            branch = layer(branch, residual, batch)
        return self.norm.add(branch, residual)


class CausalLM(nn.Module):
    """Base of every family. Subclasses define `layer`, and override what is not plain.

    Attributes:
        kv_groups: layers that share block tables: full attention first, then sliding windows.
        vocab_size: rows of the output head.
    """

    norm: type[RMSNorm] = RMSNorm

    def __init__(self, c: TextConfig) -> None:
        super().__init__()
        self.vocab_size: int = c.vocab_size
        layers = [self.layer(c, i) for i in range(c.num_hidden_layers)]
        self.model = Decoder(self.embedding(c), layers, self.norm(c.hidden_size, c.rms_norm_eps))
        self.lm_head = self.head(c, self.model.embed_tokens if c.tie_word_embeddings else None)
        self.kv_groups = assign_kv_groups([layer.self_attn for layer in layers])

    def layer(self, c: TextConfig, i: int) -> Block:
        """Layer i."""
        raise TypeError(f"{type(self).__name__} defines no layer")

    def embedding(self, c: TextConfig) -> Embedding:
        """The token embedding."""
        return Embedding(c.vocab_size, c.hidden_size)

    def head(self, c: TextConfig, tied: Embedding | None) -> Head:
        """The output head."""
        return Head(c.vocab_size, c.hidden_size, tied=tied)

    def tensor_name(self, name: str) -> str | None:
        """The name in this model of a checkpoint's tensor; None for one that is of no use here."""
        return None if name.endswith("rotary_emb.inv_freq") else name

    def materialize(self, build: Build) -> None:
        """Create all tensors, uninitialized, in one walk."""
        for name, module in self.named_modules():
            if isinstance(module, Layer):
                module.create(name, build)

    def slots(self) -> Iterator[NamedSlot]:
        """A slot for every tensor of a checkpoint."""
        for name, module in self.named_modules():
            if isinstance(module, Layer):
                yield from module.slots(name)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Hidden states [T, hidden] of this step's tokens; their keys and values are in the pages afterwards."""
        return self.model(batch)

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """[S, hidden] -> [S, vocab_size] float32, written to `out` when given."""
        return self.lm_head(hidden, out)


def assign_kv_groups(attentions: list[Attention]) -> list[KVGroupSpec]:
    """Group layers of the same kind, full attention first, and tell each its group and its place in it."""
    members: dict[KVGroupSpec, list[Attention]] = {}
    for attention in attentions:
        members.setdefault(attention.kv_spec(), []).append(attention)
    specs = sorted(members, key=lambda spec: spec.window is not None)
    for group, spec in enumerate(specs):
        for place, attention in enumerate(members[spec]):
            attention.kv_group, attention.kv_layer = group, place
    return [replace(spec, num_layers=len(members[spec])) for spec in specs]
