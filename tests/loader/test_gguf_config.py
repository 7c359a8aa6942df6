"""GGUF metadata gives the config that the original config.json gives, and what it cannot give is refused by name."""

import json
import re
import struct

import pytest
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from octavo.errors import ModelError
from octavo.files.gguf_header import read_gguf_header
from octavo.loader.gguf_config import (
    eos_token_ids,
    file_type,
    fit_llama3,
    generation_config,
    gguf_config,
    llama3_divisors,
)
from octavo.loader.hf_config import context_length, normalize_config
from tests.loader.gguf_files import add_rope_freqs, llama3_rope_divisors, write_gguf
from tests.tiny import FAMILIES

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def hf_config_of(folder):
    return normalize_config(json.loads((folder / "config.json").read_text()))


def config_of(path):
    return gguf_config(read_gguf_header(path))


def float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "mistral"])
def test_config_equals_that_of_the_folder_it_came_from(checkpoint, tmp_path, family):
    folder = checkpoint(family)
    ours, expected = config_of(write_gguf(folder, tmp_path / "m.gguf")), hf_config_of(folder)
    assert ours == {key: expected[key] for key in ours}
    assert context_length(ours) == context_length(expected)


def test_what_a_gguf_config_leaves_out_changes_no_computation(checkpoint, tmp_path):
    # Everything Transformers' class has beyond our keys is bookkeeping.
    for family in ("llama", "gemma3"):
        folder = checkpoint(family)
        missing = hf_config_of(folder).keys() - config_of(write_gguf(folder, tmp_path / f"{family}.gguf")).keys()
        assert not {key for key in missing if re.search("rope|head|hidden_size|layer|norm|bias|scal|softcap", key)}


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5},
        {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5e5, "original_max_position_embeddings": 64},
        LLAMA3,
    ],
)
def test_rope_scaling_equals_that_of_the_folder(checkpoint, tmp_path, scaling):
    folder = checkpoint("llama", rope_parameters=scaling, max_position_embeddings=64)
    ours, expected = config_of(write_gguf(folder, tmp_path / "m.gguf")), hf_config_of(folder)
    assert ours["rope_parameters"] == expected["rope_parameters"]
    assert context_length(ours) == context_length(expected)


def test_older_key_for_linear_scaling(checkpoint, tmp_path):
    path = write_gguf(
        checkpoint("llama"), tmp_path / "m.gguf", extra=lambda w: w.add_float32("llama.rope.scale_linear", 2.0)
    )
    assert config_of(path)["rope_parameters"] == {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}


def test_gemma3_scales_only_its_full_layers(checkpoint, tmp_path):
    def extra(writer):
        writer.add_string("gemma3.rope.scaling.type", "linear")
        writer.add_float32("gemma3.rope.scaling.factor", 8.0)
        writer.add_float32("gemma3.rope.freq_base_swa", 5000.0)

    config = config_of(write_gguf(checkpoint("gemma3"), tmp_path / "m.gguf", extra=extra))
    assert config["rope_parameters"] == {
        "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
    }


def test_pattern_of_sliding_layers_may_be_listed(checkpoint, tmp_path):
    listed = [True, False, False, True, True, False, True]
    path = write_gguf(
        checkpoint("gemma3"),
        tmp_path / "m.gguf",
        extra=lambda w: w.add_array("gemma3.attention.sliding_window_pattern", listed),
    )
    assert [kind == "sliding_attention" for kind in config_of(path)["layer_types"]] == listed


