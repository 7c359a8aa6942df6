"""/inference/v1/generate: token ids in, token ids out."""

from typing import Any

import pytest

from tests.script_model import EOS, FIRST_PIECE, byte_id
from tests.server.conftest import PIECES, SENTENCE
from tests.server.world import World, assert_refused

PATH = "/inference/v1/generate"
PROMPT = [byte_id("h"), byte_id("i")]
ANSWER = [*range(FIRST_PIECE, FIRST_PIECE + len(PIECES)), EOS]


def joined_ids(chunks: list[Any], index: int = 0) -> list[int]:
    return [
        i for chunk in chunks for choice in chunk["choices"] if choice["index"] == index for i in choice["token_ids"]
    ]


def test_ids_come_back_without_text(script: World) -> None:
    answer = script.ok(PATH, token_ids=PROMPT, sampling_params={"temperature": 0})
    (choice,) = answer["choices"]
    assert choice["token_ids"] == ANSWER and choice["finish_reason"] == "stop"
    assert "text" not in choice and choice["logprobs"] is None
    assert answer["usage"] == {
        "prompt_tokens": 2, "completion_tokens": 6, "total_tokens": 8, "prompt_tokens_details": {"cached_tokens": 0}
    }  # fmt: skip


def test_text_mode_logprobs_and_prompt_logprobs(script: World) -> None:
    params = {"temperature": 0, "logprobs": 1, "prompt_logprobs": 0}
    answer = script.ok(PATH, token_ids=PROMPT, sampling_params=params, output_mode="text")
    (choice,) = answer["choices"]
    assert choice["text"] == SENTENCE
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == [f"token_id:{i}" for i in ANSWER]
    assert answer["prompt_logprobs"][0] is None and str(PROMPT[1]) in answer["prompt_logprobs"][1]


def test_a_stream_joins_to_the_whole_answer(varied: World) -> None:
    body = {"token_ids": PROMPT, "sampling_params": {"n": 2, "seed": 5, "max_tokens": 30, "logprobs": 0}}
    whole = varied.ok(PATH, **body, output_mode="text")
    chunks = varied.stream(PATH, **body, output_mode="text", stream_options={"include_usage": True})
    assert (
        chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    )
    for choice in whole["choices"]:
        index = choice["index"]
        assert joined_ids(chunks, index) == choice["token_ids"]
        parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [e for part in parts for e in part["logprobs"]["content"]] == choice["logprobs"]["content"]
        assert parts[-1]["finish_reason"] == choice["finish_reason"] and parts[-1]["seed"] == choice["seed"]


def test_the_answer_is_that_of_completions(varied: World) -> None:
    completed = varied.complete(PROMPT, temperature=0.7, seed=3, max_tokens=12, return_token_ids=True)
    params = {"temperature": 0.7, "seed": 3, "max_tokens": 12}
    assert (
        varied.ok(PATH, token_ids=PROMPT, sampling_params=params)["choices"][0]["token_ids"]
        == (completed["choices"][0]["token_ids"])
    )


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"sampling_params": {}}, "token_ids"),
        ({"token_ids": PROMPT}, "sampling_params"),
        ({"token_ids": [], "sampling_params": {}}, "token_ids"),
        ({"token_ids": ["a"], "sampling_params": {}}, "token_ids"),
        ({"token_ids": [10**6], "sampling_params": {}}, "token_ids"),
        ({"token_ids": [1] * 600, "sampling_params": {}}, "token_ids"),
        ({"token_ids": PROMPT, "sampling_params": {"n": "2"}}, "sampling_params"),
        ({"token_ids": PROMPT, "sampling_params": {"temprature": 1}}, "sampling_params.temprature"),
        ({"token_ids": PROMPT, "sampling_params": {"temperature": -1}}, "temperature"),
        ({"token_ids": PROMPT, "sampling_params": {"stop_token_ids": [10**6]}}, "stop_token_ids"),
        ({"token_ids": PROMPT, "sampling_params": {"stop": ["x"], "detokenize": False}}, "stop"),
        ({"token_ids": PROMPT, "sampling_params": {"prompt_logprobs": 0}, "stream": True}, "sampling_params"),
        ({"token_ids": PROMPT, "sampling_params": {}, "output_mode": "xml"}, "output_mode"),
        ({"token_ids": PROMPT, "sampling_params": {}, "kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
        ({"token_ids": PROMPT, "sampling_params": {}, "priority": 1}, "priority"),
    ],
)
def test_bad_bodies_name_the_field(script: World, body: dict[str, Any], param: str) -> None:
    assert_refused(script.post(PATH, **body), param=param)


def test_an_unknown_model_is_not_found(script: World) -> None:
    assert_refused(script.post(PATH, model="nobody", token_ids=PROMPT, sampling_params={}), 404, "model")
