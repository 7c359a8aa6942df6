"""Tiny worlds for tests: random checkpoints of every family, and a paged execution without an engine.

`run_model` is what scheduler and worker do to a model, at its worst: random chunk sizes, mixed batches, shuffled pages
full of NaN, pages dropped as soon as the window has passed them, shared prefixes, padding tokens.
"""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from octavo.attention.batch import AttentionBatch, ForwardBatch
from octavo.config import KVGroupSpec, ModelSpec
from octavo.loader.hf_config import context_length, normalize_config
from octavo.models.base import CausalLM
from octavo.models.build import load_model
from octavo.ops.empty_pages import empty_pages

torch.set_num_threads(1)  # matrices this small only lose by being shared out

VOCAB_SIZE = 96
WINDOW = 24

COMMON = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "mistral": {"model_type": "mistral", "sliding_window": WINDOW, "head_dim": 24},
    "smollm3": {"model_type": "smollm3", "num_hidden_layers": 4, "tie_word_embeddings": True},
    "granite": {
        "model_type": "granite",
        "embedding_multiplier": 6.0,
        "attention_multiplier": 0.17,
        "residual_multiplier": 0.41,
        "logits_scaling": 1.7,
    },
    "qwen2": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "max_window_layers": 1,
        "tie_word_embeddings": True,
    },
    "qwen3": {"model_type": "qwen3", "head_dim": 32},
    "gemma2": {
        "model_type": "gemma2",
        "num_hidden_layers": 4,
        "head_dim": 24,
        "query_pre_attn_scalar": 20,
        "sliding_window": WINDOW,
        "attn_logit_softcapping": 4.0,
        "final_logit_softcapping": 5.0,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 7,
        "head_dim": 24,
        "query_pre_attn_scalar": 20,
        "sliding_window": WINDOW,
    },
}
"""Settings of config.json by family, beside `COMMON`: every feature is on, and both kinds of layer appear."""

SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn-untruncated": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "truncate": False,
        "beta_fast": 16.0,
        "mscale": 0.8,
        "mscale_all_dim": 0.4,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "longrope": {
        "rope_type": "longrope",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "short_factor": [1.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8],
        "long_factor": [1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0],
    },
}
"""Rope scalings by name, for a model trained on 64 positions."""


def scaled_checkpoint(name: str, folder: Path) -> Path:
    """Write a random Llama checkpoint with a rope scaling of `SCALINGS`, for 256 positions."""
    rope = {"rope_theta": 10000.0, **SCALINGS[name]}
    return tiny_checkpoint("llama", folder, rope_parameters=rope, max_position_embeddings=256)


