"""Programs that people have, as they come, against `octavo serve`: the official `openai` package in this environment,
the others in one of their own, which is made once and kept under build/.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.e2e.served import Served, served
from tests.script_model import TOOLS_TEMPLATE, pieces_of, write_script_model
from tests.server.conftest import ARGUMENTS, SPOKEN, TEXT, THOUGHT

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CLIENTS = ("anthropic==2.14.0", "litellm==1.110.2", "langchain-openai==1.7.4", "instructor==1.17.0")
MAKE_TIMEOUT_S, RUN_TIMEOUT_S = 600, 120
USER: Any = [{"role": "user", "content": "hi"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}]


class Answer(BaseModel):
    """What structured output is to give."""

    ok: bool


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A model that thinks, speaks and calls a tool."""
    folder = tmp_path_factory.mktemp("caller")
    write_script_model(folder, pieces_of(SPOKEN, 7), context_length=2048, chat_template=TOOLS_TEMPLATE)
    parsers = ("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
    with served(
        folder, "--generation-config", "octavo", "--override-generation-config", '{"temperature": 0}', *parsers
    ) as made:
        yield made


@pytest.fixture(scope="module")
def client_python() -> Path:
    """Python of an environment with the clients."""
    name = hashlib.sha256("\n".join((sys.version, *CLIENTS)).encode()).hexdigest()[:16]
    folder = ROOT / "build" / f"clients-{name}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True, timeout=MAKE_TIMEOUT_S)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *CLIENTS], check=True, timeout=MAKE_TIMEOUT_S)
        (folder / "complete").touch()
    return python


@pytest.mark.timeout(MAKE_TIMEOUT_S + RUN_TIMEOUT_S)
@pytest.mark.parametrize("name", ["anthropic", "litellm", "langchain", "instructor"])
def test_a_client_as_it_comes_works(server: Served, client_python: Path, name: str) -> None:
    script = Path(__file__).parent / "clients" / f"use_{name}.py"
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "NO_PROXY": "*"}
    done = subprocess.run(
        [client_python, script, server.url, "test"],
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    server.assert_log_is_clean()


@pytest.fixture
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_openai_chats_whole_and_streamed(client: openai.OpenAI) -> None:
    message = client.chat.completions.create(model="test", messages=USER, tools=TOOLS).choices[0].message
    assert message.content == TEXT and message.reasoning_content == THOUGHT  # type: ignore[attr-defined]
    assert message.tool_calls is not None
    with client.chat.completions.stream(model="test", messages=USER, tools=TOOLS) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls" and final.message.content == TEXT
    (call,), (streamed,) = message.tool_calls, final.message.tool_calls or []
    assert json.loads(call.function.arguments) == json.loads(streamed.function.arguments) == ARGUMENTS  # type: ignore[union-attr]


def test_openai_gets_structured_output(client: openai.OpenAI) -> None:
    parsed = client.chat.completions.parse(model="test", messages=USER, response_format=Answer, max_tokens=100)
    assert isinstance(parsed.choices[0].message.parsed, Answer)
    answer = client.responses.parse(model="test", input="hi", text_format=Answer, max_output_tokens=100)
    assert isinstance(answer.output_parsed, Answer)


def test_openai_uses_the_responses_api(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": False}
    first = client.responses.create(model="test", input="hi", tools=[tool])
    call: Any = first.output[-1]
    assert json.loads(call.arguments) == ARGUMENTS
    result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
    with client.responses.stream(model="test", input=result, tools=[tool], previous_response_id=first.id) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == TEXT
    client.responses.delete(first.id)


def test_openai_runs_a_batch(client: openai.OpenAI) -> None:
    lines = [
        {"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions", "body": {"messages": USER}}
        for i in range(5)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    while (batch := client.batches.retrieve(batch.id)).status not in ("completed", "failed"):
        pass
    assert batch.output_file_id is not None
    assert len(client.files.content(batch.output_file_id).text.splitlines()) == 5
