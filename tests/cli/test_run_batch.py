"""`octavo run-batch`: answers, faults, and going on after a break. Its engine is a thread of this process."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.main import run
from octavo.engine import async_llm
from octavo.files.fetch import Fetched, Fetcher
from tests.script_model import write_script_model
from tests.server.world import ThreadClient

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_script_model(tmp_path_factory.mktemp("model"), ["The", " fox"])


@pytest.fixture(autouse=True)
def engine_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_llm, "ProcessClient", ThreadClient)


def line(custom_id: str, url: str = CHAT, **body: Any) -> str:
    body.setdefault("messages", [{"role": "user", "content": "hi"}])
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": {"temperature": 0, **body}})


def run_batch(model: Path, source: Path | str, target: Path) -> int:
    small = ["--dtype", "float32", "--threads", "1", "--num-gpu-blocks-override", "64"]
    return run(["run-batch", "-i", str(source), "-o", str(target), "--model", str(model), *small])


def answers(target: Path) -> dict[str, Any]:
    lines = [json.loads(each) for each in target.read_text().splitlines()]
    assert len({each["custom_id"] for each in lines}) == len(lines)
    return {each["custom_id"]: each["response"] for each in lines}


def test_lines_of_several_routes_are_answered(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join([line("chat"), "", line("text", "/v1/completions", prompt="x"), line("bad", n=0)]))
    assert run_batch(model, source, target) == 1
    assert json.loads(capfd.readouterr().err) == {"total": 3, "resumed": 0, "completed": 2, "failed": 1}
    found = answers(target)
    assert found["chat"]["body"]["choices"][0]["message"]["content"] == "The fox"
    assert found["text"]["body"]["choices"][0]["text"] == "The fox"
    assert found["bad"]["status_code"] == 400 and found["bad"]["body"]["error"]["param"] == "n"


def test_a_second_run_answers_only_what_is_left(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(line(f"line-{i}") for i in range(6)))
    assert run_batch(model, source, target) == 0
    whole = target.read_text().splitlines(keepends=True)
    target.write_text("".join(whole[:4]) + whole[4][:20])
    capfd.readouterr()
    assert run_batch(model, source, target) == 0
    assert json.loads(capfd.readouterr().err) == {"total": 6, "resumed": 4, "completed": 2, "failed": 0}
    assert target.read_text().startswith("".join(whole[:4])) and len(answers(target)) == 6


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nonsense", "line 1: the body is not valid JSON"),
        (line("a") + "\n" + line("a"), "line 2: custom_id 'a' stands on two lines"),
        (line("a", "/v1/files") + "\n" + line("b", "/x"), r"line 1: url .*\(and 1 more lines\)"),
    ],
)
def test_a_bad_file_is_refused_before_anything_loads(
    tmp_path: Path, content: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(content)
    assert run_batch(tmp_path / "no model", source, tmp_path / "out.jsonl") == 2
    error = capfd.readouterr().err
    assert re.search(message, error), error


def test_a_missing_file_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_batch(tmp_path, tmp_path / "none.jsonl", tmp_path / "out.jsonl") == 2
    assert "none.jsonl cannot be read: No such file" in capfd.readouterr().err


def test_requests_may_come_by_url(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async def fetch(self: Fetcher, url: str, *, param: str | None = None) -> Fetched:
        assert url == "https://example.com/in.jsonl"
        return Fetched(line("a").encode(), "")

    monkeypatch.setattr(Fetcher, "fetch", fetch)
    assert run_batch(model, "https://example.com/in.jsonl", tmp_path / "out.jsonl") == 0
    assert set(answers(tmp_path / "out.jsonl")) == {"a"}


def test_a_private_url_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_batch(tmp_path, "http://127.0.0.1:1/in.jsonl", tmp_path / "out.jsonl") == 2
    assert "not on the public internet" in capfd.readouterr().err
