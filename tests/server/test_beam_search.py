"""Beam search over HTTP: the beams of `LLM.beam_search`, as choices."""

from pathlib import Path
from typing import Any

import pytest

from octavo.llm import LLM
from octavo.sampling_params import BeamSearchParams
from tests.server.world import World, assert_refused

PROMPT = [5, 6, 7, 200, 201]


def beams(world: World, **body: Any) -> list[Any]:
    """Choices of /v1/completions."""
    answer = world.ok("/v1/completions", prompt=PROMPT, use_beam_search=True, return_token_ids=True, **body)
    found: list[Any] = answer["choices"]
    return found


@pytest.mark.parametrize("penalty", [1.0, 0.0])
def test_the_choices_are_the_best_beams_best_first(varied: World, random_folder: Path, penalty: float) -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=6, length_penalty=penalty)
    with LLM(str(random_folder), device="cpu", dtype=varied.config.model.dtype, max_model_len=512) as llm:
        (expected,) = llm.beam_search(PROMPT, params)
    choices = beams(varied, n=3, max_tokens=6, length_penalty=penalty)
    assert [PROMPT + choice["token_ids"] for choice in choices] == [found.tokens for found in expected.sequences]
    assert [choice["finish_reason"] for choice in choices] == [found.finish_reason for found in expected.sequences]
    assert choices == beams(varied, n=3, max_tokens=6, length_penalty=penalty)
    varied.wait_until_idle()


def test_several_prompts_and_a_conversation_are_searched_like_one(varied: World) -> None:
    options = {"use_beam_search": True, "n": 2, "max_tokens": 5, "return_token_ids": True}
    both = varied.ok("/v1/completions", prompt=[PROMPT, [9, 8, 7]], **options)
    one = varied.ok("/v1/completions", prompt=[9, 8, 7], **options)
    assert [c["token_ids"] for c in both["choices"][2:]] == [c["token_ids"] for c in one["choices"]]
    assert [c["index"] for c in both["choices"]] == [0, 1, 2, 3]
    assert both["usage"]["completion_tokens"] == sum(len(c["token_ids"]) for c in both["choices"])
    answer = varied.chat("hi", n=2, use_beam_search=True, max_tokens=5)
    assert len(answer["choices"]) == 2 and all(c["message"]["content"] for c in answer["choices"])


def test_the_best_beam_ends_where_the_model_ends_its_text(script: World) -> None:
    answer = script.chat(use_beam_search=True, n=2, max_tokens=20, length_penalty=0.0)
    assert answer["choices"][0]["message"]["content"] == "The quick brown fox jumps"
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stream", True), ("logprobs", 0), ("temperature", 0.5), ("stop", ["x"]), ("min_tokens", 1), ("seed", 3),
        ("structured_outputs", {"regex": "a"}), ("response_format", {"type": "json_object"}), ("n", 65),
        ("length_penalty", 11), ("max_tokens", 0), ("repetition_detection", {"max_pattern_size": 2, "min_count": 2}),
    ],
)  # fmt: skip
def test_what_a_search_has_no_room_for_is_refused_by_name(varied: World, field: str, value: Any) -> None:
    body = {"prompt": PROMPT, "use_beam_search": True, "n": 2, "max_tokens": 3, field: value}
    assert_refused(varied.post("/v1/completions", **body), param=field)


def test_tools_and_a_penalty_for_nothing_are_refused(varied: World) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    chat = "/v1/chat/completions"
    assert_refused(varied.post(chat, **body, use_beam_search=True, tools=[tool]), param="tools")
    assert_refused(varied.post(chat, **body, length_penalty=0.5), param="length_penalty")
    plain = {"temperature": 0, "top_p": 1, "top_k": -1, "stop": [], "response_format": {"type": "text"}}
    assert varied.ok(chat, **body, **plain, use_beam_search=True)["choices"]
    assert_refused(varied.post("/v1/responses", input="hi", use_beam_search=True), param="use_beam_search")


def test_a_client_that_leaves_ends_the_search_and_frees_its_pages(varied: World) -> None:
    body = {"prompt": PROMPT, "use_beam_search": True, "n": 8, "max_tokens": 400, "ignore_eos": True}
    with varied.send_and_hold("/v1/completions", **body):
        pass
    varied.wait_until_idle(10.0)
