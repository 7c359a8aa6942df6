"""Fault cases of the class "logprobs", over HTTP. LPB-01 is about the engine and tested there."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.script_model import byte_id, write_script_model
from tests.server.conftest import EMOJI_PIECES, EMOJI_TEXT
from tests.server.test_cases_streaming import text_of
from tests.server.world import World, assert_refused, serve_app
from tests.tiny import reference_logits

BYTES = [bytes([byte]) for byte in (0x91, 0x92, 0x93, 0x94, 0x95)]
"""Five tokens that alone are no characters."""


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A script that begins with a lone byte, beside which four others are likely, and goes on with whole characters."""
    folder = tmp_path_factory.mktemp("broken")
    write_script_model(folder, [BYTES[0], *EMOJI_PIECES], runners_up={0: BYTES[1:]})
    with serve_app(folder) as world:
        yield world


def chat_content(world: World, stream: bool, **body: Any) -> tuple[str, list[Any]]:
    """Text and logprob entries of a chat answer."""
    if not stream:
        answer = world.chat(logprobs=True, **body)
        return text_of(answer), answer["choices"][0]["logprobs"]["content"]
    text, entries = "", []
    for chunk in world.stream_chat(logprobs=True, **body):
        for choice in chunk["choices"]:
            text += choice["delta"].get("content") or ""
            entries += (choice["logprobs"] or {"content": []})["content"]
    return text, entries


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("temperature", [0.01, 1.0])
@pytest.mark.parametrize(
    "rule",
    [
        {"allowed_token_ids": [byte_id("a"), byte_id("b")]},
        {"structured_outputs": {"regex": "[ab]{9}"}},
        {"structured_outputs": {"choice": ["abaab"]}},
    ],
)
def test_lpb_02_masked_tokens_never_put_infinities_into_json(
    varied: World, rule: dict[str, Any], temperature: float, stream: bool
) -> None:
    options: dict[str, Any] = {**rule, "temperature": temperature, "max_tokens": 4, "seed": 3}
    text, entries = chat_content(varied, stream, top_logprobs=5, **options)
    assert len(entries) == 4 and set(text) <= {"a", "b"}
    for entry in entries:
        assert entry["token"] in ("a", "b") and math.isfinite(entry["logprob"]) and entry["logprob"] <= 0
        assert all(top["logprob"] is None or top["logprob"] <= 0 for top in entry["top_logprobs"])
    options["logprobs"] = 5
    answers = varied.stream_complete("x", **options) if stream else [varied.complete("x", **options)]
    parts = [answer["choices"][0]["logprobs"] for answer in answers]
    assert sum(len(part["tokens"]) for part in parts) == 4
    for part in parts:
        for token, logprob, top in zip(part["tokens"], part["token_logprobs"], part["top_logprobs"], strict=True):
            assert top[token] == logprob and math.isfinite(logprob)
            assert all(value is None or value <= 0 for value in top.values())


def test_lpb_02_processed_logprobs_of_masked_tokens_are_null_or_absent(random_folder: Path) -> None:
    with serve_app(random_folder, logprobs_mode="processed_logprobs") as world:
        answer = world.chat(logprobs=True, top_logprobs=5, allowed_token_ids=[byte_id("a")], max_tokens=2)
        for entry in answer["choices"][0]["logprobs"]["content"]:
            assert entry["token"] == "a" and entry["logprob"] == 0
            assert all(top["logprob"] in (0, None) for top in entry["top_logprobs"])


@pytest.mark.parametrize("stream", [False, True])
def test_lpb_04_bytes_are_exact_and_tokens_stay_apart(broken: World, stream: bool) -> None:
    text, entries = chat_content(broken, stream, top_logprobs=5, max_tokens=20)
    first = entries[0]["top_logprobs"]
    assert [top["bytes"] for top in first] == [list(raw) for raw in BYTES]
    assert len({top["token"] for top in first}) == 5
    values = [top["logprob"] for top in first]
    assert values == sorted(values, reverse=True) and len(set(values)) == 5
    raw = b"".join(bytes(entry["bytes"]) for entry in entries)
    assert raw.decode("utf-8", "replace") == text == "\ufffd" + EMOJI_TEXT
    assert entries[-1]["token"] == "中" and entries[-1]["bytes"] == [228, 184, 173]
    for entry in entries:
        assert len(entry["top_logprobs"]) == 5
        assert all(shown["token"] or shown["bytes"] for shown in (entry, *entry["top_logprobs"]))


