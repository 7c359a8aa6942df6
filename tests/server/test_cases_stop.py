"""Fault cases of the class "stop", over HTTP."""

from typing import Any

import pytest

from tests.server.conftest import SENTENCE
from tests.server.test_cases_streaming import text_of
from tests.server.world import World, assert_refused, finish_reasons, joined


@pytest.mark.parametrize(
    ("options", "text", "stop_reason"),
    [
        ({"stop": ["own fox"]}, "The quick br", "own fox"),
        ({"stop": ["own fox", "quick br"]}, "The ", "quick br"),
        ({"stop": ["jumps over"]}, SENTENCE, None),
        ({"stop": ["brow"], "include_stop_str_in_output": True}, "The quick brow", "brow"),
    ],
)
@pytest.mark.parametrize("route", ["completions", "chat"])
def test_stp_01_stop_strings_cut_at_the_character(
    script: World, route: str, options: dict[str, Any], text: str, stop_reason: str | None
) -> None:
    ask, stream = (
        (script.complete, script.stream_complete) if route == "completions" else (script.chat, script.stream_chat)
    )
    whole = ask("hi", max_tokens=20, **options)
    assert text_of(whole) == text and whole["choices"][0]["finish_reason"] == "stop"
    assert whole["choices"][0]["stop_reason"] == stop_reason
    for interval in (1, 2, 3, 7, 50):
        chunks = stream("hi", stream_interval=interval, **options)
        assert joined(chunks) == text and finish_reasons(chunks) == ["stop"]
        sent = ""
        for chunk in chunks:
            sent += joined([chunk])
            assert text.startswith(sent), "a delta shows text past the cut"


@pytest.mark.parametrize("stop", ["", [""], ["", "x"]])
@pytest.mark.parametrize("stream", [False, True])
def test_stp_03_an_empty_stop_string_is_refused(script: World, stop: Any, stream: bool) -> None:
    body = {"prompt": "hi", "stop": stop, "stream": stream}
    assert_refused(script.post("/v1/completions", **body), param="stop")
    chat = {"messages": [{"role": "user", "content": "hi"}], "stop": stop, "stream": stream}
    assert_refused(script.post("/v1/chat/completions", **chat), param="stop")


@pytest.mark.parametrize("stop", [[], None, ["1", "2", "3", "4", "5"]])
def test_stp_03_no_stop_and_five_stops_are_accepted(script: World, stop: Any) -> None:
    assert text_of(script.complete("hi", stop=stop, max_tokens=20)) == SENTENCE


def test_stp_03_more_stop_strings_than_the_limit_are_refused(script: World) -> None:
    assert_refused(script.post("/v1/completions", prompt="hi", stop=[str(i) for i in range(17)]), param="stop")


def test_a_stop_token_ends_the_text_and_is_told(script: World) -> None:
    ids = script.complete("hi", max_tokens=20, return_token_ids=True)["choices"][0]["token_ids"]
    answer = script.complete("hi", max_tokens=20, stop_token_ids=[ids[2]])
    assert text_of(answer) == "The quick"
    assert answer["choices"][0]["stop_reason"] == ids[2]
    kept = script.complete("hi", max_tokens=20, stop_token_ids=[ids[2]], include_stop_str_in_output=True)
    assert text_of(kept) == "The quick brown"
