"""`octavo bench serve` against a running server, by its own flags and by vLLM's."""

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.main import run
from octavo.config import ServerConfig
from tests.server.conftest import random_folder  # noqa: F401  a fixture
from tests.server.world import World, serve_app


def bench(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert run(["bench", "serve", *words]) == code
    figures: dict[str, Any] = json.loads(capsys.readouterr().out)
    return figures


@pytest.fixture(scope="module")
def world(random_folder: Path):  # noqa: F811
    with serve_app(random_folder, ServerConfig(api_key=("k",), disable_log_stats=True), max_num_seqs=8) as made:
        yield made


def test_figures_of_a_workload_add_up(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "work.jsonl"
    path.write_text("".join(json.dumps({"prompt": [5, 6, 7], "out": n}) + "\n" for n in (1, 4, 9, 50)))
    figures = bench(
        capsys, "--url", f"{world.url}/v1", "--api-key", "k", "--workload", str(path), "--requests", "3",
        "--max-concurrency", "2", "--json", str(tmp_path / "out.json"),
    )  # fmt: skip
    assert (figures["model"], figures["requests"], figures["errors"]) == ("test", 3, 0)
    assert (figures["prompt_tokens"], figures["output_tokens"]) == (9, 14)
    assert 0 < figures["ttft_s"]["p50"] <= figures["elapsed_s"] and figures["itl_s"]["p50"] is not None
    assert figures["output_tokens_per_s"] == pytest.approx(14 / figures["elapsed_s"], rel=0.05)
    assert json.loads((tmp_path / "out.json").read_text()) == figures
    assert figures["client_cpu_s"] > 0


def test_a_port_alone_is_one_of_this_machine(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    port = world.url.rpartition(":")[2]
    figures = bench(capsys, "--port", port, "--api-key", "k", "--requests", "1", "--input-len", "6000", code=1)
    assert "prompt has 6000 tokens" in figures["first_error"]


def test_the_words_of_vllms_benchmark_mean_the_same(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.cli.bench.SAFE_VOCAB_SIZE", 250)  # the model here has fewer ids than real ones
    figures = bench(
        capsys, "--backend", "vllm", "--base-url", world.url, "--model", "test", "--dataset-name", "random",
        "--random-input-len", "6", "--random-output-len", "3", "--num-prompts", "5", "--request-rate", "inf",
        "--ignore-eos", "--save-result", "--result-dir", str(tmp_path), "--result-filename", "r.json", "--api-key", "k",
    )  # fmt: skip
    assert (figures["requests"], figures["prompt_tokens"], figures["output_tokens"]) == (5, 30, 15)
    assert json.loads((tmp_path / "r.json").read_text()) == figures


def test_a_server_that_refuses_is_an_error_with_its_words(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "serve", "--url", f"{world.url}/v1"]) == 1
    assert "answered 401" in capsys.readouterr().err


def test_requests_that_fail_are_counted_and_the_code_tells(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--url", f"{world.url}/v1", "--api-key", "k", "--requests", "2", "--input-len", "6000")
    figures = bench(capsys, *words, code=1)
    assert (figures["requests"], figures["errors"], figures["output_tokens"]) == (0, 2, 0)
    assert "prompt has 6000 tokens" in figures["first_error"]