def test_lpb_04_a_special_token_is_an_entry_only_where_it_is_text(script: World) -> None:
    hidden = script.chat(logprobs=True, max_tokens=20)["choices"][0]
    assert [entry["token"] for entry in hidden["logprobs"]["content"]][-1] == " jumps"
    shown = script.chat(logprobs=True, max_tokens=20, include_stop_str_in_output=True, skip_special_tokens=False)
    entries = shown["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == text_of(shown)
    assert entries[-1]["token"] == "<|im_end|>"


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_lpb_05_echo_gives_one_entry_per_token(varied: World, random_folder: Path, max_tokens: int, count: int) -> None:
    prompt = "\n1. Carol has 20"
    body = {"echo": True, "logprobs": count, "max_tokens": max_tokens, "ignore_eos": True}
    answer = varied.complete(prompt, **body)
    choice, usage = answer["choices"][0], answer["usage"]
    logprobs = choice["logprobs"]
    assert usage["completion_tokens"] == max_tokens and choice["finish_reason"] == "length"
    assert choice["text"].startswith(prompt) and (choice["text"] == prompt) == (max_tokens == 0)
    lengths = {len(logprobs[name]) for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs")}
    assert lengths == {usage["prompt_tokens"] + max_tokens}
    assert [value is None for value in logprobs["token_logprobs"]] == [True] + [False] * (lengths.pop() - 1)
    assert "".join(logprobs["tokens"]) == choice["text"]
    for i, offset in enumerate(logprobs["text_offset"]):
        assert offset == len("".join(logprobs["tokens"][:i]))
    for token, top in list(zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True))[1:]:
        assert token in top and len(top) in (count, count + 1)
    ids = varied.ok("/tokenize", prompt=prompt)["tokens"]
    wanted = torch.log_softmax(reference_logits(random_folder, ids), dim=-1)
    for i, value in enumerate(logprobs["token_logprobs"][1 : len(ids)], start=1):
        assert value == pytest.approx(float(wanted[i - 1, ids[i]]), abs=1e-3)


def test_lpb_05_echo_of_two_prompts_and_without_logprobs(varied: World) -> None:
    prompts = ["\n1. Carol has 20", "Dave ü 中"]
    for max_tokens in (0, 2):
        alone = [varied.complete(p, echo=True, logprobs=1, max_tokens=max_tokens)["choices"][0] for p in prompts]
        both = varied.complete(prompts, echo=True, logprobs=1, max_tokens=max_tokens)["choices"]
        for together, single in zip(both, alone, strict=True):
            ours, theirs = together["logprobs"], single["logprobs"]
            assert ours["tokens"] == theirs["tokens"] and ours["text_offset"] == theirs["text_offset"]
            assert ours["token_logprobs"][1:] == pytest.approx(theirs["token_logprobs"][1:], abs=1e-4)
        plain = varied.complete(prompts, echo=True, max_tokens=max_tokens)["choices"]
        assert [c["text"] for c in plain] == [c["text"] for c in both]
        assert [c["logprobs"] for c in plain] == [None, None]
        assert all(c["text"].startswith(p) for c, p in zip(both, prompts, strict=True))


def test_lpb_05_a_streamed_echo_is_the_same_in_pieces(varied: World) -> None:
    body = {"echo": True, "logprobs": 2, "max_tokens": 6, "ignore_eos": True}
    whole = varied.complete("Dave ü 中", **body)["choices"][0]
    parts = [chunk["choices"][0] for chunk in varied.stream_complete("Dave ü 中", **body)]
    assert "".join(part["text"] for part in parts) == whole["text"]
    for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        assert [x for part in parts for x in part["logprobs"][name]] == whole["logprobs"][name]


def test_prompt_logprobs_are_told_per_position(varied: World) -> None:
    ids = varied.ok("/tokenize", prompt="abcdef")["tokens"]
    answer = varied.complete("abcdef", prompt_logprobs=2, max_tokens=1)
    positions = answer["choices"][0]["prompt_logprobs"]
    assert len(positions) == len(ids) and positions[0] is None
    for token_id, entries in list(zip(ids, positions, strict=True))[1:]:
        actual = entries[str(token_id)]
        assert actual["rank"] >= 1 and actual["logprob"] <= 0 and actual["decoded_token"]
        assert sorted(e["rank"] for e in entries.values())[:2] == [1, 2]
    chat = varied.chat("hi", prompt_logprobs=0, max_tokens=1)
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
    body = {"prompt": "hi", "prompt_logprobs": 1, "stream": True}
    assert_refused(varied.post("/v1/completions", **body), param="prompt_logprobs")


def test_ids_stand_in_for_tokens_when_asked(script: World) -> None:
    body = {"return_tokens_as_token_ids": True, "return_token_ids": True, "max_tokens": 20}
    choice = script.complete("hi", logprobs=1, **body)["choices"][0]
    assert choice["logprobs"]["tokens"] == [f"token_id:{token_id}" for token_id in choice["token_ids"]]
    assert choice["prompt_token_ids"] == script.ok("/tokenize", prompt="hi")["tokens"]
    chat = script.chat(logprobs=True, top_logprobs=1, **body)
    names = [entry["token"] for entry in chat["choices"][0]["logprobs"]["content"]]
    assert names == [f"token_id:{token_id}" for token_id in chat["choices"][0]["token_ids"][:-1]]
    assert len(chat["prompt_token_ids"]) == chat["usage"]["prompt_tokens"]
    chunks = script.stream_complete("hi", **body)
    assert [i for c in chunks for i in c["choices"][0]["token_ids"]] == choice["token_ids"]
    assert chunks[0]["choices"][0]["prompt_token_ids"] == choice["prompt_token_ids"]


def test_logprobs_of_zero_are_the_sampled_token_alone(varied: World) -> None:
    choice = varied.complete("hi", logprobs=0, max_tokens=3)["choices"][0]
    assert [len(top) for top in choice["logprobs"]["top_logprobs"]] == [1] * len(choice["logprobs"]["tokens"])
    content = varied.chat(logprobs=True, max_tokens=3)["choices"][0]["logprobs"]["content"]
    assert all(entry["top_logprobs"] == [] for entry in content)
