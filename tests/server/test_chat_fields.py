"""Fields of chat and completions that shape the prompt, or how it and the answer are told."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.config import ServerConfig
from octavo.errors import ConfigError
from tests.script_model import write_script_model
from tests.server.conftest import PIECES, SENTENCE
from tests.server.world import World, assert_refused, finish_reasons, joined, serve_app

TEMPLATE = "{% if fast %}[fast]{% endif %}[{{ tone|default('plain') }}]{{ messages[-1].content }}"


def prompt_text(world: World, content: Any = "x", **body: Any) -> str:
    text: str = world.chat(content, max_tokens=1, return_prompt_text=True, **body)["prompt_text"]
    return text


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A server that runs templates of requests, with variables of its own."""
    folder = write_script_model(tmp_path_factory.mktemp("trusting"), PIECES, chat_template=TEMPLATE)
    server = ServerConfig(trust_request_chat_template=True, disable_log_stats=True)
    with serve_app(folder, server, default_chat_template_kwargs='{"fast": true, "tone": "calm"}') as world:
        yield world


def test_the_prompt_is_told_as_the_model_gets_it(script: World) -> None:
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    body = {"return_prompt_text": True, "return_token_ids": True}
    whole, chunks = script.chat(**body), script.stream_chat(**body)
    assert whole["prompt_text"].endswith(text) and "prompt_text" not in script.chat()
    told = [chunk["prompt_text"] for chunk in chunks if "prompt_text" in chunk]
    assert told == [whole["prompt_text"]] == [script.ok("/detokenize", tokens=whole["prompt_token_ids"])["prompt"]]
    assert script.complete("é中", **body)["choices"][0]["prompt_text"] == "é中"
    told = [
        c["prompt_text"]
        for chunk in script.stream_complete("é中", **body)
        for c in chunk["choices"]
        if "prompt_text" in c
    ]
    assert told == ["é中"]


@pytest.mark.parametrize("interval", [1, 2, 3, 100])
def test_a_stream_may_come_in_larger_pieces(varied: World, interval: int) -> None:
    body = {"max_tokens": 7, "ignore_eos": True, "n": 2, "temperature": 1.0, "seed": 3, "logprobs": 1}
    whole = varied.complete("abc", **body)
    chunks = varied.stream_complete("abc", stream_interval=interval, return_token_ids=True, **body)
    for index in range(2):
        choices = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert joined(chunks, index) == whole["choices"][index]["text"]
        tokens = [token for choice in choices for token in choice["logprobs"]["tokens"]]
        assert tokens == whole["choices"][index]["logprobs"]["tokens"]
        assert finish_reasons(chunks, index) == ["length"]
        assert all(len(c["token_ids"]) >= interval for c in choices[:-1])
    for bad in (0, -1, 1.5):
        assert_refused(varied.post("/v1/completions", prompt="x", stream_interval=bad), param="stream_interval")


def test_default_variables_apply_where_a_request_says_nothing_else(trusting: World) -> None:
    assert prompt_text(trusting) == "[fast][calm]x"
    assert prompt_text(trusting, chat_template_kwargs={"fast": False}) == "[calm]x"
    assert prompt_text(trusting, chat_template_kwargs={"tone": "loud"}) == "[fast][loud]x"


def test_default_variables_decide_about_thinking_too(tmp_path: Path) -> None:
    folder = write_script_model(tmp_path, ["<think>", "so", "</think>", "yes"], chat_template=TEMPLATE)
    server = ServerConfig(reasoning_parser="qwen3", disable_log_stats=True)
    for variables, content in (("{}", "yes"), ('{"enable_thinking": false}', "<think>so</think>yes")):
        with serve_app(folder, server, default_chat_template_kwargs=variables) as world:
            assert world.chat("hi", max_tokens=20)["choices"][0]["message"]["content"] == content


def test_default_variables_must_be_an_object(script_folder: Path) -> None:
    for text in ("[1]", "{"):
        with (
            pytest.raises(ConfigError, match="--default-chat-template-kwargs"),
            serve_app(script_folder, default_chat_template_kwargs=text),
        ):
            pass


def test_a_trusted_template_of_a_request_is_run_with_the_same_variables(trusting: World) -> None:
    assert prompt_text(trusting, chat_template="own {{ tone }}: {{ messages[0].content }}") == "own calm: x"
    assert prompt_text(trusting, chat_template="") == "[fast][calm]x"
    messages = [{"role": "user", "content": "x"}]
    told = trusting.ok("/tokenize", messages=messages, chat_template="{{ tone }}")
    assert told["count"] == 4


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("{% if %}", "not valid jinja"),
        ("{{ raise_exception('no') }}", "refused"),
        ("{{ ''.__class__.__mro__ }}", "refused"),
        ("{{ messages.__class__.__base__.__subclasses__() }}", "refused"),
        ("x" * (2**20 + 1), "1048576"),
    ],
)
def test_a_bad_template_of_a_request_is_the_callers_error(trusting: World, template: str, complaint: str) -> None:
    body = {"messages": [{"role": "user", "content": "x"}]}
    assert complaint in assert_refused(trusting.post("/v1/chat/completions", **body, chat_template=template))["message"]
    assert prompt_text(trusting) == "[fast][calm]x"


@pytest.mark.parametrize(
    ("content_format", "seen"), [("auto", "a\nb"), ("string", "a\nb"), ("openai", "[{'type': 'text', 'text': 'a'}")]
)
def test_the_form_of_content_can_be_said(script_folder: Path, content_format: str, seen: str) -> None:
    template = "{{ messages[0].content }}"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    with serve_app(script_folder, chat_template=template, chat_template_content_format=content_format) as world:
        assert prompt_text(world, parts).startswith(seen)


def test_priority_comes_from_the_field_or_else_from_the_header(script_folder: Path, script: World) -> None:
    with serve_app(script_folder, scheduling_policy="priority") as world:
        for header, status in (
            ("5", 200),
            ("-3", 200),
            ("x", 400),
            ("1.5", 400),
            ("9" * 30, 400),
            ("²", 400),
        ):
            response = world.http.post(
                "/v1/completions", json={"prompt": "hi"}, headers={b"X-Vllm-Priority": header.encode()}
            )
            assert response.status_code == status, header
        body = {"prompt": "hi", "priority": 1}
        assert world.http.post("/v1/completions", json=body, headers={"X-Vllm-Priority": "x"}).status_code == 200
    response = script.http.post("/v1/completions", json={"prompt": "hi"}, headers={"X-Vllm-Priority": "5"})
    assert_refused(response, param="priority")  # not under first come, first served


def test_top_logprobs_minus_one_are_all_where_that_is_allowed(script_folder: Path, script: World) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "top_logprobs": -1, "max_tokens": 1}
    assert "--max-logprobs" in assert_refused(script.post("/v1/chat/completions", **body))["message"]
    with serve_app(script_folder, max_logprobs=-1) as world:
        top = world.ok("/v1/chat/completions", **body)["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        assert len(top) == world.config.spec.vocab_size
        assert SENTENCE.startswith(top[0]["token"])
