"""What a server's log tells of requests: nothing of their text unless asked for by name."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.config import ServerConfig
from tests.server.conftest import SENTENCE
from tests.server.world import serve_app

SECRET = "the parrot's name is Ada"
BODY = {"max_tokens": 20, "temperature": 0, "stop": ["zebra"], "request_id": "abc"}


def lines_of(folder: Path, caplog: pytest.LogCaptureFixture, **options: object) -> str:
    """Everything that is logged at any level for one whole answer, one stream and one refusal."""
    caplog.set_level(logging.DEBUG, "octavo")
    with serve_app(folder, ServerConfig(**options)) as world:  # type: ignore[arg-type]
        world.complete(SECRET, **BODY)
        world.stream_chat(SECRET, **BODY)
        world.post("/v1/completions", prompt=SECRET, max_tokens=-3, temperature=99)
    return "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("octavo"))


def test_no_text_of_a_request_or_an_answer_is_logged_by_default(
    script_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = lines_of(script_folder, caplog)
    assert SECRET not in text and SENTENCE not in text and "zebra" not in text and "cmpl-abc" not in text


def test_requests_are_logged_with_lengths_and_numbers_and_with_text_only_at_debug(
    script_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = lines_of(script_folder, caplog, enable_log_requests=True, max_log_len=10)
    assert f"request cmpl-abc-{text.partition('cmpl-abc-')[2].split(':')[0]}: prompt tokens [{len(SECRET)}]" in text
    assert "'max_tokens': 20" in text and "'stop': '<1>'" in text and "zebra" not in text
    assert repr(SECRET[:10] + "...") in text and SECRET not in text
    shown = [record for record in caplog.records if SECRET[:10] in record.getMessage()]
    assert shown and all(record.levelno == logging.DEBUG for record in shown)
    assert SENTENCE not in text


def test_outputs_are_logged_when_asked_for_whole_and_streamed(
    script_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = lines_of(script_folder, caplog, enable_log_outputs=True)
    assert text.count(repr(SENTENCE)) == 2 and SECRET not in text
    assert f"output 0, 6 tokens, stop: {SENTENCE!r}" in text


def test_json_lines_are_objects_with_the_fields_of_a_request() -> None:
    program = (
        "from octavo.logging import get_logger, configure\n"
        "log = get_logger('octavo.x'); configure('info', 'json')\n"
        "log.debug('hidden'); log.info('a %s', 'b', extra={'fields': {'request_id': 'r'}})\n"
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    log.exception('no\\nluck')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, second = (json.loads(line) for line in done.stderr.splitlines())
    assert (first["level"], first["logger"], first["message"], first["request_id"]) == ("info", "octavo.x", "a b", "r")
    assert first["time"].endswith("Z") and "exception" not in first
    assert second["message"] == "no\nluck" and "ZeroDivisionError" in second["exception"]


@pytest.mark.parametrize("name", ["octavo", "vllm"])
def test_a_configuration_of_logging_takes_the_place_of_ours(tmp_path: Path, name: str) -> None:
    handler = {"class": "logging.StreamHandler", "formatter": "f", "stream": "ext://sys.stdout"}
    config = {"version": 1, "formatters": {"f": {"format": "THEIRS %(message)s"}}, "handlers": {"h": handler}}
    config["loggers"] = {name: {"handlers": ["h"], "level": "INFO", "propagate": False}}
    path = tmp_path / "log.json"
    path.write_text(json.dumps(config))
    program = "from octavo.logging import get_logger; get_logger('octavo.x').info('hello')"
    env = os.environ | {"VLLM_LOGGING_CONFIG_PATH": str(path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env)
    assert (done.stdout, done.stderr) == ("THEIRS hello\n", "")
    path.write_text('{"version": 7}')
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=env)
    assert done.returncode and f"{path} is no configuration of logging" in done.stderr
