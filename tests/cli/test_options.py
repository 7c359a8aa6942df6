"""Flags come from the option fields, and say only what was given."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.cli import main
from octavo.cli.options import SERVE_SECTIONS, add_option_flags, chosen_options, normalize_flags
from octavo.errors import ConfigError


def parse(*words: str) -> dict[str, object]:
    parser = argparse.ArgumentParser(allow_abbrev=False, conflict_handler="resolve")
    add_option_flags(parser, SERVE_SECTIONS)
    args, foreign = parser.parse_known_args(normalize_flags(list(words)))
    return chosen_options(args, SERVE_SECTIONS, foreign)


def test_nothing_given_is_nothing_chosen():
    assert parse() == {}


def test_flags_of_every_kind_arrive_with_their_types():
    assert parse(
        *("--model", "m", "--max-model-len", "32k", "--port", "80", "--no-enable-prefix-caching", "-tp", "1"),
        *("--gpu-memory-utilization", "0.5", "--api-key", "a", "b", "--max-num-seqs=8"),
    ) == {
        "model": "m",
        "max_model_len": "32k",
        "port": 80,
        "enable_prefix_caching": False,
        "tensor_parallel_size": 1,
        "gpu_memory_utilization": 0.5,
        "api_key": ("a", "b"),
        "max_num_seqs": 8,
    }


def test_a_whole_number_stays_one_where_text_is_allowed_too():
    assert parse("--max-model-len", "4096") == {"max_model_len": 4096}
    assert parse("--max-model-len", "-1") == {"max_model_len": -1}


def test_underscores_in_a_flag_are_dashes_but_values_are_kept():
    assert parse("--max_num_seqs", "3", "--served_model_name=my_model") == {
        "max_num_seqs": 3,
        "served_model_name": ("my_model",),
    }


def test_flags_win_over_the_config_file(tmp_path: Path):
    path = tmp_path / "octavo.yaml"
    path.write_text("max-num-seqs: 4\nport: 9000\napi_key: [k]\n")
    assert parse("--config", str(path), "--port", "9001") == {"max_num_seqs": 4, "port": 9001, "api_key": ("k",)}


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [\n", "1: 2\n"])
def test_a_config_file_that_is_no_mapping_is_refused_by_name(tmp_path: Path, text: str):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"bad\.yaml"):
        parse("--config", str(path))


def test_a_config_file_that_is_not_there_is_refused_by_name(tmp_path: Path):
    with pytest.raises(ConfigError, match="nowhere"):
        parse("--config", str(tmp_path / "nowhere"))


def test_unknown_flags_are_passed_on_by_name():
    assert parse("--async-scheduling", "--swap-space", "4", "--compilation-config={}") == {
        "async_scheduling": True,
        "swap_space": "4",
        "compilation_config": "{}",
    }


def test_a_stray_word_is_refused():
    with pytest.raises(ConfigError, match="'stray'"):
        parse("--swap-space", "4", "stray")


def test_help_names_every_command_and_imports_no_torch():
    code = (
        "import sys\nfrom octavo.cli.main import run\n"
        "try:\n    run(['--help'])\nexcept SystemExit as e:\n    assert e.code == 0\n"
        "heavy = {'torch', 'transformers', 'fastapi', 'rich'} & set(sys.modules)\nassert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("serve", "chat", "complete", "pull", "models", "convert", "bench", "env"):
        assert f"\n    {name} " in done.stdout


def test_the_no_form_of_an_unknown_flag_switches_it_off():
    assert parse("--no-enable-lora", "--no-async-scheduling") == {"enable_lora": False, "async_scheduling": False}


def test_a_bad_environment_variable_is_one_line_and_no_traceback():
    done = subprocess.run(
        [sys.executable, "-c", "from octavo.cli.main import main; main(['serve', 'x'])"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OCTAVO_LOG_LEVEL": "loud"},
    )
    assert done.returncode == 2
    assert done.stderr.startswith("octavo serve: environment variable OCTAVO_LOG_LEVEL is 'loud'")


def test_ctrl_c_while_a_command_is_imported_is_no_traceback(monkeypatch):
    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(main.COMMANDS, "load", interrupted)
    assert main.run(["serve"]) == 130
