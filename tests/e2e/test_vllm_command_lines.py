"""Real command lines of vLLM deployments, really started: the words are unchanged but for the program's name, the
model, the address (tests have ports of their own) and the share of memory (the machine's, not the deployment's).
"""

import json
import os
import signal
from pathlib import Path

import httpx
import pytest

from tests.cli.vllm_command_lines import LINES, CommandLine
from tests.script_model import write_random_model
from tests.server.test_process_ends import running
from tests.server.test_run import free_port
from tests.server.world import wait_for

pytestmark = pytest.mark.slow

STARTED = [line for line in LINES if not line.refused][:6]
"""As many as there are kinds: a documentation's page, charts, a unit, compose, a guide. The others are only parsed."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(tmp_path_factory.mktemp("served"), context_length=4096)


def adapted(line: CommandLine, folder: Path) -> list[str]:
    """With our model; the last word on an address and on memory is ours."""
    words = [word.replace("MODEL", str(folder)) for word in line.words]
    return [*words, "--host", "127.0.0.1", "--kv-cache-memory-bytes", "64M"]


@pytest.mark.parametrize("line", STARTED, ids=[line.source for line in STARTED])
def test_a_real_command_line_starts_a_server_that_answers(
    line: CommandLine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in line.environ.items():
        monkeypatch.setenv(name, value)
    key = line.environ.get("VLLM_API_KEY") or ("compose-key" if "compose-key" in line.words else "")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    port = free_port()
    with running(port, *adapted(line, folder), "--port", str(port)) as server:
        server.wait_until_ready()
        url = f"http://127.0.0.1:{port}"
        name = httpx.get(f"{url}/v1/models", headers=headers).json()["data"][0]["id"]
        body = {"model": name, "prompt": "hi", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        answer = httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=30).json()
        assert answer["usage"]["completion_tokens"] == 4
        assert "vllm:num_requests_running" in httpx.get(f"{url}/metrics", headers=headers).text
        os.kill(server.popen.pid, signal.SIGTERM)
        assert server.wait(30) == 0
        warnings = [entry for entry in server.log if entry.startswith("W ")]
        assert len(warnings) == len(line.ignored), server.log


def test_a_server_on_a_unix_socket_logs_objects_and_removes_the_socket(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "octavo.sock"
    words = (str(folder), "--kv-cache-memory-bytes", "64M", "--uds", str(path), "--log-format", "json",
             "--uvicorn-log-level", "info", "--disable-access-log-for-endpoints", "/readyz", "--enable-log-requests",
             "--log-level", "info")  # fmt: skip
    with (
        running(free_port(), *words) as server,
        httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://octavo") as client,
    ):
        wait_for(lambda: any("Octavo serves" in line for line in server.log), 90)
        assert client.get("/readyz").status_code == 200
        body = {"prompt": "a secret", "max_tokens": 2, "request_id": "abc"}
        assert client.post("/v1/completions", json=body).status_code == 200
        os.kill(server.popen.pid, signal.SIGTERM)
        assert server.wait(30) == 0
    assert not path.exists()
    lines = [json.loads(line) for line in server.log]
    assert any(line["message"].endswith(f"at unix:{path}") for line in lines)
    (asked,) = [line for line in lines if line.get("prompt_tokens")]
    assert asked["request_id"].startswith("cmpl-abc") and asked["parameters"]["max_tokens"] == 2
    answered = [line["message"] for line in lines if line["logger"] == "uvicorn.access"]
    assert len(answered) == 1 and "/v1/completions" in answered[0]
    assert len({line["process"] for line in lines}) == 2 and "secret" not in "".join(server.log)


def test_an_unwanted_flag_is_one_line_and_comes_at_once(folder: Path) -> None:
    with running(free_port(), str(folder), "--enable-lora") as server:
        assert server.wait(30) == 2
        assert "".join(server.log).startswith("octavo serve: option enable_lora: LoRA adapters are not supported")
        assert len(server.log) == 1
