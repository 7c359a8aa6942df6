"""`octavo chat` and `octavo complete` against a running server, with the flags that vLLM's have."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from octavo.cli.main import run
from octavo.cli.talk import Answerer, TimedAnswerer
from octavo.config import ServerConfig
from tests.script_model import write_script_model
from tests.server.conftest import PIECES, SENTENCE
from tests.server.world import World, serve_app


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory):
    folder = write_script_model(tmp_path_factory.mktemp("script"), PIECES)
    with serve_app(folder, ServerConfig(api_key=("k",), disable_log_stats=True)) as made:
        yield made


class Fake:
    """Answers with a stream made for the test."""

    model = "fake"

    def __init__(self, stream: Callable[[], Iterator[str]]) -> None:
        self._stream = stream

    def complete(self, prompt: str, sampling: dict[str, Any]) -> Iterator[str]:
        return self._stream()


def flags(world: World) -> tuple[str, ...]:
    return ("--url", f"{world.url}/v1", "--model-name", "test", "--api-key", "k", "--temperature", "0")


def test_a_quick_question_is_answered_and_its_speed_told(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["chat", *flags(world), "--system-prompt", "be brief", "-q", "hi", "--stats"]) == 0
    shown = capsys.readouterr()
    assert shown.out == SENTENCE + "\n"
    assert shown.err.startswith("\nfirst piece after ") and " pieces" in shown.err


def test_the_speed_is_that_of_the_pieces_after_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    def stream() -> Iterator[str]:
        for piece in ("", "a", "b", "c"):
            time.sleep(0.05)
            yield piece

    assert "".join(TimedAnswerer(cast(Answerer, Fake(stream))).complete("x", {})) == "abc"
    line = capsys.readouterr().err
    assert "3 pieces, " in line
    assert float(line.split("after ")[1].split(" s")[0]) >= 0.1  # the empty one is no piece
    assert 2 / 0.1 >= float(line.split("pieces, ")[1].split(" a second")[0]) > 0


def test_a_text_is_completed_up_to_the_limit(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["complete", *flags(world), "--max-tokens", "2", "--quick", "hi"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "".join(PIECES[:2]) + "\n" and shown.err == ""


def test_a_server_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["chat", "--url", "http://127.0.0.1:9/v1", "-q", "hi"]) == 1
    assert capsys.readouterr().err.startswith("octavo chat: no answer from http://127.0.0.1:9/v1")


def test_the_machine_is_described_under_both_names(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for name in ("env", "collect-env"):
        assert run([name]) == 0
        shown.append(capsys.readouterr().out)
    assert "python: " in shown[0] and [line.partition(":")[0] for line in shown[0].splitlines()] == [
        line.partition(":")[0] for line in shown[1].splitlines()
    ]
