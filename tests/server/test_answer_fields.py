"""Fields that say what is told of an answer, or when it ends: stream and not, chat and completions."""

import json
import re
from typing import Any

import pytest

from octavo.server.anthropic import MessagesRequest, to_chat
from tests.script_model import byte_id
from tests.server.test_cases_logprobs import chat_content
from tests.server.world import World, assert_refused

IDS = [byte_id("a"), byte_id("z"), 0]
STUCK = {"structured_outputs": {"regex": "x(abc){20}"}, "max_tokens": 60}


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_chosen_ids_stand_where_the_most_likely_ones_would(varied: World, stream: bool) -> None:
    options = {"max_tokens": 3, "logprob_token_ids": IDS, "return_tokens_as_token_ids": True}
    _, found = chat_content(varied, stream, top_logprobs=1, **options)
    _, full = chat_content(varied, stream, top_logprobs=20, max_tokens=3)
    assert len(found) == len(full) == 3
    for entry, known in zip(found, full, strict=True):
        told = {top["token"]: top["logprob"] for top in entry["top_logprobs"]}
        assert told.keys() == {f"token_id:{token_id}" for token_id in IDS} | {entry["token"]}
        assert entry["logprob"] == known["logprob"] == told[entry["token"]]
        assert list(told.values()) == sorted(told.values(), reverse=True)


@pytest.mark.parametrize("stream", [False, True])
def test_completions_tell_the_logprobs_of_chosen_ids(varied: World, stream: bool) -> None:
    options = {"max_tokens": 3, "logprobs": 1, "logprob_token_ids": IDS, "return_tokens_as_token_ids": True}
    chunks = varied.stream_complete("hi", **options) if stream else [varied.complete("hi", **options)]
    told = [top for c in chunks for choice in c["choices"] for top in choice["logprobs"]["top_logprobs"]]
    tokens = [name for c in chunks for choice in c["choices"] for name in choice["logprobs"]["tokens"]]
    assert [top.keys() for top in told] == [{f"token_id:{i}" for i in IDS} | {name} for name in tokens]


def test_token_ids_in_and_out_tell_them_too(varied: World) -> None:
    params = {"max_tokens": 2, "temperature": 0, "logprob_token_ids": IDS}
    answer = varied.ok("/inference/v1/generate", token_ids=[5, 6], sampling_params=params)
    assert all(len(e["top_logprobs"]) in (3, 4) for e in answer["choices"][0]["logprobs"]["content"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"logprob_token_ids": IDS},
        {"logprob_token_ids": [10**6], "logprobs": 1},
        {"logprob_token_ids": list(range(129)), "logprobs": 1},
        {"logprob_token_ids": IDS, "logprobs": 1, "max_tokens": 0, "echo": True},
    ],
)
def test_chosen_ids_that_cannot_be_told_are_refused(varied: World, wrong: dict[str, Any]) -> None:
    assert_refused(varied.post("/v1/completions", prompt="hi", **wrong), param="logprob_token_ids")


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_repeats_itself_is_ended_and_says_so(varied: World, stream: bool) -> None:
    options = {**STUCK, "repetition_detection": {"max_pattern_size": 8, "min_count": 3}}
    if stream:
        choices = [choice for chunk in varied.stream_chat(**options) for choice in chunk["choices"]]
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
    else:
        choices = varied.chat(**options)["choices"]
        text = choices[0]["message"]["content"]
    assert text == "xabcabcabc" and choices[-1]["finish_reason"] == "repetition"
    assert varied.complete("hi", **options)["choices"][0]["text"] == text
    others = {"max_pattern_size": 8, "min_pattern_size": 4, "min_count": 3}
    assert varied.complete("hi", **{**options, "repetition_detection": others})["choices"][0]["text"] == "x" + "abc" * 6


def test_a_setting_of_repetition_detection_that_means_nothing_is_refused(varied: World) -> None:
    body = {"prompt": "hi", "repetition_detection": {"max_pattern_size": 3, "min_count": 1}}
    assert_refused(varied.post("/v1/completions", **body), param="repetition_detection.min_count")


def test_every_form_of_a_conversation_tells_its_times_and_paces_its_stream(varied: World) -> None:
    message = {"role": "user", "content": "hi"}
    body = {"model": "test", "messages": [message], "max_tokens": 9, "return_metrics": True}
    told = [varied.ok("/v1/messages", **body)["metrics"]]
    told.append(varied.named_events("/v1/messages", **body)[-2]["metrics"])
    asked = {"input": "hi", "max_output_tokens": 9, "return_metrics": True}
    stored = varied.ok("/v1/responses", **asked)
    told += [stored["metrics"], varied.http.get(f"/v1/responses/{stored['id']}").json()["metrics"]]
    events = varied.named_events("/v1/responses", **asked, stream_interval=100)
    told.append(events[-1]["response"]["metrics"])
    assert all(times["time_to_first_token_ms"] > 0 and times["tokens_per_second"] > 0 for times in told)
    assert sum(event["type"] == "response.output_text.delta" for event in events) == 1
    assert "metrics" not in varied.ok("/v1/responses", input="hi", max_output_tokens=1)


def test_anthropic_s_budget_bounds_the_thinking() -> None:
    said = {"model": "m", "max_tokens": 4000, "messages": [{"role": "user", "content": "hi"}]}
    thinking = {"type": "enabled", "budget_tokens": 1500}
    assert to_chat(MessagesRequest.model_validate({**said, "thinking": thinking})).thinking_token_budget == 1500
    off = {**said, "thinking": {"type": "disabled"}}
    assert to_chat(MessagesRequest.model_validate(off)).thinking_token_budget is None


def test_a_budget_for_thinking_holds_and_is_no_fault_of_a_model_without_any(caller: World, varied: World) -> None:
    body = {
        "model": "test",
        "max_tokens": 1600,
        "messages": [{"role": "user", "content": "hi"}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "temperature": 0,
    }
    plain = caller.ok("/v1/messages", **{**body, "thinking": {"type": "adaptive"}})
    assert caller.ok("/v1/messages", **body)["content"] == plain["content"]
    assert varied.ok("/v1/messages", **body)["content"]


def test_a_structural_tag_in_xgrammar_s_form_holds_in_every_field(varied: World) -> None:
    digits = {"type": "tag", "begin": "<n>", "content": {"type": "regex", "pattern": "[0-9]{3}"}, "end": "</n>"}
    form = {"type": "tags_with_separator", "tags": [digits], "separator": ";", "at_least_one": True}
    tag = {"type": "structural_tag", "format": form}
    texts = [varied.chat(response_format=tag, max_tokens=100)["choices"][0]["message"]["content"]]
    for spelled in (tag, json.dumps(tag)):
        answer = varied.complete("hi", structured_outputs={"structural_tag": spelled}, max_tokens=100)
        texts.append(answer["choices"][0]["text"])
    assert all(re.match(r"<n>[0-9]{3}</n>(;|$)", text) for text in texts)
    wrong = {"type": "structural_tag", "format": {"type": "token"}}
    refused = varied.post("/v1/completions", prompt="hi", response_format=wrong)
    assert "known: const_string" in assert_refused(refused, param="response_format")["message"]
