"""What README.md and the quickstart tell a new user to do, done: their examples against `octavo serve` as it starts by
default, and the commands in a terminal.
"""

import json
import os
import pty
import re
import resource
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from octavo.llm import LLM
from octavo.loader.catalogue import CATALOGUE, pull
from octavo.sampling_params import SamplingParams
from tests.server.test_process_ends import OCTAVO, Process, running
from tests.server.test_run import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/quickstart.md")
SMOL = "smollm2-135m-instruct"
QUESTION = "What is the capital of France?"


class Example(NamedTuple):
    """One fenced block of a page."""

    page: str
    language: str
    code: str


EXAMPLES = [
    Example(page, language, code)
    for page in PAGES
    for language, code in re.findall(r"^```(\w+)\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
]
ASKING = [e for e in EXAMPLES if "127.0.0.1:8000" in e.code and (e.language == "python" or e.code.startswith("curl"))]
ALONE = [e for e in EXAMPLES if e.language == "python" and e not in ASKING]


def named(example: Example) -> str:
    return f"{example.page}-{example.language}-{EXAMPLES.index(example)}"


def run(command: list[str], timeout_s: float = 300, stdin: str = "") -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(
        command, cwd=ROOT, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def octavo(*arguments: str, stdin: str = "") -> str:
    return run([*OCTAVO, *arguments], stdin=stdin)


@pytest.fixture(scope="module")
def server() -> Iterator[Process]:
    """As `make serve` runs it, but for the port; the model is there already."""
    pull(SMOL)
    with running(free_port()) as process:
        process.wait_until_ready()
        yield process


def test_the_pages_have_examples_of_every_kind() -> None:
    assert {(e.page, e.language) for e in ASKING} == {(page, kind) for page in PAGES for kind in ("bash", "python")}
    assert {e.page for e in ALONE} == set(PAGES)


@pytest.mark.parametrize("example", ASKING, ids=named)
def test_an_example_that_asks_the_server_is_answered_paris(server: Process, example: Example) -> None:
    code = example.code.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
    output = run(["bash", "-c", code] if example.language == "bash" else [sys.executable, "-c", code])
    answer = json.loads(output)["choices"][0]["message"]["content"] if example.language == "bash" else output
    assert "Paris" in answer


@pytest.mark.parametrize("example", ALONE, ids=named)
def test_an_example_without_a_server_runs(example: Example) -> None:
    output = run([sys.executable, "-c", example.code])
    assert re.search(r"The capital of France is.*Paris", output) and "Water boils at" in output


def test_the_banner_says_what_is_served_and_where(server: Process) -> None:
    log = "".join(server.log)
    assert f"Octavo serves {SMOL} at http://127.0.0.1:{server.port}" in log
    assert re.search(r"KV pool +[\d,]+ pages, [\d,]+ tokens, [\d.]+ requests of full length", log)


# ---------------------------------------------------------------- in the terminal


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self._ours, self._theirs = pty.openpty()  # ours ends when nobody has the other side open
        # The leader of a session that opens a terminal gets it as its own, so that Ctrl-C becomes a signal.
        name = os.ttyname(self._theirs)
        onto = f'exec "$@" <{name} >{name} 2>&1'
        self.popen = subprocess.Popen(
            ["sh", "-c", onto, "sh", *OCTAVO, *arguments],
            cwd=ROOT,
            env=os.environ | {"TERM": "dumb"},
            start_new_session=True,
        )
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def read_until(self, pattern: str, timeout_s: float = 120) -> str:
        """What is printed from here on, up to the end of the first match."""
        deadline = time.monotonic() + timeout_s
        while (found := re.search(pattern, self.seen, re.DOTALL)) is None:
            assert self.popen.poll() is None and time.monotonic() < deadline, f"no {pattern!r} in {self.seen!r}"
            if select.select([self._ours], [], [], 0.1)[0]:
                self.seen += os.read(self._ours, 65536).decode(errors="replace").replace("\r", "")
        text, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return text

    def close(self) -> None:
        self.popen.kill()
        self.popen.wait()
        os.close(self._ours)
        os.close(self._theirs)


@pytest.mark.parametrize("remote", [False, True])
def test_chat_converses_in_a_terminal(server: Process, remote: bool) -> None:
    where = ("--url", f"http://127.0.0.1:{server.port}/v1") if remote else ()
    terminal = Terminal("chat", "--temperature", "0", *where)
    try:
        assert SMOL in terminal.read_until(r"Chatting with .*\n> ")
        terminal.type(f"{QUESTION}\n")
        assert "Paris" in terminal.read_until(r"\?\n.*\n> ")
        terminal.type("/retry\n")
        assert "Paris" in terminal.read_until(r"/retry\n.*\n> ")
        terminal.type("/help\n")
        assert "/system TEXT" in terminal.read_until(r"Ctrl-C stops an answer.*\n> ")
        terminal.type("/undo\n")
        terminal.read_until(r"\ntaken back\n> ")
        terminal.type("/undo\n")
        terminal.read_until(r"\nnothing to take back\n> ")
        terminal.type("/system Answer like a pirate.\n")
        terminal.read_until(r"pirate\.\n> ")
        terminal.type("/system\n")
        terminal.read_until(r"/system\nAnswer like a pirate\.\n> ")
        terminal.type("Tell a very long story of a ship in many chapters.\n")
        terminal.read_until(r"chapters\.\n.{60}")
        terminal.type("\x03")
        stopped = time.monotonic()
        terminal.read_until(r"\n> ")
        assert time.monotonic() - stopped < 10
        terminal.type("/undo\n")
        terminal.read_until(r"\ntaken back\n> ")
        terminal.type("half a line")
        terminal.read_until("half a line")
        # Nobody is as fast as this: between the echo of a key and the wait for the next, Python loses an interrupt.
        time.sleep(0.2)
        terminal.type("\x03")
        terminal.read_until(r"\n> ")
        terminal.type("\x04")
        assert terminal.popen.wait(30) == 0
    finally:
        terminal.close()


def test_chat_and_complete_answer_without_a_terminal(server: Process) -> None:
    assert "Paris" in octavo("chat", "--temperature", "0", "-q", QUESTION)
    assert "Paris" in octavo("chat", "--temperature", "0", stdin=f"{QUESTION}\n/exit\n")
    assert "Paris" in octavo("complete", "The capital of France is", "--max-tokens", "6", "--temperature", "0")
    url = f"http://127.0.0.1:{server.port}/v1"
    assert "Paris" in octavo("complete", "--url", url, "--temperature", "0", stdin="The capital of France is")


def test_convert_writes_a_folder_that_transformers_reads_alike(tmp_path: Path) -> None:
    out = tmp_path / "converted"
    assert octavo("convert", SMOL, str(out), "--dtype", "float32") == f"{out}\n"
    tokenizer, model = AutoTokenizer.from_pretrained(out), AutoModelForCausalLM.from_pretrained(out)
    texts = (QUESTION, " 12345 \U0001f600 Ω", "Café déjà vu\n\n\tdon't", "<|im_start|>user\nhi<|im_end|>\n")
    with LLM(SMOL, dtype="float32", logprobs_mode="raw_logits", max_logprobs=-1) as llm, torch.inference_mode():
        for text in texts:
            ids = llm.tokenizer.encode(text)
            assert tokenizer(text).input_ids == ids
            (output,) = llm.generate([ids], SamplingParams(max_tokens=1, logprobs=-1), use_tqdm=False)
            assert output.outputs[0].logprobs is not None
            entries = output.outputs[0].logprobs[0]
            ours = torch.tensor([entries[token_id].logprob for token_id in range(len(entries))])
            torch.testing.assert_close(ours, model(torch.tensor([ids])).logits[0, -1], atol=1e-3, rtol=0)
        conversation = [{"role": "user", "content": QUESTION}]
        (output,) = llm.chat(conversation, SamplingParams(max_tokens=1), use_tqdm=False)
    theirs = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False)
    assert output.prompt_token_ids == theirs


def test_models_pull_and_env_say_what_there_is() -> None:
    listing = octavo("models")
    assert all(name in listing for name in CATALOGUE) and "LlamaForCausalLM" in listing
    assert f"here: {pull(SMOL)}" in listing
    assert {model["name"] for model in json.loads(octavo("models", "--json"))["catalogue"]} == set(CATALOGUE)
    assert octavo("pull", SMOL).strip() == str(pull(SMOL))
    described = dict(line.split(": ", 1) for line in octavo("env").splitlines())
    assert described["torch"] == torch.__version__ and described["OCTAVO_API_KEY"] == "unset"


def test_help_answers_at_once() -> None:
    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert "serve a model" in octavo("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(5)) < 0.3