@pytest.mark.parametrize("parameters", [(8.0, 1.0, 4.0, 8192), (32.0, 1.0, 4.0, 8192), (16.0, 1.0, 4.0, 4096)])
def test_llama3_parameters_are_found_from_float32_divisors(parameters):
    freqs = [5e5 ** (-i / 64) for i in range(64)]
    factor, low, high, original = parameters
    assert fit_llama3([float32(d) for d in llama3_divisors(freqs, *parameters)], 5e5) == {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def test_other_divisors_become_explicit_ones(checkpoint, tmp_path):
    folder = checkpoint("llama")
    divisors = [1.0, 1.5, 1.25, 2.0, 3.0, 3.5, 4.0, 7.0]
    config = config_of(write_gguf(folder, tmp_path / "m.gguf", extra=lambda w: add_rope_freqs(w, divisors)))
    rope = config["rope_parameters"]
    assert rope["rope_type"] == "longrope" and rope["attention_factor"] == 1.0
    assert rope["short_factor"] == rope["long_factor"] == divisors
    assert context_length(config) == config["max_position_embeddings"]


def test_llama3_divisors_match_transformers(checkpoint):
    config = AutoConfig.from_pretrained(checkpoint("llama", rope_parameters=LLAMA3))
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = [1e4 ** (-i / len(scaled)) for i in range(len(scaled))]
    divisors = llama3_rope_divisors(config.to_dict())
    assert [p / d for p, d in zip(plain, divisors, strict=True)] == pytest.approx(scaled.tolist(), rel=1e-6)


@pytest.mark.parametrize("divisors", [[1.0] * 3, [1.0] * 7 + [0.0], [1.0] * 7 + [float("nan")]])
def test_divisors_that_make_no_sense_are_refused(checkpoint, tmp_path, divisors):
    path = write_gguf(checkpoint("llama"), tmp_path / "m.gguf", extra=lambda w: add_rope_freqs(w, divisors))
    with pytest.raises(ModelError, match=r"m\.gguf.*rope_freqs\.weight"):
        config_of(path)


def test_ends_of_text_are_those_named_and_those_the_template_writes(checkpoint, tmp_path):
    plain = read_gguf_header(write_gguf(checkpoint("llama"), tmp_path / "plain.gguf"))
    assert eos_token_ids(plain) == (2,)

    def extra(writer):
        writer.add_eot_token_id(7)
        writer.add_chat_template("{{ '<|im_end|>' }}")
        writer.add_token_list(["<pad>", "<s>", "</s>", "<|im_end|>", "<end_of_turn>"])

    assert eos_token_ids(read_gguf_header(write_gguf(checkpoint("llama"), tmp_path / "chat.gguf", extra=extra))) == (
        2,
        7,
        3,
    )


def test_sampling_defaults_get_their_transformers_names(checkpoint, tmp_path):
    def extra(writer):
        writer.add_float32("general.sampling.temp", 0.5)
        writer.add_int32("general.sampling.top_k", 40)

    header = read_gguf_header(write_gguf(checkpoint("llama"), tmp_path / "m.gguf", extra=extra))
    assert generation_config(header) == {"temperature": 0.5, "top_k": 40}


def test_file_type_is_the_noted_mix_or_the_most_frequent_type(checkpoint, tmp_path):
    quantized = write_gguf(checkpoint("llama"), tmp_path / "q.gguf", "Q8_0")
    assert file_type(read_gguf_header(quantized)) == "Q8_0"
    noted = write_gguf(checkpoint("llama"), tmp_path / "n.gguf", extra=lambda w: w.add_file_type(15))
    assert file_type(read_gguf_header(noted)) == "Q4_K_M"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update({"general.architecture": "mamba"}), r"'mamba'; known: gemma2, gemma3, granite, llama"),
        (lambda m: m.pop("general.architecture"), r"general.architecture is None"),
        (lambda m: m.pop("llama.block_count"), r"llama.block_count is None"),
        (lambda m: m.update({"llama.block_count": -1}), r"llama.block_count is -1"),
        (
            lambda m: m.update({"llama.block_count": 10**9}),
            r"llama.block_count is 1000000000 but there are \d+ tensors",
        ),
        (lambda m: m.update({"llama.attention.head_count": [4, 2, 4]}), r"llama.attention.head_count is \[4, 2, 4\]"),
        (lambda m: m.update({"llama.rope.freq_base": "x"}), r"llama.rope.freq_base is 'x'"),
        (lambda m: m.update({"llama.rope.freq_base": float("nan")}), r"llama.rope.freq_base is nan"),
        (lambda m: m.update({"llama.rope.scaling.type": "foo"}), r"unknown rope_type 'foo'"),
        (lambda m: m.update({"llama.rope.scaling.type": "linear"}), r"'linear' needs factor"),
        (lambda m: m.update({"llama.expert_count": 8}), r"mixture-of-experts"),
        (lambda m: m.update({"llama.embedding_length": 128}), r"'token_embd.weight' has shape \[96, 64\]"),
    ],
)
def test_metadata_that_describes_no_runnable_model_is_refused(checkpoint, tmp_path, change, message):
    header = read_gguf_header(write_gguf(checkpoint("llama"), tmp_path / "m.gguf"))
    change(header.metadata)
    with pytest.raises(ModelError, match=r"m\.gguf.*" + message):
        gguf_config(header)
