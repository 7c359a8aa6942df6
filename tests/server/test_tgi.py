"""Text Generation Inference's routes, judged by Hugging Face's own client and by the documented forms."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import ValidationError

from tests.script_model import EOS, byte_id, write_script_model
from tests.server.conftest import EMOJI_TEXT, PIECES, SENTENCE
from tests.server.world import World, serve_app, strict_json, wait_for


@pytest.fixture
def client(script: World) -> InferenceClient:
    return InferenceClient(model=script.url)


def generate(world: World, inputs: str = "hi", **parameters: Any) -> Any:
    return world.ok("/generate", inputs=inputs, parameters=parameters)


def stream(world: World, inputs: str = "hi", path: str = "/generate_stream", **parameters: Any) -> list[Any]:
    body = {"inputs": inputs, "parameters": parameters, **({"stream": True} if path == "/" else {})}
    with world.http.stream("POST", path, json=body) as response:
        assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data:") for line in lines)
    return [strict_json(line.removeprefix("data:")) for line in lines]


def visible(tokens: list[Any]) -> str:
    return "".join(token["text"] for token in tokens if not token["special"])


def refused(world: World, status: int, path: str = "/generate", **body: Any) -> str:
    response = world.post(path, **body)
    answer = strict_json(response.content)
    assert response.status_code == status, answer
    assert set(answer) == {"error", "error_type"} and answer["error_type"] == "validation"
    return str(answer["error"])


def test_hugging_faces_client_gets_text(client: InferenceClient) -> None:
    assert client.text_generation("hi") == SENTENCE
    assert client.text_generation("hi", return_full_text=True) == "hi" + SENTENCE
    assert client.text_generation("hi", max_new_tokens=2) == "".join(PIECES[:2])
    assert client.text_generation("hi", stop=["brown"]) == "The quick brown"


def test_hugging_faces_client_gets_details(client: InferenceClient) -> None:
    answer = client.text_generation("hi", details=True, decoder_input_details=True, top_n_tokens=2)
    assert answer.generated_text == SENTENCE
    details = answer.details
    assert details is not None and details.finish_reason == "eos_token" and details.generated_tokens == 6
    assert [token.text for token in details.tokens] == [*PIECES, "<|im_end|>"]
    assert [token.special for token in details.tokens] == [False] * 5 + [True]
    assert [token.id for token in details.prefill] == [byte_id("h"), byte_id("i")]
    assert details.prefill[0].logprob is None and details.prefill[1].logprob < 0
    assert details.top_tokens is not None and all(len(top) == 2 for top in details.top_tokens)
    assert details.top_tokens[0][0]["id"] == details.tokens[0].id and details.seed is None


def test_hugging_faces_client_gets_a_stream(client: InferenceClient) -> None:
    tokens = list(client.text_generation("hi", stream=True, details=True))
    assert [token.index for token in tokens] == [1, 2, 3, 4, 5, 6]
    assert "".join(token.token.text for token in tokens if not token.token.special) == SENTENCE
    assert all(token.generated_text is None and token.details is None for token in tokens[:-1])
    last = tokens[-1]
    assert last.generated_text == SENTENCE and last.token.id == EOS
    assert last.details is not None and last.details.input_length == 2 and last.details.finish_reason == "eos_token"


def test_hugging_faces_client_gets_its_own_errors(client: InferenceClient) -> None:
    with pytest.raises(ValidationError, match=r"parameters\.temperature"):
        client.text_generation("hi", temperature=-1.0)
    with pytest.raises(ValidationError, match="1000"):
        client.text_generation("hi" * 500)


@pytest.mark.parametrize(
    "parameters",
    [
        {"max_new_tokens": 40, "do_sample": True, "seed": 3},
        {"max_new_tokens": 40, "temperature": 0.7, "top_k": 20, "top_p": 0.9, "seed": 2**63 - 5},
        {"max_new_tokens": 40, "do_sample": True, "seed": 11, "stop": ["e", "a"]},
        {"max_new_tokens": 40, "repetition_penalty": 1.3, "top_n_tokens": 3},
    ],
)
def test_a_stream_joins_to_the_whole_answer(varied: World, parameters: dict[str, Any]) -> None:
    whole = generate(varied, details=True, **parameters)
    details = whole["details"]
    for path in ("/generate_stream", "/"):
        events = stream(varied, path=path, **parameters)
        assert [event["token"] for event in events] == details["tokens"]
        assert [event.get("top_tokens") for event in events] == (details.get("top_tokens") or [None] * len(events))
        assert events[-1]["generated_text"] == whole["generated_text"] == visible(details["tokens"])
        last = events[-1]["details"]
        assert {name: details[name] for name in ("finish_reason", "generated_tokens", "seed")} == (
            {name: last[name] for name in ("finish_reason", "generated_tokens", "seed")}
        )
    if "do_sample" in parameters or "temperature" in parameters:
        assert details["seed"] == parameters["seed"]


def test_parts_of_a_character_join(script: World) -> None:
    for length in (1, 2, 3, 4, 20):
        whole = generate(script, "hi!", details=True, max_new_tokens=length)
        events = stream(script, "hi!", max_new_tokens=length)
        assert (
            visible([event["token"] for event in events])
            == whole["generated_text"]
            == (script.complete("hi!", max_tokens=length)["choices"][0]["text"])
        )
    assert whole["generated_text"] == EMOJI_TEXT


def test_a_stop_string_ends_inside_a_token(tmp_path: Path) -> None:
    folder = write_script_model(tmp_path, ["one", " two three", " four"])
    with serve_app(folder) as world:
        whole = generate(world, "x", stop=["two"], details=True)
        assert whole["generated_text"] == "one two" and whole["details"]["finish_reason"] == "stop_sequence"
        assert [token["text"] for token in whole["details"]["tokens"]] == ["one", " two"]
        assert [event["token"] for event in stream(world, "x", stop=["two"])] == whole["details"]["tokens"]


@pytest.mark.parametrize(
    "grammar",
    [
        {"type": "regex", "value": "[ab]{3}c"},
        {"type": "json", "value": {"enum": ["aac", "abc"]}},
        {"type": "json", "value": json.dumps({"enum": ["aac", "abc"]})},
        {"type": "json_schema", "value": {"name": "x", "schema": {"enum": ["aac", "abc"]}}},
    ],
)
def test_a_grammar_holds_whole_and_streamed(varied: World, grammar: dict[str, Any]) -> None:
    whole = generate(varied, grammar=grammar, max_new_tokens=40)["generated_text"]
    assert re.fullmatch('[ab]{3}c|"a[ab]c"', whole), whole
    assert stream(varied, grammar=grammar, max_new_tokens=40)[-1]["generated_text"] == whole
    assert "regex" in refused(varied, 422, inputs="hi", parameters={"grammar": {"type": "regex", "value": "("}})


def test_the_best_of_several_comes_first(varied: World) -> None:
    answer = generate(varied, best_of=4, do_sample=True, seed=1, max_new_tokens=10, details=True)
    details = answer["details"]
    others = details["best_of_sequences"]
    totals = [sum(token["logprob"] for token in each["tokens"]) for each in (details, *others)]
    assert len(others) == 3 and totals == sorted(totals, reverse=True)
    assert (
        generate(varied, best_of=4, do_sample=True, seed=1, max_new_tokens=10)["generated_text"]
        == (answer["generated_text"])
    )


def test_truncate_keeps_the_end_of_a_prompt(script: World) -> None:
    answer = generate(script, "abc", truncate=2, details=True, decoder_input_details=True)
    assert [token["id"] for token in answer["details"]["prefill"]] == [byte_id("b"), byte_id("c")]


def test_greedy_unless_something_asks_for_sampling(varied: World) -> None:
    greedy = generate(varied, max_new_tokens=20)["generated_text"]
    assert greedy == varied.complete("hi", max_tokens=20)["choices"][0]["text"]
    assert generate(varied, max_new_tokens=20, temperature=1.0, top_p=1.0)["generated_text"] == greedy
    assert generate(varied, max_new_tokens=20, do_sample=True, seed=8)["generated_text"] != greedy


def test_the_root_answers_a_list(script: World) -> None:
    assert script.ok("/", inputs="hi") == [{"generated_text": SENTENCE}]


def test_info_names_the_model_and_its_limits(script: World) -> None:
    info = script.http.get("/info").json()
    assert info["model_id"] == "test" and info["max_total_tokens"] == 512 and info["max_input_tokens"] == 511
    assert {"max_concurrent_requests", "max_best_of", "max_stop_sequences", "router", "version"} <= set(info)


def test_tokenize_answers_who_asks_as_tgi_does(script: World) -> None:
    assert script.ok("/tokenize", inputs="hé", add_special_tokens=False) == [
        {"id": byte_id("h"), "text": "h", "start": 0, "stop": 1},
        {"id": 3 + 0xC3, "text": "é", "start": 1, "stop": 2},
        {"id": 3 + 0xA9, "text": "é", "start": 1, "stop": 2},
    ]
    assert script.ok("/tokenize", prompt="h")["tokens"] == [byte_id("h")]
    assert script.post("/tokenize", inputs="h", prompt="h").status_code == 400


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"temperature": 0}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": 5000}, "5000"),
        ({"seed": -1}, "seed"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"best_of": 2}, "do_sample"),
        ({"best_of": 99}, "best_of"),
        ({"typical_p": 0.5}, "typical_p"),
        ({"watermark": True}, "watermark"),
        ({"adapter_id": "x"}, "adapter"),
        ({"top_n_tokens": 999, "details": True}, "logprobs"),
        ({"details": 3}, "details"),
    ],
)
def test_bad_parameters_are_named(script: World, parameters: dict[str, Any], named: str) -> None:
    assert named in refused(script, 422, inputs="hi", parameters=parameters)


def test_what_cannot_be_streamed_is_refused(script: World) -> None:
    for parameters in ({"best_of": 2, "do_sample": True}, {"decoder_input_details": True}):
        assert "streamed" in refused(script, 422, "/generate_stream", inputs="hi", parameters=parameters)


def test_bad_bodies_are_refused_in_the_same_form(script: World) -> None:
    assert "inputs" in refused(script, 422)
    assert "empty" in refused(script, 422, inputs="")
    assert "inputs" in refused(script, 422, inputs=["hi"])
    response = script.http.post("/generate", content=b"{", headers={"content-type": "application/json"})
    assert response.status_code == 422 and json.loads(response.content)["error_type"] == "validation"


def test_an_overloaded_server_says_so(random_folder: Path) -> None:
    with serve_app(random_folder, max_num_seqs=1, max_num_queued_reqs=1) as world, ThreadPoolExecutor(2) as pool:
        running = pool.submit(world.complete, "y", max_tokens=400, ignore_eos=True)
        wait_for(lambda: world.gauge("num_requests_running") == 1)
        waiting = pool.submit(world.complete, "z", max_tokens=1)
        wait_for(lambda: world.gauge("num_requests_waiting") == 1)
        response = world.post("/generate", inputs="hi")
        assert response.status_code == 429 and response.headers["retry-after"]
        assert response.json()["error_type"] == "overloaded"
        assert running.result(30) and waiting.result(30)
