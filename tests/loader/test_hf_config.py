"""Every age and spelling of config.json reaches one normalized form, and what cannot be run is refused at once."""

from typing import Any

import pytest

from octavo.errors import ModelError
from octavo.loader.hf_config import context_length, finish_config, merge_overrides, normalize_config

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 96,
    "max_position_embeddings": 64,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def llama(**keys: Any) -> dict[str, Any]:
    return normalize_config({**LLAMA, **keys})


def rope(**keys: Any) -> dict[str, Any]:
    return llama(**keys)["rope_parameters"]


def test_what_config_json_leaves_out_comes_from_the_class():
    config = llama()
    assert (config["num_key_value_heads"], config["head_dim"], config["hidden_act"]) == (4, 16, "silu")
    assert config["tie_word_embeddings"] is False and config["rms_norm_eps"] == 1e-6
    assert config["layer_types"] == ["full_attention"] * 2 and config["sliding_window"] is None
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 10000.0}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"rope_theta": 5e5}, {"rope_type": "default", "rope_theta": 5e5}),
        ({"rope_theta": 5e5, "rope_scaling": None}, {"rope_type": "default", "rope_theta": 5e5}),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, {"rope_type": "linear", "factor": 2.0}),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, {"rope_type": "linear", "factor": 2.0}),
        (
            {"rope_scaling": {"rope_type": "linear", "type": "linear", "factor": 2}},
            {"rope_type": "linear", "factor": 2},
        ),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, {"rope_type": "dynamic", "factor": 4.0}),
        ({"rope_scaling": {"type": "llama3", **LLAMA3}}, {"rope_type": "llama3", **LLAMA3}),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        ),
        (
            {"rope_scaling": {"type": "su", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}},
            {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
        ),
        ({"partial_rotary_factor": 0.5}, {"rope_type": "default", "partial_rotary_factor": 0.5}),
    ],
)
def test_old_and_new_rope_layouts_are_one(old, new):
    assert rope(**old) == rope(rope_parameters=new)
    assert "rope_scaling" not in llama(**old) and "rope_theta" not in llama(**old)


def test_normalizing_twice_changes_nothing():
    for raw in (
        {**LLAMA, "rope_scaling": {"type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5}},
        {**LLAMA, "rope_scaling": {"type": "longrope", "short_factor": [1.5] * 8, "long_factor": [2.5] * 8}},
        {**LLAMA, "rope_scaling": {"type": "llama3", **LLAMA3}},
        {"model_type": "gemma2"},
        {"model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {"model_type": "mistral", "sliding_window": 16},
        {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 3},
    ):
        once = normalize_config(raw)
        assert normalize_config(once) == once
        assert finish_config(once, once["rope_parameters"]) == once


def test_yarn_and_longrope_derive_what_is_left_out():
    yarn = rope(rope_scaling={"type": "yarn", "factor": 4.0})
    assert yarn["original_max_position_embeddings"] == 64
    assert yarn["attention_factor"] == pytest.approx(1.138629436, abs=1e-8)
    assert (yarn["beta_fast"], yarn["beta_slow"], yarn["truncate"]) == (32.0, 1.0, True)
    stretched = rope(
        rope_scaling={"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
        original_max_position_embeddings=16,
    )
    assert stretched["factor"] == 4.0
    assert stretched["attention_factor"] == pytest.approx(1.5**0.5)  # 1 + ln 4 / ln 16


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"type": "foo", "factor": 2.0}, "unknown rope_type 'foo'; known: default, linear"),
        ({"rope_type": "linear"}, "'linear' needs factor"),
        ({"rope_type": "linear", "factor": None}, "'linear' needs factor"),
        ({"rope_type": "dynamic"}, "'dynamic' needs factor"),
        ({"rope_type": "yarn", "original_max_position_embeddings": 64}, "'yarn' needs factor"),
        ({"rope_type": "llama3", "factor": 8.0}, "needs low_freq_factor and high_freq_factor"),
        ({"rope_type": "longrope", "short_factor": [1.0] * 8}, "needs long_factor"),
        ({"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0]}, "long_factor must be a list of 8"),
        ({"rope_type": "linear", "factor": "2"}, "factor is '2'"),
        ({"rope_type": "linear", "factor": True}, "factor is True"),
        ({"rope_type": "linear", "factor": 0}, "factor is 0"),
        ({"rope_type": "linear", "factor": float("nan")}, "factor is nan"),
    ],
)
def test_rope_that_cannot_be_computed_is_refused(scaling, message):
    for layout in ({"rope_scaling": scaling}, {"rope_parameters": {**scaling, "rope_theta": 1e4}}):
        with pytest.raises(ModelError, match=message.replace("(", r"\(")):
            llama(**layout)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, 64),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 128),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, 256),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}}, 128),
        ({"rope_scaling": {"type": "llama3", **LLAMA3}}, 512),
        ({"rope_scaling": {"type": "llama3", **LLAMA3}, "max_position_embeddings": 4096}, 4096),
        (
            {
                "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
                "original_max_position_embeddings": 16,
            },
            64,
        ),
    ],
)
def test_context_length_follows_factor_times_original(keys, expected):
    assert context_length(llama(**keys)) == expected


