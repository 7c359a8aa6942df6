"""Fault cases of the class "streaming", over HTTP. A joined stream is the answer without one."""

from dataclasses import replace
from typing import Any

import pytest

from octavo.server.serving import fingerprint
from tests.server.conftest import EMOJI_TEXT, SENTENCE
from tests.server.world import World, finish_reasons, joined

CONTINUE_EMOJI: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "!"}],
    "continue_final_message": True,
    "add_generation_prompt": False,
}


def both_ways(world: World, route: str, **body: Any) -> tuple[Any, list[Any]]:
    """The answer without a stream, and the chunks with one; usage is in both."""
    if route == "completions":
        whole, call = world.complete("hi!", **body), world.stream_complete
        return whole, call("hi!", stream_options={"include_usage": True}, **body)
    whole = world.chat(**CONTINUE_EMOJI, **body)
    return whole, world.stream_chat(**CONTINUE_EMOJI, stream_options={"include_usage": True}, **body)


def text_of(answer: Any, index: int = 0) -> str:
    choice = answer["choices"][index]
    return choice["text"] if "text" in choice else choice["message"]["content"]


@pytest.mark.parametrize("route", ["completions", "chat"])
def test_str_01_characters_made_of_several_tokens_arrive_whole(script: World, route: str) -> None:
    whole, chunks = both_ways(script, route, max_tokens=20)
    assert text_of(whole) == joined(chunks) == EMOJI_TEXT
    for chunk in chunks:
        assert "\ufffd" not in str(chunk["choices"])
    assert whole["usage"]["completion_tokens"] == chunks[-1]["usage"]["completion_tokens"] == 7  # EOS counts


@pytest.mark.parametrize("route", ["completions", "chat"])
@pytest.mark.parametrize(("max_tokens", "text"), [(1, "\ufffd"), (2, "\ufffd"), (3, "\U0001f600")])
def test_str_02_an_answer_cut_inside_a_character_ends_with_one_replacement(
    script: World, route: str, max_tokens: int, text: str
) -> None:
    # The parts of the case about tools and structured parsing need those features.
    whole, chunks = both_ways(script, route, max_tokens=max_tokens)
    assert text_of(whole) == joined(chunks) == text
    assert whole["choices"][0]["finish_reason"] == "length"
    assert finish_reasons(chunks) == ["length"]
    assert whole["usage"]["completion_tokens"] == chunks[-1]["usage"]["completion_tokens"] == max_tokens
    assert script.http.get("/health").status_code == 200


@pytest.mark.parametrize("route", ["completions", "chat"])
@pytest.mark.parametrize("options", [None, {"include_usage": True}, {"include_usage": True, "max_tokens": 1}])
def test_str_04_usage_roles_and_finish_reasons_come_once(
    script: World, route: str, options: dict[str, Any] | None
) -> None:
    options = dict(options or {})
    body: dict[str, Any] = {"n": 2, "max_tokens": options.pop("max_tokens", 20)}
    if options:
        body["stream_options"] = options
    chunks = script.stream_complete("hi", **body) if route == "completions" else script.stream_chat(**body)
    body.pop("stream_options", None)
    whole = script.complete("hi", **body) if route == "completions" else script.chat(**body)
    usages = [chunk.get("usage") for chunk in chunks]
    if options:
        assert chunks[-1]["choices"] == []
        assert usages[:-1] == [None] * (len(chunks) - 1)
        last = usages[-1]
        assert last["total_tokens"] == last["prompt_tokens"] + last["completion_tokens"]
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert last[name] == whole["usage"][name]
    else:
        assert usages == [None] * len(chunks)
    for index in range(2):
        own = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        reasons = [choice["finish_reason"] for choice in own]
        assert reasons == [None] * (len(own) - 1) + [whole["choices"][index]["finish_reason"]]
        assert joined(chunks, index) == text_of(whole, index)
        if route == "chat":
            roles = [choice["delta"].get("role") for choice in own]
            assert roles == ["assistant"] + [None] * (len(own) - 1)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
def test_str_04_the_answer_ends_with_one_done_and_closes_a_connection_that_is_to_close(
    script: World, path: str, body: dict[str, Any]
) -> None:
    with script.http.stream("POST", path, json={**body, "stream": True}, headers={"Connection": "close"}) as response:
        text = response.read().decode()
        assert response.headers["connection"] == "close"
    assert text.endswith("data: [DONE]\n\n") and text.count("[DONE]") == 1


def test_continuous_usage_counts_up_to_the_final_usage(script: World) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = script.stream_complete("hi", max_tokens=20, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == 6
    assert joined(chunks) == SENTENCE


def test_an_answer_is_the_same_object_all_along_a_stream(script: World) -> None:
    chunks = script.stream_chat(max_tokens=5)
    assert len({(c["id"], c["created"], c["model"], c["system_fingerprint"]) for c in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


def test_the_fingerprint_tells_settings_and_instruction_sets_apart(script: World) -> None:
    config, numerics = script.config, script.engine.facts.numerics
    shown = script.complete("hi", max_tokens=1)["system_fingerprint"]
    others = [
        fingerprint(replace(config, dtype="bfloat16"), numerics),
        fingerprint(config, "cpu of another machine"),
    ]
    assert shown == fingerprint(config, numerics) and len({shown, *others}) == 3
