"""Loading: any order, once in memory, and an error that names the tensor for everything that does not fit."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from octavo.errors import ModelError
from octavo.models.build import build_model, check_weights, load_model, load_weights
from octavo.models.registry import MODELS
from tests.tiny import FAMILIES, load_tiny, random_prompt, run_whole, spec_for, tiny_checkpoint

CPU = torch.device("cpu")
PROMPT = random_prompt(20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture
def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint("llama", tmp_path_factory.mktemp("tied"), tie_word_embeddings=True)


def test_tensors_may_come_in_any_order_and_again_later(folder: Path, weights: dict[str, Tensor]) -> None:
    expected = run_whole(load_tiny(folder), PROMPT)
    shuffled = random.Random(0).sample(sorted(weights.items()), len(weights))
    wrong_first = [(name, torch.randn_like(tensor)) for name, tensor in shuffled]
    model = load_model(spec_for(folder), torch.float32, CPU, [*wrong_first, *shuffled])
    assert torch.equal(run_whole(model, PROMPT), expected)


def test_an_update_of_some_tensors_takes_effect_in_place(folder: Path, weights: dict[str, Tensor]) -> None:
    model = load_tiny(folder)
    before, address = run_whole(model, PROMPT), model.model.embed_tokens.weight.data_ptr()
    name = "model.layers.1.self_attn.k_proj.weight"
    load_weights(model, [(name, -weights[name])], "an update", partial=True)
    assert not torch.equal(run_whole(model, PROMPT), before)
    load_weights(model, [(name, weights[name])], "an update", partial=True)
    assert torch.equal(run_whole(model, PROMPT), before)
    assert model.model.embed_tokens.weight.data_ptr() == address


def test_a_tensor_that_is_there_twice_is_named(folder: Path, weights: dict[str, Tensor]) -> None:
    outline = build_model(spec_for(folder), torch.float32, torch.device("meta"))
    shapes = [(name, tensor.shape) for name, tensor in weights.items()]
    check_weights(outline, shapes, "here")
    with pytest.raises(ModelError, match=f"here: tensor '{shapes[7][0]}' is there twice"):
        check_weights(outline, [*shapes, shapes[7]], "here")


@pytest.mark.parametrize("name", ["model.layers.2.self_attn.k_proj.weight", "model.norm.weight", "lm_head.weight"])
def test_a_missing_tensor_is_named(name: str, folder: Path, weights: dict[str, Tensor]) -> None:
    del weights[name]
    with pytest.raises(ModelError, match=rf"1 of \d+ tensors are missing .*{name}"):
        load_model(spec_for(folder), torch.float32, CPU, weights.items())


def test_an_unknown_tensor_is_named(folder: Path, weights: dict[str, Tensor]) -> None:
    weights["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(64)
    with pytest.raises(ModelError, match=r"model\.layers\.0\.self_attn\.q_proj\.bias.* is not part of"):
        load_model(spec_for(folder), torch.float32, CPU, weights.items())


def test_a_tensor_of_another_shape_is_named_with_both_shapes(folder: Path, weights: dict[str, Tensor]) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    weights[name] = weights[name][:-1]
    with pytest.raises(ModelError, match=rf"{name}.* is \[95, 64\] but .* says \[96, 64\]"):
        load_model(spec_for(folder), torch.float32, CPU, weights.items())


def test_rope_frequencies_in_old_checkpoints_are_ignored(folder: Path, weights: dict[str, Tensor]) -> None:
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    load_model(spec_for(folder), torch.float32, CPU, weights.items())


def test_a_tied_head_shares_the_memory_of_the_embedding(tied: Path) -> None:
    model = load_tiny(tied)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


@pytest.mark.parametrize("head_first", [True, False])
def test_a_tied_checkpoint_may_bring_the_table_twice_but_not_two_tables(tied: Path, head_first: bool) -> None:
    weights = list(load_file(tied / "model.safetensors").items())
    table = dict(weights)["model.embed_tokens.weight"]
    at = 0 if head_first else len(weights)
    same, other = ([*weights[:at], ("lm_head.weight", head), *weights[at:]] for head in (table, table + 1))
    model = load_model(spec_for(tied), torch.bfloat16, CPU, same)
    load_weights(model, same, "a checkpoint")
    with pytest.raises(ModelError, match=r"tie_word_embeddings is true but .* differs"):
        load_model(spec_for(tied), torch.bfloat16, CPU, other)


def test_weights_are_held_once(folder: Path, weights: dict[str, Tensor]) -> None:
    model = load_tiny(folder, dtype=torch.bfloat16)
    sizes = {slot.name: slot.slot.shape.numel() for slot in model.slots()}
    assert sizes == {name: tensor.numel() for name, tensor in weights.items()}
    linears = [m.weights.weight for m in model.modules() if hasattr(m, "weights")]
    tables = [model.model.embed_tokens.weight, model.lm_head.weight]
    norms = sum(size for name, size in sizes.items() if "norm" in name)
    assert sum(t.numel() for t in (*linears, *tables)) + norms == sum(sizes.values())
    assert {t.dtype for t in (*linears, *tables)} == {torch.bfloat16}


def test_layers_with_the_same_rope_share_one_table(tmp_path: Path) -> None:
    model = load_tiny(tiny_checkpoint("gemma3", tmp_path))
    tables = {layer.self_attn.cos_sin.data_ptr() for layer in model.model.layers}
    assert len(model.model.layers) == 7 and len(tables) == 2


def test_an_unknown_architecture_is_named_with_the_known_ones(folder: Path) -> None:
    spec = replace(spec_for(folder), architecture="MambaForCausalLM")
    with pytest.raises(ModelError, match=r"MambaForCausalLM.*known:.*LlamaForCausalLM"):
        build_model(spec, torch.float32, CPU)


def test_an_unknown_activation_is_named(folder: Path) -> None:
    with pytest.raises(ModelError, match="unknown activation 'relu'"):
        build_model(spec_for(folder, hidden_act="relu"), torch.float32, CPU)


def test_a_key_that_the_config_lacks_is_named(folder: Path) -> None:
    spec = spec_for(folder)
    del spec.hf_config["intermediate_size"]
    with pytest.raises(ModelError, match="lacks 'intermediate_size'"):
        build_model(spec, torch.float32, CPU)


def test_gemma_3_reads_the_text_part_of_a_checkpoint_with_images(tmp_path: Path) -> None:
    folder = tiny_checkpoint("gemma3", tmp_path)
    expected = run_whole(load_tiny(folder), PROMPT)
    spec = replace(spec_for(folder), architecture="Gemma3ForConditionalGeneration")
    for prefix in ("language_model.model.", "model.language_model."):
        weights = {
            name.replace("model.", prefix, 1): tensor
            for name, tensor in load_file(folder / "model.safetensors").items()
        }
        weights["model.vision_tower.patch.weight"] = torch.zeros(3)
        weights["multi_modal_projector.norm.weight"] = torch.zeros(3)
        model = load_model(spec, torch.float32, CPU, weights.items())
        assert torch.equal(run_whole(model, PROMPT), expected)


def test_kv_groups_put_full_attention_first_and_number_the_layers(tmp_path: Path) -> None:
    model = load_tiny(tiny_checkpoint("gemma3", tmp_path))
    full, sliding = model.kv_groups
    assert (full.name, full.num_layers, full.window) == ("full", 1, None)
    assert (sliding.name, sliding.num_layers, sliding.window) == ("sliding-24", 6, 24)
    places = [(layer.self_attn.kv_group, layer.self_attn.kv_layer) for layer in model.model.layers]
    assert places == [(1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (0, 0), (1, 5)]


def test_every_family_of_the_registry_has_a_tiny_world() -> None:
    families = {MODELS.load(name) for name in MODELS}
    assert len(families) == len(FAMILIES)
