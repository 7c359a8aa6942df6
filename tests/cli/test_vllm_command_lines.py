"""Command lines of vLLM: honoured, accepted with one warning, or refused by the name of the flag."""

import argparse
import logging
from pathlib import Path

import pytest

from octavo import envs
from octavo.cli import serve as serve_command
from octavo.cli.main import make_parser, run
from octavo.cli.options import SERVE_SECTIONS, chosen_options, flag_names, normalize_flags, option_fields
from octavo.cli.vllm_env import STANDS_FOR, WITHOUT_EFFECT, flags_of, warn_of_missed
from octavo.config import ServerConfig
from octavo.engine.options import IGNORED, MISSING, NEUTRAL, make_section, make_sections
from octavo.errors import ConfigError
from tests.cli.vllm_command_lines import DOCUMENTED, LINES, CommandLine

SERVER_NAMES = {f.name for f in option_fields(ServerConfig)}


def parsed(words: list[str]) -> tuple[argparse.Namespace, dict[str, object]]:
    """As `octavo serve` does before anything starts."""
    args, foreign = make_parser("serve").parse_known_args(normalize_flags(["serve", *words]))
    if args.model_tag is not None:
        args.model = args.model_tag
    options = chosen_options(args, SERVE_SECTIONS, foreign)
    make_section(ServerConfig, {name: options[name] for name in options.keys() & SERVER_NAMES})
    make_sections({name: value for name, value in options.items() if name not in SERVER_NAMES})
    return args, options


@pytest.mark.parametrize("line", LINES, ids=[line.source for line in LINES])
def test_a_real_command_line_is_taken_or_names_what_it_cannot_have(
    line: CommandLine, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.WARNING, "octavo")
    if line.refused:
        with pytest.raises((ConfigError, SystemExit)) as caught:
            parsed(line.words)
        assert line.refused in f"{caught.value} {capsys.readouterr().err}"
        return
    _, options = parsed(line.words)
    assert options["model"] == "MODEL"
    assert len(caplog.messages) == len(line.ignored)
    for name in line.ignored:
        assert sum(f"option {name} has no effect" in message for message in caplog.messages) == 1


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_documented_flag_is_known(name: str) -> None:
    flags = {flag for section in SERVE_SECTIONS for f in option_fields(section) for flag in flag_names(f)}
    plain = name.replace("-", "_")
    assert f"--{name}" in flags or plain in IGNORED or plain in MISSING or name == "config"


def test_no_name_is_both_an_option_and_foreign() -> None:
    options = {f.name for section in SERVE_SECTIONS for f in option_fields(section)}
    assert not options & (IGNORED.keys() | MISSING.keys())
    assert not IGNORED.keys() & MISSING.keys()
    assert NEUTRAL.keys() <= IGNORED.keys() | MISSING.keys()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--enable-chunked-prefill=true"], {"enable_chunked_prefill": True}),
        (["--enable-prefix-caching", "False", "MODEL"], {"enable_prefix_caching": False, "model": "MODEL"}),
        (["--enforce-eager", "MODEL"], {"enforce_eager": True, "model": "MODEL"}),
        (["-O3"], {"optimization_level": "3"}),
        (["--logging-config.formatter", "json"], {"log_format": "json"}),
        (["--allowed-origins", '["*"]'], {"allowed_origins": ('["*"]',)}),
        (["--structured-outputs-config.backend=xgrammar"], {"structured_outputs_config.backend": "xgrammar"}),
    ],
)
def test_spellings_of_vllms_parser_are_understood(words: list[str], expected: dict[str, object]) -> None:
    args, foreign = make_parser("serve").parse_known_args(normalize_flags(["serve", *words]))
    args.model = args.model_tag or argparse.SUPPRESS
    options = chosen_options(args, SERVE_SECTIONS, foreign)
    assert {name: value for name, value in options.items() if value != argparse.SUPPRESS} == expected


