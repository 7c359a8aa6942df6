"""Weights of a folder: single file or shards; an index that does not agree with them stops the start-up."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from octavo.errors import ModelError
from octavo.loader.safetensors_files import INDEX, SINGLE, find_tensors
from octavo.loader.weights import LOADERS, iterate_weights
from tests.loader.specs import spec_of


def weights_of(folder: Path, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return dict(iterate_weights(spec_of(folder), dtype))


@pytest.fixture
def single(checkpoint, tmp_path) -> Path:
    """A copy of a one-file checkpoint."""
    return shutil.copytree(checkpoint("llama"), tmp_path / "single")


@pytest.fixture
def sharded(checkpoint, tmp_path) -> Path:
    """The same checkpoint in several shards with an index."""
    folder = tmp_path / "sharded"
    AutoModelForCausalLM.from_pretrained(checkpoint("llama")).save_pretrained(folder, max_shard_size="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    return folder


def rewrite_index(folder: Path, change) -> str:
    """Change an index's map; returns the name of its first tensor."""
    index = json.loads((folder / INDEX).read_text())
    first = next(iter(index["weight_map"]))
    change(index["weight_map"], first)
    (folder / INDEX).write_text(json.dumps(index))
    return first


def resolve_error(folder: Path) -> str:
    with pytest.raises(ModelError, match=re.escape(str(folder))) as caught:
        spec_of(folder)
    return str(caught.value)


def test_single_file_yields_what_is_stored(single):
    stored = load_file(single / SINGLE)
    ours = weights_of(single)
    assert ours.keys() == stored.keys()
    assert all(torch.equal(ours[name], stored[name]) for name in stored)


def test_shards_yield_the_same_tensors(single, sharded):
    whole, parts = weights_of(single), weights_of(sharded)
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_norms_stay_float32_and_the_rest_takes_the_dtype(single):
    stored = load_file(single / SINGLE)
    for name, weight in weights_of(single, torch.bfloat16).items():
        expected = stored[name] if name.endswith("norm.weight") else stored[name].bfloat16()
        assert weight.dtype is expected.dtype and torch.equal(weight, expected)


def test_data_that_the_header_does_not_align_is_read_right(single):
    content = (single / SINGLE).read_bytes()
    size = int.from_bytes(content[:8], "little")
    padded = content[8 : 8 + size] + b" "
    before = weights_of(single)
    before = {name: weight.clone() for name, weight in before.items()}
    (single / SINGLE).write_bytes((size + 1).to_bytes(8, "little") + padded + content[8 + size :])
    assert all(torch.equal(before[name], weight) for name, weight in weights_of(single).items())


def test_tied_head_in_the_file_is_left_out(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint("qwen2"), tmp_path / "tied")
    stored = load_file(folder / SINGLE)
    save_file({**stored, "lm_head.weight": stored["model.embed_tokens.weight"] + 1}, folder / SINGLE)
    assert "lm_head.weight" not in weights_of(folder)


def test_head_that_is_neither_there_nor_tied_is_missed_by_name(single):
    stored = load_file(single / SINGLE)
    del stored["lm_head.weight"]
    save_file(stored, single / SINGLE)
    with pytest.raises(ModelError, match=re.escape(str(single)) + r".*'lm_head\.weight' is missing"):
        weights_of(single)


@pytest.mark.parametrize("prefixes", [("language_model.", "language_model."), ("model.language_model.", "")])
def test_text_model_of_a_wrapper_is_taken_out(single, prefixes):
    model_prefix, head_prefix = prefixes

    def wrapped(name: str) -> str:
        if name.startswith("lm_head"):
            return head_prefix + name
        return model_prefix + (name if head_prefix else name.removeprefix("model."))

    stored = load_file(single / SINGLE)
    extra = {"vision_tower.embeddings.weight": torch.ones(2), "model.multi_modal_projector.norm.weight": torch.ones(2)}
    save_file({wrapped(name): weight for name, weight in stored.items()} | extra, single / SINGLE)
    ours = weights_of(single)
    assert ours.keys() == stored.keys()
    assert all(torch.equal(ours[name], stored[name]) for name in stored)


def test_integer_weights_are_refused_by_name(single):
    stored = load_file(single / SINGLE)
    save_file({**stored, "model.layers.0.mlp.up_proj.qweight": torch.ones(2, dtype=torch.int32)}, single / SINGLE)
    with pytest.raises(ModelError, match=r"model\.safetensors: tensor 'model\.layers\.0\.mlp\.up_proj\.qweight'.*I32"):
        weights_of(single)


def test_index_naming_an_absent_shard_names_file_and_tensor(sharded):
    first = rewrite_index(
        sharded, lambda weight_map, name: weight_map.update({name: "model-00009-of-00009.safetensors"})
    )
    message = resolve_error(sharded)
    assert "model-00009-of-00009.safetensors is missing" in message and first in message


def test_index_missing_one_tensor_names_it(sharded):
    first = rewrite_index(sharded, lambda weight_map, name: weight_map.pop(name))
    assert f"does not list tensor {first!r}" in resolve_error(sharded)


def test_index_naming_a_tensor_no_shard_has_names_it(sharded):
    rewrite_index(sharded, lambda weight_map, name: weight_map.update({"ghost.weight": weight_map[name]}))
    assert "lacks tensor 'ghost.weight'" in resolve_error(sharded)


def test_shard_cut_by_half_names_file_and_tensor(sharded):
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    message = resolve_error(sharded)
    assert shard.name in message and "truncated" in message and "tensor 'model." in message


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": "../a.safetensors"}}'])
def test_index_that_is_none_is_named(sharded, content):
    (sharded / INDEX).write_text(content)
    assert INDEX in resolve_error(sharded)


def test_buffers_of_old_releases_are_no_weights(sharded):
    shard = sorted(sharded.glob("*.safetensors"))[0]
    save_file({**load_file(shard), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}, shard)
    assert not [name for name in weights_of(sharded) if "rotary" in name]


def test_folder_without_safetensors_says_what_it_has(single):
    (single / SINGLE).rename(single / "pytorch_model.bin")
    assert "pytorch_model.bin" in resolve_error(single)


def test_several_files_without_an_index_are_refused(single):
    shutil.copy(single / SINGLE, single / "a.safetensors")
    shutil.move(single / SINGLE, single / "b.safetensors")
    assert INDEX in resolve_error(single)


def test_a_single_file_may_have_any_name(single):
    (single / SINGLE).rename(single / "weights.safetensors")
    assert {stored.path for stored in find_tensors(single).values()} == {str(single / "weights.safetensors")}


def test_every_weight_format_can_be_imported():
    assert all(callable(LOADERS.load(name)) for name in LOADERS)
