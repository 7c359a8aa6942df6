"""The caller's mistakes that only the answer shows: 4xx in every API's form, an error event inside a stream."""

import itertools
from typing import Any

import pytest

from octavo.grammar.constraint import Constraint
from tests.script_model import byte_id
from tests.server.world import World, assert_refused, joined, strict_json

MESSAGES = [{"role": "user", "content": "hi"}]
LETTERS = {"type": "json_schema", "name": "a", "strict": True, "schema": {"type": "string", "minLength": 90}}
CHAT_LETTERS = {"type": "json_schema", "json_schema": {"name": "a", "schema": LETTERS["schema"]}}
NINETY = {"type": "object", "properties": {"a": {"type": "string", "minLength": 90}}, "required": ["a"]}
TOOL = {"name": "f", "input_schema": NINETY}

DIALECTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hi", "max_tokens": 99, "structured_outputs": {"regex": "[a-z]{90}"}},
    "/v1/chat/completions": {"messages": MESSAGES, "response_format": CHAT_LETTERS},
    "/v1/responses": {"input": "hi", "text": {"format": LETTERS}},
    "/v1/messages": {
        "model": "test", "max_tokens": 99, "messages": MESSAGES, "tools": [TOOL],
        "tool_choice": {"type": "tool", "name": "f"},
    },
    "/generate": {
        "inputs": "hi",
        "parameters": {"grammar": {"type": "regex", "value": "[a-z]{90}"}, "max_new_tokens": 99},
    },
    "/inference/v1/generate": {
        "token_ids": [byte_id("h")],
        "sampling_params": {"max_tokens": 99, "structured_outputs": {"regex": "[a-z]{90}"}},
    },
}  # fmt: skip
STATUS = {"/generate": 422}
TYPES = {"/v1/messages": "invalid_request_error", "/generate": "validation", "/v1/responses": "invalid_prompt"}


@pytest.fixture
def refused(varied: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A server on which no answer with a grammar gets past its fiftieth token."""

    def consume(constraint: Constraint, token_ids: list[int]) -> None:
        count = counts[constraint] = counts.get(constraint, 0) + len(token_ids)
        if count >= 50:
            constraint._refuse("made to fail")
        constraint._matcher.consume_token(token_ids[0])  # type: ignore[union-attr]

    counts: dict[Constraint, int] = {}
    monkeypatch.setattr(Constraint, "consume", consume)
    return varied


def kind_of(answer: Any) -> str:
    """What an API calls the error, in whichever place."""
    if "error_type" in answer:
        return str(answer["error_type"])
    error = answer.get("error") or answer["response"]["error"]
    return str(error.get("type") or error.get("code"))


def ended_in_error(world: World) -> float:
    name = 'octavo:request_success_total{engine="0",finished_reason="error",model_name="test"}'
    return world.metrics()[name]


@pytest.mark.parametrize("path", DIALECTS)
def test_a_fault_of_the_request_that_its_answer_shows_is_a_4xx_and_inside_a_stream_an_event(
    refused: World, path: str
) -> None:
    body, before = DIALECTS[path], ended_in_error(refused)
    response = refused.post(path, **body)
    answer = strict_json(response.content)
    assert response.status_code == STATUS.get(path, 400) and "made to fail" in response.text, response.text
    kind = "BadRequestError" if path == "/v1/responses" else TYPES.get(path, "BadRequestError")
    assert kind_of(answer) == kind
    streamed = {**body, "stream": True}
    stream = refused.post("/generate_stream", **body) if path == "/generate" else refused.post(path, **streamed)
    assert stream.status_code == 200 and "[DONE]" not in stream.text
    lines = [line for line in stream.text.splitlines() if line.startswith("data:")]
    last = strict_json(lines[-1].removeprefix("data:"))
    assert len(lines) > 1 and "made to fail" in lines[-1] and kind_of(last) == TYPES.get(path, "BadRequestError"), last
    assert ended_in_error(refused) == before + 2


@pytest.mark.parametrize(
    "contradiction",
    [
        {"allowed_token_ids": [byte_id("a"), byte_id("b")]},
        {"bad_words": ["c"]},
        {"logit_bias": {str(byte_id("c")): -100}, "allowed_token_ids": [byte_id("a"), byte_id("b")]},
    ],
)
def test_what_contradicts_the_grammar_on_the_way_ends_a_stream_with_an_error_event(
    varied: World, contradiction: dict[str, Any]
) -> None:
    body = {"prompt": "x", "max_tokens": 99, "structured_outputs": {"choice": ["ab" * 30 + "c"]}, **contradiction}
    error = assert_refused(varied.post("/v1/completions", **body))
    assert "no token is left" in error["message"] and "loosen one of them" in error["message"]
    lines = varied.post("/v1/completions", **body, stream=True).text.split("\n\n")
    events = [strict_json(line.removeprefix("data: ")) for line in itertools.takewhile(bool, lines)]
    assert joined(events[:-1]).startswith("abab") and events[-1]["error"]["code"] == 400
    assert varied.complete("x", structured_outputs={"choice": ["abc"]})["choices"][0]["text"] == "abc"
