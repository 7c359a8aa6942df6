"""Fault cases of the class "sampling", over HTTP. SMP-01 is about the engine and tested there."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.script_model import byte_id, write_random_model
from tests.server.world import World, assert_refused, finish_reasons, joined, serve_app

SEED_PROMPT = "Once upon"


def texts(answer: Any) -> list[str]:
    return [choice["text"] for choice in answer["choices"]]


@pytest.fixture(scope="module")
def greedy(varied: World) -> str:
    return texts(varied.complete(SEED_PROMPT, max_tokens=8, ignore_eos=True))[0]


def test_smp_02_tiny_temperatures_are_greedy(tmp_path: Path) -> None:
    with serve_app(write_random_model(tmp_path, spread=40.0)) as world:
        body = {"max_tokens": 8, "ignore_eos": True}
        answer = world.complete(SEED_PROMPT, logprobs=2, **body)
        for top in answer["choices"][0]["logprobs"]["top_logprobs"]:
            first, second = sorted(top.values(), reverse=True)[:2]
            assert first - second > 0.5
        for temperature in (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 0):
            asked = {**body, "temperature": temperature, "seed": 1}
            assert texts(world.complete(SEED_PROMPT, **asked)) == texts(answer)


@pytest.mark.parametrize(
    ("options", "is_greedy"),
    [
        ({"top_k": 1}, True),
        ({"min_p": 1}, True),
        ({"top_p": 0}, True),
        ({"top_p": 1e-9}, True),
        ({"top_k": -1}, False),
        ({"top_k": 0}, False),
        ({"top_k": 10**9}, False),
        ({"min_p": 0}, False),
        ({"temperature": 1e3}, False),
    ],
)
def test_smp_02_the_ends_of_each_range(varied: World, greedy: str, options: dict[str, Any], is_greedy: bool) -> None:
    body = {"max_tokens": 8, "ignore_eos": True, "temperature": 1.0, "n": 8, "seed": 5, **options}
    answer = varied.complete(SEED_PROMPT, return_token_ids=True, **body)
    assert (set(texts(answer)) == {greedy}) == is_greedy
    assert all(len(choice["token_ids"]) == 8 and any(choice["token_ids"]) for choice in answer["choices"])


def test_smp_02_top_k_of_minus_one_is_off(varied: World) -> None:
    body = {"max_tokens": 8, "ignore_eos": True, "temperature": 1.0, "seed": 5}
    assert texts(varied.complete("x", top_k=-1, **body)) == texts(varied.complete("x", top_k=0, **body))
    assert texts(varied.complete("x", top_k=10**9, **body)) == texts(varied.complete("x", top_k=0, **body))


@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty"])
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "-3", '"hot"', "true", "[1]", "1e30", "1e999", "{}"])
def test_smp_02_what_is_not_a_number_in_range_is_refused_by_name(varied: World, field: str, value: str) -> None:
    for path, prompt in (("/v1/completions", '"prompt": "hi"'),
                         ("/v1/chat/completions", '"messages": [{"role": "user", "content": "hi"}]')):  # fmt: skip
        body = f'{{{prompt}, "{field}": {value}}}'
        headers = {"Content-Type": "application/json"}
        assert_refused(varied.http.post(path, content=body.encode(), headers=headers), param=field)
    assert varied.http.get("/health").status_code == 200


def test_smp_02_greedy_rows_are_not_moved_by_their_neighbours(varied: World, greedy: str) -> None:
    bodies = [{"temperature": 0}, {"temperature": 1.0, "top_k": 5}, {"temperature": 2.0}, {"temperature": 0}] * 4

    def ask(body: dict[str, Any]) -> str:
        return texts(varied.complete(SEED_PROMPT, max_tokens=8, ignore_eos=True, **body))[0]

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, bodies))
    assert {a for a, body in zip(answers, bodies, strict=True) if body == {"temperature": 0}} == {greedy}


@pytest.mark.parametrize("stream", [False, True])
def test_smp_03_n_samples_are_n_different_and_repeatable(varied: World, stream: bool) -> None:
    check_four_samples(varied, stream)


@pytest.mark.parametrize("stream", [False, True])
def test_smp_03_n_samples_that_cannot_all_run_together(random_folder: Path, stream: bool) -> None:
    with serve_app(random_folder, max_num_seqs=2) as world:
        check_four_samples(world, stream, rounds=3)


def check_four_samples(world: World, stream: bool, rounds: int = 20) -> None:
    def ask(temperature: float) -> list[str]:
        body = {"n": 4, "temperature": temperature, "seed": 1, "max_tokens": 16, "ignore_eos": True}
        if not stream:
            answer = world.complete(SEED_PROMPT, **body)
            assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
            assert answer["usage"]["prompt_tokens"] == len(SEED_PROMPT)
            assert answer["usage"]["completion_tokens"] == 64
            return texts(answer)
        chunks = world.stream_complete(SEED_PROMPT, stream_options={"include_usage": True}, **body)
        assert chunks[-1]["usage"]["completion_tokens"] == 64
        assert chunks[-1]["usage"]["prompt_tokens"] == len(SEED_PROMPT)
        assert {choice["index"] for chunk in chunks for choice in chunk["choices"]} == {0, 1, 2, 3}
        assert all(finish_reasons(chunks, index) == ["length"] for index in range(4))
        return [joined(chunks, index) for index in range(4)]

    first = ask(1.0)
    assert len(set(first)) > 1
    assert all(ask(1.0) == first for _ in range(rounds - 1))
    assert len(set(ask(0.0))) == 1


def test_a_sampled_answer_can_be_replayed_from_the_seed_it_tells(varied: World) -> None:
    body = {"temperature": 1.0, "max_tokens": 12, "ignore_eos": True}
    first = varied.complete("x", **body)["choices"][0]
    assert texts(varied.complete("x", seed=first["seed"], **body)) == [first["text"]]
    others = {texts(varied.complete("x", **body))[0] for _ in range(4)}
    assert len(others) > 1
    chunks = varied.stream_chat("x", **body)
    seed = chunks[-1]["choices"][0]["seed"]
    assert varied.chat("x", seed=seed, **body)["choices"][0]["message"]["content"] == joined(chunks)


def test_smp_05_bad_words_never_appear_and_shared_beginnings_may(varied: World) -> None:
    # The parts of the case about merged tokens need the SmolLM2 vocabulary: test_real_vocabularies.py.
    body = {"max_tokens": 6, "ignore_eos": True}
    free = texts(varied.complete("x", **body))[0]
    banned = texts(varied.complete("x", bad_words=[free[:2]], **body))[0]
    assert free[:2] not in banned
    ids = {"allowed_token_ids": [byte_id("e"), byte_id("x")]}
    assert "ex" not in texts(varied.complete("x", bad_words=["ex"], **ids, **body))[0]
    assert texts(varied.complete("x", bad_words=["ex"], allowed_token_ids=[byte_id("e")], **body)) == ["eeeeee"]


@pytest.mark.parametrize("words", [[""], ["a", ""]])
def test_smp_05_an_empty_bad_word_is_refused(varied: World, words: list[str]) -> None:
    assert_refused(varied.post("/v1/completions", prompt="x", bad_words=words), param="bad_words")


def test_smp_05_a_control_character_is_a_bad_word_like_any_other(varied: World) -> None:
    assert varied.complete("x", bad_words=["\u0001"], max_tokens=3)["choices"]


def test_smp_07_requests_with_different_rules_do_not_mix(varied: World) -> None:
    rng = random.Random(7)
    only = byte_id("!")
    plain = {"max_tokens": 12, "ignore_eos": True}
    alone = texts(varied.complete("same prompt", **plain))[0]

    def ask(kind: int) -> None:
        length = rng.randrange(1, 20)
        if kind == 0:
            assert texts(varied.complete("same prompt", **plain)) == [alone]
        elif kind == 1:
            answer = varied.complete("p" * length, allowed_token_ids=[only], max_tokens=length)
            assert texts(answer) == ["!" * length]
        elif kind == 2:
            answer = varied.complete("q" * length, logit_bias={str(only): 100}, max_tokens=length, ignore_eos=True)
            assert texts(answer) == ["!" * length]
        elif kind == 3:
            schema = {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}
            answer = varied.complete("s" * length, structured_outputs={"json": schema}, temperature=1.0, max_tokens=300)
            assert all(isinstance(item, int) for item in json.loads(texts(answer)[0]))
        else:
            varied.complete("r", frequency_penalty=1.5, repetition_penalty=1.3, temperature=1.0, max_tokens=length)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(ask, [i % 5 for i in range(60)]))


def test_smp_07_a_request_that_allows_only_what_it_forbids_is_refused(varied: World) -> None:
    body = {"prompt": "x", "allowed_token_ids": [byte_id("a")], "bad_words": ["a"]}
    assert_refused(varied.post("/v1/completions", **body), param="allowed_token_ids")


def test_generation_defaults_of_the_model_apply_until_they_are_overridden(random_folder: Path) -> None:
    override = '{"temperature": 0.0, "max_new_tokens": 3}'
    with serve_app(random_folder, override_generation_config=override) as world:
        chat = world.ok("/v1/chat/completions", messages=[{"role": "user", "content": "x"}], n=3, ignore_eos=True)
        assert len({choice["message"]["content"] for choice in chat["choices"]}) == 1
        assert chat["usage"]["completion_tokens"] == 9
        hot = {"temperature": 1.0, "max_tokens": 8, "n": 3, "ignore_eos": True}
        assert len(set(texts(world.ok("/v1/completions", prompt="x", **hot)))) == 3
