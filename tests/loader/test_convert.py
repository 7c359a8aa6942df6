"""What `convert` writes, Transformers loads: with the same logits and token ids as the file it came from."""

import json
import re

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from octavo.errors import ConfigError, ModelError
from octavo.loader import convert as convert_module
from octavo.loader.convert import convert
from octavo.loader.weights import iterate_weights
from octavo.tokenizer.tokenizer import load_tokenizer
from tests.loader.gguf_files import CHAT_TEMPLATE, write_gguf
from tests.loader.specs import spec_of
from tests.tiny import reference_logits

VOCABULARY = {"vocab_size": 261, "bos_token_id": 1, "eos_token_id": 2}


@pytest.fixture
def gguf_file(checkpoint, tmp_path):
    return write_gguf(checkpoint("llama", **VOCABULARY), tmp_path / "m.gguf", tokenizer=True)


@pytest.mark.parametrize("family", ["llama", "granite", "qwen2", "qwen3", "gemma2", "gemma3"])
def test_converted_gguf_has_the_logits_of_the_original(checkpoint, tmp_path, family):
    folder = checkpoint(family, **VOCABULARY)
    path = write_gguf(folder, tmp_path / "m.gguf", tokenizer=True)
    out = convert(str(path), tmp_path / "out", dtype="float32")
    prompt = list(range(3, 60))
    torch.testing.assert_close(reference_logits(out, prompt), reference_logits(folder, prompt), rtol=0, atol=2e-5)


def test_converted_folder_resolves_like_its_source(gguf_file, tmp_path):
    out = convert(str(gguf_file), tmp_path / "out")
    source, written = spec_of(gguf_file), spec_of(out)
    assert {key: written.hf_config[key] for key in source.hf_config if source.hf_config[key] is not None} == {
        key: value for key, value in source.hf_config.items() if value is not None
    }
    assert (written.eos_token_ids, written.context_length) == (source.eos_token_ids, source.context_length)
    assert written.checkpoint_dtype == "bfloat16"
    ours, theirs = (dict(iterate_weights(spec, torch.bfloat16)) for spec in (source, written))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_converted_tokenizer_gives_the_same_ids(gguf_file, tmp_path):
    out = convert(str(gguf_file), tmp_path / "out")
    ours, theirs = load_tokenizer(str(gguf_file)), AutoTokenizer.from_pretrained(out)
    for text in ("the cat", " 12345 é😀\n\n\tx", "<|im_start|>user\nhi<|im_end|>", ""):
        assert theirs(text).input_ids == ours.encode(text)
    assert theirs.chat_template == CHAT_TEMPLATE


def test_weights_are_split_into_shards_that_transformers_reads(gguf_file, tmp_path):
    whole = convert(str(gguf_file), tmp_path / "whole", dtype="float32")
    split = convert(str(gguf_file), tmp_path / "split", dtype="float32", max_shard_bytes=100_000)
    shards = sorted(path.name for path in split.glob("*.safetensors"))
    assert len(shards) > 2 and shards[0] == f"model-00001-of-{len(shards):05}.safetensors"
    state = AutoModelForCausalLM.from_pretrained(split).state_dict()
    for name, weight in AutoModelForCausalLM.from_pretrained(whole).state_dict().items():
        assert torch.equal(state[name], weight)


def test_sampling_defaults_travel_along(checkpoint, tmp_path):
    def extra(writer):
        writer.add_float32("general.sampling.temp", 0.5)

    path = write_gguf(checkpoint("llama", **VOCABULARY), tmp_path / "m.gguf", tokenizer=True, extra=extra)
    out = convert(str(path), tmp_path / "out")
    assert spec_of(out).generation_config == {"temperature": 0.5}
    assert AutoModelForCausalLM.from_pretrained(out).generation_config.temperature == 0.5


def test_progress_counts_the_bytes(gguf_file, tmp_path):
    reports = []
    out = convert(str(gguf_file), tmp_path / "out", progress=lambda *report: reports.append(report))
    assert reports[-1][1] <= (out / "model.safetensors").stat().st_size
    assert [done for _, done, _ in reports] == sorted(done for _, done, _ in reports)


def test_folder_that_holds_something_is_left_alone(gguf_file, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not an empty folder"):
        convert(str(gguf_file), tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["notes.txt"]


def test_unknown_dtype_is_refused(gguf_file, tmp_path):
    with pytest.raises(ConfigError, match="'int4' must be one of float32"):
        convert(str(gguf_file), tmp_path / "out", dtype="int4")


def test_failure_half_way_leaves_nothing(gguf_file, tmp_path, monkeypatch):
    def full_disk(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(convert_module, "save_file", full_disk)
    with pytest.raises(ModelError, match=re.escape(str(tmp_path / "out")) + ".*No space left"):
        convert(str(gguf_file), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == [gguf_file.name]


def test_config_is_one_that_other_tools_read(gguf_file, tmp_path):
    config = json.loads((convert(str(gguf_file), tmp_path / "out") / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"] and config["model_type"] == "llama"
    assert config["dtype"] == "bfloat16"
