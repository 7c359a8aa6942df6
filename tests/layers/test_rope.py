"""Rope tables equal those of Transformers at positions where a sloppy computation shows."""

from typing import Any

import pytest
import torch

from octavo.errors import ModelError
from octavo.layers.build import Build
from octavo.layers.rope import Rope
from octavo.loader.hf_config import normalize_config
from octavo.quantization.registry import format_of

LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
KINDS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {**LLAMA3, "original_max_position_embeddings": 8192},
    "yarn": YARN,
    "yarn-given": {**YARN, "beta_fast": 24.0, "beta_slow": 2.0, "truncate": False, "attention_factor": 1.3},
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1 + i / 64 for i in range(32)],
        "long_factor": [1 + i for i in range(32)],
        "original_max_position_embeddings": 4096,
    },
}
LENGTH = 131072
POSITIONS = torch.tensor([0, 1, 10, 63, 64, 199, 4095, 4096, 40000, 131071])


def transformers_table(rope: dict[str, Any]) -> torch.Tensor:
    from transformers import LlamaConfig  # noqa: PLC0415 (a second to import)
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding  # noqa: PLC0415

    config = LlamaConfig(
        hidden_size=256, num_attention_heads=4, max_position_embeddings=LENGTH, rope_parameters=dict(rope)
    )
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), POSITIONS.unsqueeze(0))
    return torch.cat((cos[0, :, :32], sin[0, :, :32]), 1)


def our_rope(rope: dict[str, Any]) -> Rope:
    raw = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 256,
        "num_attention_heads": 4,
        "max_position_embeddings": LENGTH,
        "rope_parameters": dict(rope),
    }
    return Rope(64, normalize_config(raw)["rope_parameters"], LENGTH)


@pytest.mark.parametrize("kind", KINDS)
def test_table_equals_transformers_up_to_its_last_row(kind: str) -> None:
    rope = {"rope_theta": 500000.0, **KINDS[kind]}
    table = our_rope(rope).compute_table(LENGTH)
    assert table.shape == (LENGTH, 64) and table.dtype == torch.float32
    torch.testing.assert_close(table[POSITIONS], transformers_table(rope), rtol=0, atol=1e-6)


def test_dynamic_is_unscaled_up_to_the_original_length_and_grows_its_base_beyond() -> None:
    rope = Rope(16, {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}, 64)
    frequencies = rope.compute_table(200)
    plain = Rope(16, {"rope_type": "default", "rope_theta": 10000.0}, 64).compute_table(200)
    positions, lengths = torch.tensor([0, 63, 30, 149]), torch.tensor([1, 64, 40, 150])
    rows = rope.rotations(frequencies, positions, lengths)
    assert torch.equal(rows[:3], plain[positions[:3]])
    base = 10000.0 * (4.0 * 150 / 64 - 3.0) ** (16 / 14)
    angles = 149 * base ** (-torch.arange(0, 16, 2, dtype=torch.float64) / 16)
    torch.testing.assert_close(rows[3], torch.cat((angles.cos(), angles.sin())).float(), rtol=0, atol=1e-4)


def test_a_partial_rotary_factor_narrows_the_table() -> None:
    parameters = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    narrow = Rope(64, parameters, 128).compute_table(20)
    assert torch.equal(narrow, Rope(32, {"rope_type": "default", "rope_theta": 10000.0}, 128).compute_table(20))


def test_an_unknown_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ModelError, match=r"'foo'; known: default, .*llama3"):
        Rope(16, {"rope_type": "foo", "rope_theta": 10000.0}, 64)


def test_equal_ropes_share_a_table_and_others_do_not() -> None:
    build = Build(torch.float32, torch.device("cpu"), 32, format_of)
    tables = [Rope(16, {"rope_type": "default", "rope_theta": base}, 64).table(build) for base in (1e4, 1e4, 1e6)]
    assert tables[0] is tables[1]
    assert not torch.equal(tables[0], tables[2])