def tiny_checkpoint(family: str, folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Write a random checkpoint of a family as Transformers does; logits have a standard deviation of 1 or more."""
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 (a second to import)

    settings = {**COMMON, **FAMILIES[family], **overrides}
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    randomize(model, seed, gemma="gemma" in family)
    with torch.no_grad():
        assert model(torch.arange(VOCAB_SIZE).unsqueeze(0)).logits.std() >= 1
    model.save_pretrained(folder)
    return folder


def randomize(model: torch.nn.Module, seed: int, gemma: bool) -> None:
    """Weights that make every part matter: peaked attention, norms that are not 1, biases that are not 0."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if weight.dim() == 1:
            is_scale = name.endswith("norm.weight") or "layernorm" in name
            weight.data = 0.2 * noise + (1.0 if is_scale and not gemma else 0.0)
        elif "embed_tokens" in name or "lm_head" in name:
            weight.data = 0.4 * noise
        else:
            gain = 1.7 if "q_proj" in name or "k_proj" in name else 1.0
            weight.data = gain * noise / weight.shape[1] ** 0.5


def reference_model(folder: Path) -> torch.nn.Module:
    """Transformers' own reading of a checkpoint, float32."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 (a second to import)

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def reference_logits(folder: Path, token_ids: Sequence[int]) -> Tensor:
    """[len(token_ids), vocab] float32: one pass of Transformers over the whole prompt."""
    with torch.no_grad():
        return reference_model(folder)(torch.tensor([list(token_ids)]), use_cache=False).logits[0]


def spec_for(folder: Path, **hf_overrides: Any) -> ModelSpec:
    """The spec of a checkpoint folder; `hf_overrides` replace keys of the normalized config."""
    raw = json.loads((folder / "config.json").read_text())
    config = normalize_config(raw) | hf_overrides
    return ModelSpec(
        name=folder.name,
        path=str(folder),
        format="safetensors",
        architecture=config["architectures"][0],
        hf_config=config,
        context_length=context_length(config),
        vocab_size=config["vocab_size"],
        eos_token_ids=(2,),
        generation_config={},
        tokenizer_path=str(folder),
        checkpoint_dtype="float32",
    )


def load_tiny(
    folder: Path, dtype: torch.dtype = torch.float32, max_model_len: int | None = None, **hf_overrides: Any
) -> CausalLM:
    """Our reading of a checkpoint folder."""
    weights = load_file(folder / "model.safetensors").items()
    return load_model(spec_for(folder, **hf_overrides), dtype, torch.device("cpu"), weights, max_model_len)


def random_prompt(length: int, seed: int = 0) -> list[int]:
    """Token ids without special ones."""
    return random.Random(seed).choices(range(3, VOCAB_SIZE), k=length)


@dataclass
class TinySequence:
    """One sequence in the harness: per KV group, its pages by block number."""

    token_ids: list[int]
    num_prompt: int
    num_computed: int = 0
    tables: list[list[int]] = field(default_factory=list)


@dataclass
class Prefix:
    """Take the pages of the first `num_tokens` tokens from another sequence, once it has computed them."""

    donor: int
    num_tokens: int


class PagedHarness:
    """Page pools and sequences of one model. Pages start as NaN and are handed out in random order.

    Args:
        prefixes: by sequence number.
        max_chunk: most tokens a sequence computes in one step.
        num_prompt: tokens of each prompt that count as such, the others as generated; all by default.
    """

    def __init__(
        self,
        model: CausalLM,
        prompts: Sequence[Sequence[int]],
        *,
        seed: int = 0,
        block_size: int = 4,
        max_chunk: int = 48,
        num_prompt: int | None = None,
        prefixes: dict[int, Prefix] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.model, self.block_size, self.max_chunk = model, block_size, max_chunk
        self.forward: Callable[[ForwardBatch], Tensor] = model.forward
        self.random = random.Random(seed)
        self.prefixes = dict(prefixes or {})
        num_blocks = sum(-(-len(prompt) // block_size) for prompt in prompts) + 3
        self.pools = [new_pool(spec, num_blocks, block_size, dtype) for spec in model.kv_groups]
        self.free = [self.random.sample(range(num_blocks), num_blocks) for _ in model.kv_groups]
        self.sequences = [
            TinySequence(list(prompt), num_prompt or len(prompt), tables=[[] for _ in model.kv_groups])
            for prompt in prompts
        ]
        self.logits = [torch.full((len(prompt), model.vocab_size), float("nan")) for prompt in prompts]
        self.num_steps = 0

    def run(self) -> list[Tensor]:
        """Logits [len(prompt), vocab] of every sequence; NaN where a shared prefix spared the work."""
        while any(seq.num_computed < len(seq.token_ids) for seq in self.sequences):
            self.step()
        return self.logits

    def step(self) -> None:
        """Compute a random chunk of a random part of the unfinished sequences."""
        self.num_steps += 1
        rows = [n for n, seq in enumerate(self.sequences) if seq.num_computed < len(seq.token_ids) and self.ready(n)]
        rows = self.random.sample(rows, self.random.randint(1, len(rows)))
        chunks = []
        for row in rows:
            left = len(self.sequences[row].token_ids) - self.sequences[row].num_computed
            chunks.append(min(left, self.random.choice((1, 1, self.random.randint(1, self.max_chunk), self.max_chunk))))
        self.compute(rows, chunks, padding=self.random.choice((0, 0, 3)))

    def ready(self, row: int) -> bool:
        """Adopt a shared prefix if this sequence has one and its donor is far enough."""
        prefix = self.prefixes.get(row)
        if prefix is None:
            return True
        donor = self.sequences[prefix.donor]
        if donor.num_computed < prefix.num_tokens:
            return False
        num_blocks = prefix.num_tokens // self.block_size
        assert donor.token_ids[: prefix.num_tokens] == self.sequences[row].token_ids[: prefix.num_tokens]
        self.sequences[row].tables = [table[:num_blocks] for table in donor.tables]
        self.sequences[row].num_computed = num_blocks * self.block_size
        del self.prefixes[row]
        return True

    def compute(self, rows: list[int], chunks: list[int], padding: int = 0) -> None:
        """One step: `chunks[i]` more tokens of sequence `rows[i]`."""
        picked = [self.sequences[row] for row in rows]
        for seq, chunk in zip(picked, chunks, strict=True):
            self.reserve(seq, seq.num_computed + chunk)
        ids = [seq.token_ids[seq.num_computed :][:chunk] for seq, chunk in zip(picked, chunks, strict=True)]
        places = [range(seq.num_computed, seq.num_computed + n) for seq, n in zip(picked, chunks, strict=True)]
        batch = ForwardBatch(
            input_ids=torch.tensor([i for part in ids for i in part] + [0] * padding),
            positions=torch.tensor([p for part in places for p in part] + [0] * padding),
            lengths=torch.tensor(
                [max(seq.num_prompt, p + 1) for seq, part in zip(picked, places, strict=True) for p in part]
                + [1] * padding
            ),
            attention=[self.attention_batch(group, picked, chunks, padding) for group in range(len(self.pools))],
            kv_pages=self.pools,
        )
        with torch.inference_mode():
            logits = self.model.logits(self.forward(batch))
        for row, where, part in zip(rows, places, logits.split([*chunks, padding])[: len(rows)], strict=True):
            self.logits[row][where.start : where.stop] = part
            self.sequences[row].num_computed = where.stop
            self.drop_passed_pages(self.sequences[row])

    def reserve(self, seq: TinySequence, num_tokens: int) -> None:
        """Append pages until the table covers `num_tokens`."""
        for group, table in enumerate(seq.tables):
            while len(table) * self.block_size < num_tokens:
                table.append(self.free[group].pop())

    def drop_passed_pages(self, seq: TinySequence) -> None:
        """Replace pages that no later query of a window sees by -1, unless another sequence may still need them."""
        for table, spec in zip(seq.tables, self.model.kv_groups, strict=True):
            if spec.window is None or self.prefixes:
                continue
            first_seen = seq.num_computed - spec.window + 1
            passed = max(first_seen, 0) // self.block_size
            table[:passed] = [-1] * passed

    def attention_batch(
        self, group: int, picked: list[TinySequence], chunks: list[int], padding: int
    ) -> AttentionBatch:
        """What the worker would build for one KV group."""
        tables = [seq.tables[group] for seq in picked]
        width = max(len(table) for table in tables) + 1
        slots = [
            table[p // self.block_size] * self.block_size + p % self.block_size
            for seq, table, chunk in zip(picked, tables, chunks, strict=True)
            for p in range(seq.num_computed, seq.num_computed + chunk)
        ]
        ends = [seq.num_computed + chunk for seq, chunk in zip(picked, chunks, strict=True)]
        return AttentionBatch(
            query_start=torch.tensor([0, *torch.tensor(chunks).cumsum(0)], dtype=torch.int32),
            seq_lens=torch.tensor(ends, dtype=torch.int32),
            block_table=torch.tensor([table + [-1] * (width - len(table)) for table in tables], dtype=torch.int32),
            slot_mapping=torch.tensor(slots + [-1] * padding),
            max_query_len=max(chunks),
            max_seq_len=max(ends),
        )


def new_pool(spec: KVGroupSpec, num_blocks: int, block_size: int, dtype: torch.dtype) -> Tensor:
    """[L, 2, B, G, block, D] of NaN: whatever is read without having been written shows."""
    return empty_pages(spec, num_blocks, block_size, dtype, torch.device("cpu")).fill_(float("nan"))


def run_model(model: CausalLM, prompts: Sequence[Sequence[int]], **options: Any) -> list[Tensor]:
    """Logits of every prompt, computed in random chunks and mixed batches; options as `PagedHarness`."""
    return PagedHarness(model, prompts, **options).run()


def run_whole(model: CausalLM, prompt: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Logits [len(prompt), vocab] of one prompt in one step."""
    harness = PagedHarness(model, [prompt], dtype=dtype)
    harness.compute([0], [len(prompt)])
    return harness.logits[0]