def test_a_list_in_one_json_value_is_a_list() -> None:
    assert make_section(ServerConfig, {"allowed_origins": ('["a", "b"]',)}).allowed_origins == ("a", "b")


def test_parts_of_a_foreign_option_are_treated_as_the_option(caplog: pytest.LogCaptureFixture) -> None:
    make_sections({"compilation_config.mode": "3", "cc.mode": "3", "O.level": "2"})
    assert len(caplog.messages) == 3
    with pytest.raises(ConfigError, match=r"kv_transfer_config\.kv_role: KV transfer is not supported"):
        make_sections({"kv_transfer_config.kv_role": "kv_both"})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("max-num-seq: 4\n", "unknown option max_num_seq; did you mean max_num_seqs"),
        ("max-num-seqs: 0\n", "--max-num-seqs is 0 but must be at least 1"),
        ("port: many\n", "--port is 'many': Expected `int`"),
        ("enable-lora: true\n", "enable_lora: LoRA adapters are not supported"),
    ],
)
def test_what_is_wrong_in_a_config_file_is_told_with_the_files_name(
    tmp_path: Path, text: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "vllm.yaml"
    path.write_text(f"model: MODEL\n{text}")
    assert run(["serve", "--config", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"octavo serve: --config {path}: ") and complaint in error


def test_a_config_file_written_for_vllm_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "vllm.yaml"
    path.write_text(
        'model: MODEL\nno-enable-prefix-caching: true\nmax-model-len: 4096\nswap-space: 4\nallowed-origins: ["*"]\n'
        'hf-overrides: {"rope_theta": 1.0}\nuvicorn-log-level: "info"\n'
    )
    _, options = parsed(["--config", str(path), "--max-model-len", "1024"])
    assert options["model"] == "MODEL" and options["max_model_len"] == 1024
    assert options["enable_prefix_caching"] is False and options["hf_overrides"] == '{"rope_theta": 1.0}'
    assert len(caplog.messages) == 1 and "swap_space" in caplog.text


def test_a_bad_template_is_told_before_the_model_is_looked_for(tmp_path: Path) -> None:
    path = tmp_path / "bad.jinja"
    path.write_text("{% for x in %}")
    for template, complaint in ((str(path), "not valid jinja: line 1"), (str(tmp_path / "none"), "cannot be read")):
        with pytest.raises(ConfigError, match=f"--chat-template.*{complaint}"):
            serve_command.load_object(serve_command.MAKE_CONFIG)(model=str(tmp_path / "no"), chat_template=template)


def test_variables_that_stand_for_flags_are_flags() -> None:
    environ = {"VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "60"}
    assert flags_of(environ) == {"kv_cache_memory_bytes": "4GiB", "watchdog_timeout": "60"}
    assert flags_of({"VLLM_CPU_KVCACHE_SPACE": "0"}) == flags_of({}) == {}


def test_variables_that_a_user_would_miss_are_a_warning_and_all_others_are_silent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warn_of_missed(
        {"VLLM_PORT": "8000", "VLLM_USE_V1": "0", "VLLM_SERVER_DEV_MODE": "0", "VLLM_CONFIGURE_LOGGING": "1"}
    )
    warn_of_missed({"VLLM_CPU_OMP_THREADS_BIND": "auto", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"})
    assert not caplog.messages
    warn_of_missed({"VLLM_SERVER_DEV_MODE": "1", "VLLM_USE_MODELSCOPE": "True", "VLLM_CONFIGURE_LOGGING": "0"})
    assert len(caplog.messages) == 3 and all("has no effect: " in message for message in caplog.messages)


def test_no_variable_is_read_in_two_ways() -> None:
    aliases = {alias for variable in envs.VARIABLES for alias in variable.aliases}
    assert not aliases & (STANDS_FOR.keys() | WITHOUT_EFFECT.keys()) and not STANDS_FOR.keys() & WITHOUT_EFFECT.keys()
