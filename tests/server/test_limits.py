"""The door's limits: what is at one passes, what is over it is refused by name, number and limit."""

import json
from typing import Any

import pytest

from octavo import limits
from octavo.limits import INT64_MAX, INT64_MIN, Limit
from octavo.server.requests import ChatRequest, CompletionRequest
from tests.server.conftest import SENTENCE
from tests.server.world import World, assert_refused

USER = {"role": "user", "content": "hi"}
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def several(count: int) -> list[str]:
    return [f"#{i}" for i in range(count)]


@pytest.mark.parametrize(
    ("limit", "path", "param", "make"),
    [
        (limits.STOP_STRINGS, COMPLETIONS, "stop", several),
        (limits.STOP_CHARACTERS, COMPLETIONS, "stop", lambda count: "#" * count),
        (limits.STOP_TOKEN_IDS, COMPLETIONS, "stop_token_ids", lambda count: [250] * count),
        (limits.BAD_WORDS, COMPLETIONS, "bad_words", several),
        (limits.BAD_WORD_CHARACTERS, COMPLETIONS, "bad_words", lambda count: ["#" * count]),
        (limits.LOGIT_BIAS, COMPLETIONS, "logit_bias", lambda count: {"0" * i + "5": 0 for i in range(count)}),
        (limits.DOCUMENTS, CHAT, "documents", lambda count: [{}] * count),
        (limits.MESSAGES, CHAT, "messages", lambda count: [{"role": "system", "content": ""}] * count),
        (
            limits.TOOLS,
            CHAT,
            "tools",
            lambda count: [{"type": "function", "function": {"name": f"f{i}"}} for i in range(count)],
        ),
    ],
)
def test_a_count_over_its_limit_is_refused_with_both_numbers(
    script: World, limit: Limit, path: str, param: str, make: Any
) -> None:
    base: dict[str, Any] = {"prompt": "hi"} if path == COMPLETIONS else {"messages": [USER]}
    error = assert_refused(script.post(path, **base | {param: make(limit.value + 1)}), param=param)
    assert str(limit.value + 1) in error["message"] and str(limit.value) in error["message"]
    assert "send fewer" in error["message"]
    at_limit = script.post(path, **base | {param: make(limit.value)})
    if at_limit.status_code != 200:  # for another reason: the prompt outgrows the context
        assert str(limit.value) not in assert_refused(at_limit)["message"]


def test_prompts_and_choices_are_counted(script: World) -> None:
    error = assert_refused(script.post(COMPLETIONS, prompt=["x"] * 1025), param="prompt")
    assert "1025" in error["message"] and "OCTAVO_MAX_COMPLETION_PROMPTS" in error["message"]
    error = assert_refused(script.post(COMPLETIONS, prompt=["x"] * 2, n=8193), param="n")
    assert "16386" in error["message"] and "OCTAVO_MAX_N_SEQUENCES" in error["message"]


@pytest.mark.parametrize(
    ("variable", "param", "value"),
    [
        ("STOP_STRINGS", "stop", ["a", "b", "c"]),
        ("NUM_BAD_WORDS", "bad_words", ["a", "b", "c"]),
        ("COMPLETION_PROMPTS", "prompt", ["a", "b", "c"]),
        ("N_SEQUENCES", "n", 3),
    ],
)
@pytest.mark.parametrize("prefix", ["OCTAVO_MAX_", "VLLM_MAX_"])
def test_limits_of_vllm_have_its_environment_variables(
    script: World, monkeypatch: pytest.MonkeyPatch, variable: str, param: str, value: Any, prefix: str
) -> None:
    body = {"prompt": "hi", "max_tokens": 1, param: value}
    script.ok(COMPLETIONS, **body)
    monkeypatch.setenv(prefix + variable, "2")
    assert_refused(script.post(COMPLETIONS, **body), param=param)
    monkeypatch.setenv(prefix + variable, "3")
    script.ok(COMPLETIONS, **body)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_nesting_is_bounded_wherever_it_is(script: World) -> None:
    depth = limits.JSON_DEPTH.value
    script.ok(COMPLETIONS, prompt="hi", max_tokens=1, metadata={"a": nested(depth - 2)})
    error = assert_refused(script.post(COMPLETIONS, prompt="hi", metadata={"a": nested(depth - 1)}), param="metadata")
    assert str(depth) in error["message"]
    message = {**USER, "extra": nested(depth)}
    assert_refused(script.post(CHAT, messages=[message]), param="messages")
    wide = [{"a": [1]}] * 500
    script.ok(COMPLETIONS, prompt="hi", max_tokens=1, metadata=wide)


def test_too_many_or_too_long_headers_are_answered_431(script: World) -> None:
    body = {"prompt": "hi", "max_tokens": 1}
    many = {f"X-H{i}": "v" for i in range(limits.HEADERS.value + 1)}
    assert_refused(script.http.post(COMPLETIONS, json=body, headers=many), 431)
    long = script.http.post(COMPLETIONS, json=body, headers={"X-Long": "v" * limits.HEADER_BYTES.value})
    assert_refused(long, (400, 431))  # the HTTP parser may be first
    assert script.http.post(COMPLETIONS, json=body, headers={"X-Fine": "v" * 8000}).status_code == 200


EDGES = [0, 1, -1, 2**31 - 1, 2**31, -(2**31) - 1, 2**53, INT64_MAX, INT64_MIN, INT64_MAX + 1, INT64_MIN - 1,
         2**64, 10**40, 1e300, -1e300, 1.5, 5e-324]  # fmt: skip


def numeric_fields(model: Any) -> list[str]:
    return [
        name
        for name, field in model.model_fields.items()
        if any(kind in str(field.annotation) for kind in ("int", "float", "Int", "Float"))
    ]


@pytest.mark.parametrize(("path", "model"), [(COMPLETIONS, CompletionRequest), (CHAT, ChatRequest)])
def test_no_edge_of_a_number_hurts_anybody(script: World, path: str, model: Any) -> None:
    base: dict[str, Any] = {"prompt": "hi"} if path == COMPLETIONS else {"messages": [USER]}
    names = numeric_fields(model)
    assert {"n", "seed", "max_tokens", "temperature", "priority", "stop_token_ids", "logit_bias"} <= set(names)
    for name in names:
        for edge in EDGES:
            for value in (edge, [edge], {str(edge): edge}, {"5": edge}):
                body = {**base, "max_tokens": 1, "stream": False, name: value}
                if name in ("n", "max_tokens", "max_completion_tokens") and value == edge and 2 < edge < 2**31:
                    continue  # good, and much work
                text = json.dumps(body)
                response = script.http.post(path, content=text, headers={"Content-Type": "application/json"})
                if response.status_code != 200:
                    error = assert_refused(response)
                    about = error["param"].partition(".")[0].partition("[")[0]
                    assert about in (name, "logprobs", "min_tokens", "max_tokens")
    assert script.complete("hi", max_tokens=20)["choices"][0]["text"] == SENTENCE


def test_a_number_of_too_many_digits_is_refused_with_its_place(script: World) -> None:
    body = '{"prompt": "hi", "seed": ' + "7" * 5000 + "}"
    response = script.http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    message = assert_refused(response)["message"]
    assert "at character 25" in message and "4300 digits" in message and "shorten it" in message
