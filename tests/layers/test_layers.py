"""Layers: parts by name, scales as the families round them, in-place residuals."""

from copy import deepcopy
from typing import Any

import pytest
import torch

from octavo.attention.batch import AttentionBatch, ForwardBatch
from octavo.errors import ModelError
from octavo.layers.attention import Attention
from octavo.layers.build import Build, Layer
from octavo.layers.config import TextConfig
from octavo.layers.embedding import Embedding, Head
from octavo.layers.linear import Linear
from octavo.layers.mlp import ACTIVATIONS, GatedMLP
from octavo.layers.norm import GemmaRMSNorm, RMSNorm
from octavo.quantization.registry import QUANT_METHODS, format_of


def create(layer: Layer, name: str = "a.b.own", dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Make the layer's tensors; returns its slots by name."""
    layer.create(name, Build(dtype, torch.device("cpu"), 32, format_of))
    return {named.name: named.slot for named in layer.slots(name)}


def test_parts_of_a_fused_linear_are_named_beside_it_and_stacked_in_order() -> None:
    layer = Linear(4, {"q_proj": 3, "k_proj": 2}, bias=True)
    slots = create(layer, "model.layers.0.self_attn.qkv_proj")
    parent = "model.layers.0.self_attn"
    assert {name: tuple(slot.shape) for name, slot in slots.items()} == {
        f"{parent}.q_proj.weight": (3, 4),
        f"{parent}.k_proj.weight": (2, 4),
        f"{parent}.q_proj.bias": (3,),
        f"{parent}.k_proj.bias": (2,),
    }
    tensors = {name: torch.randn(slot.shape) for name, slot in slots.items()}
    for name in reversed(tensors):
        slots[name].write(tensors[name])
    x = torch.randn(5, 4)
    expected = [x @ tensors[f"{parent}.{p}.weight"].t() + tensors[f"{parent}.{p}.bias"] for p in ("q_proj", "k_proj")]
    torch.testing.assert_close(layer(x), torch.cat(expected, 1))


def test_a_plain_linear_goes_by_its_own_name() -> None:
    assert list(create(Linear(4, 3), "model.layers.0.mlp.down_proj")) == ["model.layers.0.mlp.down_proj.weight"]


def test_gemma_norm_adds_one_when_loaded_and_again_when_reloaded() -> None:
    norm = GemmaRMSNorm(3, 1e-6)
    slot = create(norm)["a.b.own.weight"]
    for _ in range(2):
        slot.write(torch.tensor([0.5, -1.0, 0.0], dtype=torch.bfloat16))
        assert norm.weight.tolist() == [1.5, 0.0, 1.0]


@pytest.mark.parametrize("norm_class", [RMSNorm, GemmaRMSNorm])
def test_norm_weights_stay_in_float32(norm_class: type[RMSNorm]) -> None:
    norm = norm_class(3, 1e-6)
    create(norm, dtype=torch.bfloat16)
    assert norm.weight.dtype == torch.float32


def test_gemma_embedding_scale_is_rounded_to_the_compute_dtype() -> None:
    scaled = Embedding(5, 2, scale=3072**0.5, round_scale=True)
    create(scaled, dtype=torch.bfloat16)
    scaled.weight.fill_(1.0)
    assert scaled(torch.tensor([3]))[0, 0] == 55.5  # 55.4256 in bfloat16
    plain = Embedding(5, 2, scale=3072**0.5)
    create(plain)
    plain.weight.fill_(1.0)
    assert plain(torch.tensor([3]))[0, 0] == torch.tensor(3072**0.5)


def test_head_divides_then_caps() -> None:
    head = Head(4, 2, divisor=2.0, softcap=3.0)
    create(head)
    head.weight.copy_(torch.arange(8.0).view(4, 2))
    hidden = torch.tensor([[1.0, -0.25]])
    expected = 3.0 * torch.tanh(hidden @ head.weight.t() / 2.0 / 3.0)
    torch.testing.assert_close(head(hidden), expected)


@pytest.mark.parametrize(("name", "torch_name"), [("silu", "silu"), ("gelu", "gelu"), ("gelu_pytorch_tanh", "gelu")])
def test_gated_mlp_is_down_of_activated_gate_times_up(name: str, torch_name: str) -> None:
    mlp = GatedMLP(TextConfig({"hidden_size": 8, "intermediate_size": 12}), name)
    slots = create(mlp.gate_up_proj, "mlp.gate_up_proj") | create(mlp.down_proj, "mlp.down_proj")
    gate, up, down = (torch.randn(slots[f"mlp.{part}_proj.weight"].shape) for part in ("gate", "up", "down"))
    for part, tensor in zip(("gate", "up", "down"), (gate, up, down), strict=True):
        slots[f"mlp.{part}_proj.weight"].write(tensor)
    options = {"approximate": "tanh"} if name == "gelu_pytorch_tanh" else {}
    x = torch.randn(3, 8)
    activated = getattr(torch.nn.functional, torch_name)(x @ gate.t(), **options)
    torch.testing.assert_close(mlp(x), activated * (x @ up.t()) @ down.t(), rtol=1e-4, atol=1e-5)


def test_attention_sinks_have_a_slot_of_their_own_and_weaken_the_values() -> None:
    config = {"hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4}
    attention = Attention(TextConfig(config), None, sinks=True)
    attention.kv_group = attention.kv_layer = 0
    slots = create(attention, "self_attn")
    for layer, name in ((attention.qkv_proj, "self_attn.qkv_proj"), (attention.o_proj, "self_attn.o_proj")):
        for slot in create(layer, name).values():
            slot.write(torch.randn(slot.shape))
    ints = {"dtype": torch.int32}
    rows = AttentionBatch(
        query_start=torch.tensor([0, 1], **ints),
        seq_lens=torch.tensor([1], **ints),
        block_table=torch.tensor([[0]], **ints),
        slot_mapping=torch.tensor([0]),
        max_query_len=1,
        max_seq_len=1,
    )
    batch = ForwardBatch(
        torch.tensor([0]), torch.tensor([0]), torch.tensor([1]), [rows], [torch.zeros(1, 2, 1, 1, 4, 4)]
    )
    x = torch.randn(1, 8)
    outputs = []
    for sink in (-1e9, 1e9):
        slots["self_attn.sinks"].write(torch.tensor([sink, sink]))
        outputs.append(attention(x, batch))
    values = attention.qkv_proj(x)[:, -4:].repeat(1, 2)  # one key has all the weight, or the sink has
    torch.testing.assert_close(outputs[0], attention.o_proj(values))
    assert torch.equal(outputs[1], torch.zeros(1, 8))


def test_a_config_can_be_copied_and_names_a_key_it_lacks() -> None:
    config = deepcopy(TextConfig({"model_type": "llama", "hidden_size": 8}))
    assert config.hidden_size == 8
    with pytest.raises(ModelError, match="this llama lacks 'head_dim'"):
        config.head_dim  # noqa: B018


def test_every_activation_and_weight_format_loads() -> None:
    assert set(ACTIVATIONS) == {"silu", "swish", "gelu", "gelu_tanh", "gelu_pytorch_tanh"}
    for name in QUANT_METHODS:
        made = QUANT_METHODS.load(name)(4, {"a": 2}, False, torch.float32, torch.device("cpu"))
        assert [slot.part for slot in made.slots()] == ["a"]
