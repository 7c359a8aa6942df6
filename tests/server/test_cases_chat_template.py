"""Fault cases of the class "chat_template", over HTTP. Real vocabularies: test_real_vocabularies.py.

Rules: several text parts are joined by a newline; `continue_final_message` keeps trailing blanks.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.script_model import CHATML, write_script_model
from tests.server.conftest import PIECES, SENTENCE
from tests.server.test_cases_streaming import text_of
from tests.server.world import World, assert_refused, joined, serve_app


def rendered(world: World, messages: list[dict[str, Any]], **options: Any) -> str:
    """The prompt that a conversation becomes."""
    tokens = world.ok("/tokenize", messages=messages, **options)["tokens"]
    prompt: str = world.ok("/detokenize", tokens=tokens)["prompt"]
    return prompt


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def test_tpl_01_one_part_is_the_string(script: World) -> None:
    text, parts = script.chat("Hello world"), script.chat([part("Hello world")])
    assert text["usage"]["prompt_tokens"] == parts["usage"]["prompt_tokens"]
    assert text_of(text) == text_of(parts) == SENTENCE


def test_tpl_01_parts_keep_their_order_and_leave_no_python_in_the_prompt(script: World) -> None:
    messages = [{"role": "system", "content": [part("be"), part("brief")]}, *user([part("first"), part("second")])]
    prompt = rendered(script, messages)
    assert "be\nbrief" in prompt and "first\nsecond" in prompt and "'type'" not in prompt
    assert script.chat(messages=messages)["usage"]["prompt_tokens"] == len(prompt.encode()) - sum(
        len(special) - 1 for special in ("<|im_start|>", "<|im_end|>") for _ in range(prompt.count(special))
    )


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "poem", "text": "x"}],
        [{"text": "x"}],
        [{"type": "text"}],
        [{"type": "text", "text": 5}],
        [5],
        5,
        {"type": "text", "text": "x"},
        None,
        [{"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}],
    ],
)
def test_tpl_01_content_of_unknown_form_is_refused(script: World, content: Any) -> None:
    body = {"messages": [{"role": "user", "content": content}]}
    error = assert_refused(script.post("/v1/chat/completions", **body))
    assert error["param"].startswith("messages")


def test_tpl_01_no_parts_are_empty_content(script: World) -> None:
    assert rendered(script, user([])) == rendered(script, user(""))
    assert script.chat([])["choices"]


@pytest.mark.parametrize("content", ["OK?", "OK? ", "OK?\n", ""])
def test_tpl_03_a_final_message_is_continued_exactly(script: World, content: str) -> None:
    messages = [*user("hi"), {"role": "assistant", "content": content}]
    options = {"continue_final_message": True, "add_generation_prompt": False}
    prompt = rendered(script, messages, **options)
    assert prompt.endswith(f"<|im_start|>assistant\n{content}")
    for echo in (False, True):
        wanted = content + SENTENCE if echo else SENTENCE
        assert text_of(script.chat(messages=messages, echo=echo, **options)) == wanted
        assert joined(script.stream_chat(messages=messages, echo=echo, **options)) == wanted


def test_tpl_03_both_flags_are_refused_and_one_is_enough(script: World) -> None:
    messages = [*user("hi"), {"role": "assistant", "content": "OK"}]
    both = {"continue_final_message": True, "add_generation_prompt": True}
    assert_refused(script.post("/v1/chat/completions", messages=messages, **both))
    assert text_of(script.chat(messages=messages, continue_final_message=True)) == SENTENCE


def test_roles_that_the_template_does_not_know_by_name(script: World) -> None:
    assert "<|im_start|>system\nx" in rendered(script, [{"role": "developer", "content": "x"}, *user("hi")])
    assert_refused(script.post("/v1/chat/completions", messages=[{"content": "x"}]))
    assert_refused(script.post("/v1/chat/completions", messages=[{"role": 5, "content": "x"}]))


def test_a_template_of_the_request_is_not_run(script: World) -> None:
    template = "{{ 7 * 7 }}"
    assert_refused(script.post("/v1/chat/completions", messages=user("x"), chat_template=template))
    kwargs = {"chat_template": template}
    assert_refused(script.post("/v1/chat/completions", messages=user("x"), chat_template_kwargs=kwargs))


@pytest.fixture(scope="module")
def choosy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A template with opinions, tools and switches."""
    template = (
        "{% if messages|length > 2 %}{{ raise_exception('two messages at most') }}{% endif %}"
        "{% if tools %}[tools {{ tools[0].function.name }}]{% endif %}"
        "{% if fast %}[fast]{% endif %}{% if reasoning_effort %}[effort {{ reasoning_effort }}]{% endif %}" + CHATML
    )
    folder = write_script_model(tmp_path_factory.mktemp("choosy"), PIECES, chat_template=template)
    with serve_app(folder) as world:
        yield world


def test_what_the_template_refuses_is_the_callers_error(choosy: World) -> None:
    for stream in (False, True):
        response = choosy.post("/v1/chat/completions", messages=user("x") * 3, stream=stream)
        assert "two messages at most" in assert_refused(response)["message"]
    assert choosy.chat("x")["choices"]


def test_tools_and_switches_reach_the_template(choosy: World) -> None:
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    plain = choosy.chat("x")["usage"]["prompt_tokens"]
    assert choosy.chat("x", tools=tools)["usage"]["prompt_tokens"] == plain + len("[tools weather]")
    assert choosy.chat("x", reasoning_effort="low")["usage"]["prompt_tokens"] == plain + len("[effort low]")
    assert rendered(choosy, user("x"), chat_template_kwargs={"fast": True}).startswith("[fast]")


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    with serve_app(write_script_model(tmp_path, PIECES, chat_template=None)) as world:
        error = assert_refused(world.post("/v1/chat/completions", messages=user("x")))
        assert "--chat-template" in error["message"]
        assert world.complete("hi", max_tokens=20)["choices"][0]["text"] == SENTENCE


def test_a_template_from_the_command_line_wins(script_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("mine: {{ messages[0].content }}")
    with serve_app(script_folder, chat_template=str(file)) as world:
        assert rendered(world, user("x")) == "mine: x"


def test_truncation_keeps_the_asked_side(script: World) -> None:
    body = {"echo": True, "max_tokens": 0}
    assert text_of(script.complete("abcdef", truncate_prompt_tokens=2, **body)) == "ef"
    assert text_of(script.complete("abcdef", truncate_prompt_tokens=2, truncation_side="right", **body)) == "ab"
    assert text_of(script.complete("abcdef", truncate_prompt_tokens=9, **body)) == "abcdef"
    long = script.complete("x" * 600, truncate_prompt_tokens=-1, max_tokens=1)
    assert long["usage"]["prompt_tokens"] == 511
    assert_refused(script.post("/v1/completions", prompt="abc", truncate_prompt_tokens=0))
