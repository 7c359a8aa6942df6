"""Random requests over HTTP: good ones with a check of their answer, bad ones, and clients that leave."""

import json
import random
import socket
import struct
import time
from contextlib import suppress
from typing import Any

import httpx

from tests.script_model import byte_id
from tests.server.world import Client, assert_refused, finish_reasons, joined, strict_json

CONTEXT_LENGTH = 512
MARKS = "abc defé中 \U0001f600\n"
TEXTS = ["".join(random.Random(i).choices(MARKS, k=1 + i % 40)) for i in range(200)]
"""A tokenizer remembers some thousands of texts, which must not look like a leak."""
PATHS = ("/v1/completions", "/v1/chat/completions")

BAD_FIELDS: list[dict[str, Any]] = [
    {"n": 0}, {"n": 10**6}, {"n": "two"}, {"max_tokens": -1}, {"max_tokens": 1.5}, {"temperature": -1},
    {"temperature": "hot"}, {"top_p": 2}, {"top_k": -5}, {"min_p": 3}, {"stop": ""}, {"stop": ["x"] * 100},
    {"stop": 5}, {"seed": 2**80}, {"logit_bias": {"99999": 1}}, {"logit_bias": {"x": 1}}, {"logit_bias": [1]},
    {"allowed_token_ids": []}, {"allowed_token_ids": [10**7]}, {"bad_words": [""]}, {"stop_token_ids": [-1]},
    {"presence_penalty": 9}, {"repetition_penalty": 0}, {"min_tokens": 9, "max_tokens": 3}, {"model": "nobody"},
    {"stream_options": {"include_usage": True}, "stream": False}, {"response_format": {"type": "json_schema"}},
    {"guided_json": {"type": "strng"}}, {"structured_outputs": {"regex": "["}}, {"guided_choice": []},
    {"suffix": "x"}, {"best_of": 5}, {"priority": "high"}, {"cache_salt": "a/b"},
    {"prompt_logprobs": 5, "stream": True}, {"prompt_logprobs": 9999}, {"truncate_prompt_tokens": 0},
    {"request_id": "a b"}, {"allowed_token_ids": [byte_id("a")], "bad_words": ["a"]},
]  # fmt: skip
BAD_COMPLETIONS: list[dict[str, Any]] = [
    {"prompt": ""}, {"prompt": []}, {"prompt": [[]]}, {"prompt": None}, {"prompt": {"a": 1}}, {"prompt": [1.5]},
    {"prompt": [10**9]}, {"prompt": "x" * CONTEXT_LENGTH}, {"prompt": ["a", "x" * 9999]}, {"logprobs": 9999},
    {"logprobs": "many"},
]  # fmt: skip
BAD_CHATS: list[dict[str, Any]] = [
    {"messages": []}, {"messages": "hi"}, {"messages": None}, {"messages": [{"role": 5, "content": "x"}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, {"top_logprobs": 3, "logprobs": False},
    {"messages": [{"role": "user", "content": "x" * 9999}]}, {"tools": []}, {"tool_choice": "required"},
    {"logprobs": True, "top_logprobs": 99}, {"continue_final_message": True, "add_generation_prompt": True},
    {"chat_template": "{{ 1 }}"},
]  # fmt: skip
BAD_BODIES = (
    b"", b"{", b"null", b"[]", b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}', b"[" * 9999,
    b'{"prompt": "x", "temperature": NaN}', b'{"prompt": "x", "n": 1e999}',
)  # fmt: skip


def good_body(rng: random.Random, path: str) -> dict[str, Any]:
    """A request that is in order; its answer is checked by `check_answer`."""
    body: dict[str, Any] = {"max_tokens": rng.randrange(1, 40), "stream": rng.random() < 0.5}
    text = rng.choice(TEXTS)
    shared = "The same beginning for everybody, a few pages long. " * rng.randrange(3)
    if path.endswith("chat/completions"):
        body["messages"] = [{"role": "system", "content": shared}, {"role": "user", "content": text}]
    else:
        body["prompt"] = [shared + text, text] if rng.random() < 0.2 else shared + text
    for chance, fields in (
        (0.4, {"temperature": 0}),
        (0.5, {"seed": rng.randrange(9)}),
        (0.3, {"n": rng.randrange(2, 5)}),
        (0.3, {"stop": rng.sample(["a", "e", "of", "中"], k=2)}),
        (0.3, {"ignore_eos": True}),
        (0.3, {"priority": rng.randrange(-3, 4)}),
        (0.2, {"top_k": 5, "top_p": 0.9, "min_p": 0.01}),
        (0.2, {"frequency_penalty": 0.5, "repetition_penalty": 1.2}),
        (0.2, {"logit_bias": {str(byte_id("e")): 2.0}}),
        (0.2, {"bad_words": ["ab"]}),
        (0.1, {"min_tokens": 1}),
        (0.1, {"cache_salt": "mine"}),
    ):
        if rng.random() < chance:
            body |= fields
    if rng.random() < 0.4:
        body |= {"logprobs": True, "top_logprobs": 2} if "messages" in body else {"logprobs": rng.randrange(4)}
    if "prompt" in body and rng.random() < 0.2:
        body["echo"] = True
    if body["stream"]:
        body["stream_options"] = {"include_usage": True}
    elif rng.random() < 0.2:
        body["prompt_logprobs"] = 1
    return body


def send_good(client: Client, rng: random.Random) -> int:
    """Ask until the server has room, and check the answer. Returns how often it had none."""
    path = rng.choice(PATHS)
    body = good_body(rng, path)
    for refused in range(10_000):
        with client.http.stream("POST", path, json=body) as response:
            content = response.read()
        if response.status_code == 503:
            assert_refused(response, 503)
            time.sleep(0.02)
            continue
        assert response.status_code == 200, content
        check_answer(body, content)
        return refused
    raise AssertionError("the server never had room")


def check_answer(body: dict[str, Any], content: bytes) -> None:
    """Complete, and what was asked for."""
    prompts = body.get("prompt")
    count = body.get("n", 1) * (len(prompts) if isinstance(prompts, list) else 1)
    if body["stream"]:
        lines = [line for line in content.decode().split("\n") if line]
        assert lines[-1] == "data: [DONE]" and lines.count(lines[-1]) == 1
        chunks = [strict_json(line.removeprefix("data: ")) for line in lines[:-1]]
        assert {c["index"] for chunk in chunks for c in chunk["choices"]} == set(range(count))
        samples = [(joined(chunks, i), *finish_reasons(chunks, i)) for i in range(count)]
        usage = chunks[-1]["usage"]
    else:
        answer = strict_json(content)
        choices, usage = answer["choices"], answer["usage"]
        assert [choice["index"] for choice in choices] == list(range(count))
        samples = [(c["text"] if "text" in c else c["message"]["content"], c["finish_reason"]) for c in choices]
        assert all((choice["logprobs"] is None) == (body.get("logprobs") is None) for choice in choices)
        # Asked for, they are with the answer to a chat, and with each prompt's choice of a completion.
        with_prompt = answer if "messages" in body else choices[0]
        assert ("prompt_logprobs" in with_prompt) == ("prompt_logprobs" in body)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert count * min(1, body["max_tokens"]) <= usage["completion_tokens"] <= count * body["max_tokens"]
    for text, reason in samples:
        assert reason in ("stop", "length")
        if body.get("echo"):
            assert text.startswith(tuple(prompts) if isinstance(prompts, list) else prompts)
        else:
            seen = text[body.get("min_tokens", 0) :]  # what ends earlier stops nothing; a token is a byte here
            assert not any(stop in seen for stop in body.get("stop", ()))


def send_bad(client: Client, rng: random.Random) -> int:
    """A request that has to be refused with an envelope and no more."""
    path = rng.choice(PATHS)
    if rng.random() < 0.2:
        headers = {"Content-Type": rng.choice(["application/json", "text/plain"])}
        response = client.http.post(path, content=rng.choice(BAD_BODIES), headers=headers)
    elif rng.random() < 0.1:
        method, where = rng.choice(
            [("GET", path), ("POST", "/v1/nothing"), ("PUT", "/metrics"), ("GET", "/v1/models/x")]
        )
        response = client.http.request(method, where)
    else:
        own = BAD_CHATS if "chat" in path else BAD_COMPLETIONS
        body = good_body(rng, path) | rng.choice(own if rng.random() < 0.4 else BAD_FIELDS)
        response = client.post(path, **body)
    assert_refused(response, (400, 404, 405, 415))
    return 0


def leave(client: Client, rng: random.Random) -> int:
    """Be gone at a random point: of the request, before the answer, in its middle; politely or not."""
    path, url = rng.choice(PATHS), httpx.URL(client.url)
    data = json.dumps(good_body(rng, path) | {"max_tokens": 400, "ignore_eos": True}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    request = head.encode() + data
    with socket.create_connection((url.host, int(url.port or 0)), timeout=5) as sock:
        if rng.random() < 0.3:
            sock.sendall(request[: rng.randrange(len(request))])
        else:
            sock.sendall(request)
            sock.settimeout(rng.random() * 0.2)
            with suppress(TimeoutError):
                for _ in range(rng.randrange(4)):
                    sock.recv(rng.randrange(1, 2000))
        if rng.random() < 0.3:  # a reset instead of an end
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return 0
