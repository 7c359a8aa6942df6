from pathlib import Path

import pytest

from octavo.config import ServerConfig
from octavo.engine.options import IGNORED, MISSING, make_section, make_sections, parse_size
from octavo.errors import ConfigError


def test_options_land_in_the_section_that_declares_them():
    sections = make_sections({"model": "m", "block_size": 32, "max_num_seqs": 3, "threads": 2, "seed": None})
    assert (sections.model.model, sections.model.seed) == ("m", 0)
    assert (sections.cache.block_size, sections.scheduler.max_num_seqs, sections.device.threads) == (32, 3, 2)


@pytest.mark.parametrize("spelling", ["max-num-seqs", "--max-num-seqs", "max_num_seqs"])
def test_dashes_and_underscores_are_the_same(spelling):
    assert make_sections({spelling: 5}).scheduler.max_num_seqs == 5


def test_a_second_long_flag_names_the_same_option():
    assert make_sections({"device_memory_utilization": 0.5}).cache.gpu_memory_utilization == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_num_seq": 3}, "did you mean max_num_seqs"),
        ({"prot": 3}, "did you mean port"),
        ({"xyzzy": 3}, "unknown option xyzzy; known: .*block_size"),
        ({"block_size": "many"}, "--block-size is 'many': Expected `int`, got `str`"),
        ({"block_size": 0}, "--block-size is 0 but must be at least 1"),
        ({"dtype": "int3"}, "--dtype is 'int3' but must be one of auto"),
        ({"num_blocks": (3,)}, "unknown option num_blocks"),
        ({"enable_lora": True}, "LoRA adapters are not supported in this version"),
        ({"max_loras": 2}, "max_loras: LoRA adapters are not supported"),
        ({"nnodes": 2}, "more than one machine is not supported"),
        ({"collect_detailed_traces": "model"}, "collect_detailed_traces: tracing inside a step is .* not supported"),
        ({"speculative_config": {}}, "speculative decoding is not supported"),
        ({"port": 8000}, "port belongs to the HTTP server"),
        ({"tensor_parallel_size": 2}, "--tensor-parallel-size is 2 but must be at most 1"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options, message):
    with pytest.raises(ConfigError, match=message):
        make_sections(options)


def test_a_foreign_option_without_meaning_is_a_warning(caplog):
    assert make_sections({"use_v2_block_manager": True}) == make_sections({})
    assert "use_v2_block_manager has no effect" in caplog.text


@pytest.mark.parametrize("name", [*IGNORED, *MISSING])
def test_a_foreign_feature_switched_off_is_accepted_in_silence(name, caplog):
    assert make_sections({name: False}) == make_sections({name: None}) == make_sections({})
    assert not caplog.text


def test_python_forms_of_a_value_are_accepted():
    model = make_sections(
        {"model": Path("a/b"), "served_model_name": "x", "hf_overrides": {"rope_theta": 1}, "tokenizer": Path("t")}
    ).model
    assert (model.model, model.served_model_name, model.tokenizer) == ("a/b", ("x",), "t")
    assert model.hf_overrides == '{"rope_theta": 1}'


def test_any_section_can_be_built_alone():
    assert make_section(ServerConfig, {"port": 1, "api_key": ["a", "b"], "block_size": 3}).api_key == ("a", "b")


@pytest.mark.parametrize(
    ("text", "count"),
    [(7, 7), ("4096", 4096), ("32k", 32_000), ("32K", 32_768), ("2G", 2 << 30), ("1.5GiB", 3 << 29), ("2g", 2 * 10**9)],
)
def test_sizes_are_read_with_their_units(text, count):
    assert parse_size("max_model_len", text) == count


@pytest.mark.parametrize("text", ["", "k", "2 apples", "-3", "1e3", "2GB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ConfigError, match="--max-model-len is"):
        parse_size("max_model_len", text)


@pytest.mark.parametrize(
    "name",
    ["task", "swap_space", "disable_log_requests", "guided_decoding_backend", "use_v2_block_manager",
     "num_scheduler_steps", "calculate_kv_scales", "override_attention_dtype"],
)  # fmt: skip
def test_names_that_other_engines_have_removed_are_accepted_with_a_warning(name, caplog):
    assert make_sections({name: "x"}) == make_sections({})
    assert f"{name} has no effect" in caplog.text


@pytest.mark.parametrize(("name", "value"), [("runner", "generate"), ("convert", "none"), ("cpu_offload_gb", "0")])
def test_a_missing_feature_asked_for_nothing_is_accepted(name, value):
    assert make_sections({name: value}) == make_sections({})
    with pytest.raises(ConfigError, match="not supported"):
        make_sections({name: "embed"})
