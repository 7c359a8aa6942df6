from dataclasses import replace

import pytest

from octavo.engine import resolve
from octavo.engine.options import make_sections
from octavo.engine.resolve import make_config, resolve_sections
from octavo.errors import ConfigError
from tests.engine.worlds import make_engine_config


@pytest.fixture
def resolved(monkeypatch):
    """`make_config` with a model that exists on paper only."""

    def run(architecture="LlamaForCausalLM", stored="float32", stored_format="safetensors", **options):
        spec = replace(
            make_engine_config(context_length=4096).spec,
            architecture=architecture,
            checkpoint_dtype=stored,
            format=stored_format,
        )
        monkeypatch.setattr(resolve, "resolve_reference", lambda config, progress: spec)
        return make_config(device="cpu", **options)

    return run


def test_everything_open_gets_a_value(resolved):
    config = resolved()
    assert config.dtype in ("float32", "bfloat16") and config.device.device == "cpu"
    assert (config.max_model_len, config.token_budget, config.served_model_name) == (4096, 1024, "paper")
    assert config.cache.num_blocks == ()


def test_lengths_are_read_with_units_and_held_against_the_model(resolved):
    assert resolved(max_model_len="2k").max_model_len == 2000
    with pytest.raises(ConfigError, match="--max-model-len is 5000 but paper was made for 4096 tokens"):
        resolved(max_model_len=5000)
    with pytest.raises(ConfigError, match="must be at least 1"):
        resolved(max_model_len=0)


def test_without_chunked_prefill_a_step_must_hold_the_longest_prompt(resolved):
    assert resolved(enable_chunked_prefill=False).token_budget == 4096
    with pytest.raises(ConfigError, match=r"--max-num-batched-tokens is 64 .* max_model_len 4096"):
        resolved(enable_chunked_prefill=False, max_num_batched_tokens=64)


@pytest.mark.parametrize("name", ["float16", "half"])
def test_float16_is_raised_where_activations_overflow(resolved, name, caplog):
    assert resolved(dtype=name).dtype == "float16"
    assert resolved("Gemma3ForCausalLM", dtype=name).dtype != "float16"
    assert "overflows in float16" in caplog.text


def test_a_quantization_that_is_not_the_files_is_refused(resolved):
    assert resolved(stored="Q4_1", stored_format="gguf", quantization="gguf")
    assert resolved(stored="Q4_1", stored_format="gguf", quantization="q4_1")
    with pytest.raises(ConfigError, match="--quantization is 'awq' but paper is stored as float32"):
        resolved(quantization="awq")


def test_sections_resolve_to_the_same_configuration(resolved):
    config = resolved(block_size=8)
    assert resolve_sections(make_sections({"device": "cpu", "block_size": 8})) == config
