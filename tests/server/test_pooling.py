"""Routes for embeddings, scores and classes: bodies are checked, and the answer says what is missing."""

from typing import Any

import openai
import pytest

from tests.server.world import World, assert_refused

TEXTS = ("/v1/embeddings", "/pooling", "/classify")
SCORES = ("/score", "/v1/score")
RERANKS = ("/rerank", "/v1/rerank", "/v2/rerank")


@pytest.mark.parametrize("path", TEXTS)
@pytest.mark.parametrize("given", [{"input": "a"}, {"input": ["a", "b"]}, {"input": [5, 6]}, {"input": [[5], [6]]},
                                   {"messages": [{"role": "user", "content": "hi"}]}])  # fmt: skip
def test_a_good_body_is_told_that_the_model_cannot(script: World, path: str, given: dict[str, Any]) -> None:
    error = assert_refused(script.post(path, **given), 400, "model")
    assert error["type"] == "UnsupportedError" and "test generates text" in error["message"]


def test_scores_and_ranks_are_told_so_too(script: World) -> None:
    for path in SCORES:
        for given in ({"queries": "a", "documents": ["b", "c"]}, {"text_1": ["a", "b"], "text_2": ["c", "d"]}):
            assert_refused(script.post(path, **given), 400, "model")
    for path in RERANKS:
        assert_refused(script.post(path, query="a", documents=["b"], top_n=1), 400, "model")


@pytest.mark.parametrize("path", TEXTS)
@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({}, "input"),
        ({"input": "a", "messages": [{"role": "user", "content": "hi"}]}, "input"),
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["a", 5]}, "input"),
        ({"input": [10**6]}, "input"),
        ({"input": "a" * 600}, "model"),
        ({"input": [5] * 600}, "input"),
        ({"input": "a", "encoding_format": "xyz"}, "encoding_format"),
        ({"input": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ],
)
def test_bad_texts_are_named(script: World, path: str, given: dict[str, Any], param: str) -> None:
    assert_refused(script.post(path, **given), 400, param)


def test_bad_pairs_are_named(script: World) -> None:
    for given, param in (
        ({"documents": ["b"]}, "queries"),
        ({"queries": "a"}, "documents"),
        ({"queries": "a", "text_1": "a", "documents": "b"}, "queries"),
        ({"queries": ["a", "b"], "documents": ["c"]}, "queries"),
        ({"queries": "a", "documents": []}, "documents"),
        ({"queries": "a", "documents": [""]}, "documents"),
    ):
        assert_refused(script.post("/score", **given), 400, param)
    for given, param in (({"query": "a"}, "documents"), ({"query": "a", "documents": []}, "documents"),
                         ({"query": "a", "documents": ["b"], "top_n": -1}, "top_n")):  # fmt: skip
        assert_refused(script.post("/rerank", **given), 400, param)
    assert_refused(script.post("/v1/embeddings", model="nobody", input="a"), 404, "model")


def test_the_official_client_raises_its_own_kind(script: World) -> None:
    with (
        openai.OpenAI(base_url=f"{script.url}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.BadRequestError, match="generates text"),
    ):
        client.embeddings.create(model="test", input="hi")