def test_gemma3_has_a_rope_for_each_kind_of_layer():
    old = {"model_type": "gemma3_text", "num_hidden_layers": 7, "rope_theta": 1e6, "rope_local_base_freq": 5000}
    old["rope_scaling"] = {"rope_type": "linear", "factor": 8.0}
    new = {"model_type": "gemma3_text", "num_hidden_layers": 7}
    new["rope_parameters"] = {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
    }
    config = normalize_config(old)
    assert config == normalize_config(new)
    assert config["rope_parameters"] == new["rope_parameters"]
    assert config["layer_types"] == ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]
    assert config["hidden_act"] == "gelu_pytorch_tanh"
    assert context_length(config) == config["max_position_embeddings"]


def test_windows_become_layer_types():
    mistral = normalize_config({"model_type": "mistral", "num_hidden_layers": 3, "sliding_window": 16})
    assert mistral["layer_types"] == ["sliding_attention"] * 3 and mistral["sliding_window"] == 16
    full = normalize_config({"model_type": "mistral", "num_hidden_layers": 3, "sliding_window": None})
    assert full["layer_types"] == ["full_attention"] * 3 and full["sliding_window"] is None
    qwen = normalize_config({"model_type": "qwen2", "num_hidden_layers": 2, "sliding_window": 16})
    assert qwen["layer_types"] == ["full_attention"] * 2 and qwen["sliding_window"] is None
    gemma = normalize_config({"model_type": "gemma2", "num_hidden_layers": 3})
    assert gemma["layer_types"] == ["sliding_attention", "full_attention", "sliding_attention"]


def test_text_model_of_a_wrapper_is_taken_out():
    config = normalize_config(
        {
            "model_type": "gemma3",
            "architectures": ["Gemma3ForConditionalGeneration"],
            "eos_token_id": [1, 106],
            "text_config": {"model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 2, "head_dim": 16},
            "vision_config": {"hidden_size": 8},
        }
    )
    assert config["architectures"] == ["Gemma3ForCausalLM"]
    assert (config["hidden_size"], config["eos_token_id"]) == (64, [1, 106])
    assert "vision_config" not in config


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "no model_type"),
        ({"model_type": "no-such-model"}, "no-such-model"),
        ({**LLAMA, "hidden_size": "wide"}, "hidden_size"),
        ({**LLAMA, "hidden_size": 0}, "hidden_size"),
        ({**LLAMA, "num_attention_heads": 4, "num_key_value_heads": 3}, "num_key_value_heads"),
        ({**LLAMA, "layer_types": ["full_attention"]}, "layer_types"),
        ({**LLAMA, "layer_types": ["full_attention", "linear_attention"]}, "layer_types"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "encoder"),
        ({"model_type": "x", "text_config": {"model_type": "t5"}}, "'t5'"),
    ],
)
def test_configs_that_describe_no_runnable_model_are_refused(raw, message):
    with pytest.raises(ModelError, match=message):
        normalize_config(raw)


def test_overrides_replace_single_keys_inside_objects():
    base = {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}, "vocab_size": 3}
    merged = merge_overrides(base, {"rope_parameters": {"rope_type": "linear", "factor": 2.0}, "extra": None})
    assert merged == {
        "rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0},
        "vocab_size": 3,
        "extra": None,
    }
    assert base["rope_parameters"]["rope_type"] == "default"


@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_a_number_of_layers_that_cannot_be_is_refused_before_lists_are_made(model_type):
    with pytest.raises(ModelError, match="1000000000 layers"):
        llama(model_type=model_type, num_hidden_layers=10**9)
