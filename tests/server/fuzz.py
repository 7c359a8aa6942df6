"""Bodies that were good once: their values, structure or bytes are changed at random, and no server may mind.

Whatever is sent, the answer is no 5xx, errors have the route's form, and the reference answer afterwards is as before.
`scripts/fuzz-http --minutes N` runs it for long; a failure names the seed of its one request, which `--seed` repeats.
"""

import argparse
import copy
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.script_model import write_random_model
from tests.server.world import Client, serve_app, strict_json

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
SAMPLING: dict[str, Any] = {
    "max_tokens": 4, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 1, "n": 2, "stop": ["a", "b"],
    "stop_token_ids": [5], "logit_bias": {"7": 1.5}, "presence_penalty": 0.5, "frequency_penalty": -0.5,
    "repetition_penalty": 1.1, "min_tokens": 1, "bad_words": ["x"], "allowed_token_ids": [5, 6, 7, 8],
    "ignore_eos": True,
}  # fmt: skip
GOOD: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/completions", {"model": "test", "prompt": "abc", "logprobs": 1, "echo": True, **SAMPLING}),
    (
        "/v1/completions",
        {"prompt": ["a", "bc"], "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 3},
    ),
    ("/v1/completions", {"prompt": [[5, 6], [7]], "prompt_logprobs": 1, "max_tokens": 2, "truncate_prompt_tokens": 1}),
    ("/v1/chat/completions", {"messages": [USER], "logprobs": True, "top_logprobs": 2, **SAMPLING}),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "system", "content": [{"type": "text", "text": "be"}]}, USER],
            "tools": [TOOL], "tool_choice": "auto", "max_tokens": 3, "stream": True, "chat_template_kwargs": {"a": 1},
            "documents": [{"title": "t", "text": "x"}], "reasoning_effort": "low",
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [USER, {"role": "assistant", "content": "so"}], "continue_final_message": True, "max_tokens": 3,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}},
        },
    ),
    (
        "/v1/completions",
        {
            "prompt": "abc", "logprobs": 1, "logprob_token_ids": [5, 6], "max_tokens": 3,
            "repetition_detection": {"max_pattern_size": 2, "min_pattern_size": 1, "min_count": 2},
        },
    ),
    ("/v1/completions", {"prompt": [5, 6], "use_beam_search": True, "length_penalty": 0.5, "n": 2, "max_tokens": 3}),
    ("/inference/v1/generate", {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 3, "logprobs": 1}}),
    ("/tokenize", {"messages": [USER], "add_generation_prompt": True}),
    ("/tokenize", {"prompt": "abc", "return_token_strs": True}),
    ("/detokenize", {"tokens": [5, 6, 7]}),
    ("/generate", {"inputs": "abc", "parameters": {"max_new_tokens": 3, "stop": ["z"], "details": True}}),
)  # fmt: skip

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 2**31 - 1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64,
    10**30, 0.5, -0.0, 1e-320, 1e308, -1e308, "", " ", "\0", "a" * 5000, "é中\U0001f600", "\u202e\ufeff\ufffe",
    "<|im_end|>", "{{ 7*7 }}", "../../etc/passwd", "-1", "1e5", "NaN", "text", "assistant", "none", "required",
    [], {}, [[]], [None], [0], ["a"], [""], {"": ""}, {"type": "text"}, {"5": 1}, {"a": {"b": []}},
)  # fmt: skip

RAW = (
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-0", b"1" * 400, b"01", b"1.", b".5", b"0x10", b"'a'", b"undefined",
    b'"\\ud83d"', b'"\\u0000"', b'"\xff\xfe"', b"\xed\xa0\xbd", b"[" * 200, b'{"a":' * 150, b"//", b"/*", b"\x00",
    b"\xef\xbb\xbf",
)  # fmt: skip


def places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything inside a body."""
    found, pending = [], [value]
    while pending:
        container = pending.pop()
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            found.append((container, key))
            if isinstance(container[key], dict | list):
                pending.append(container[key])
    return found


def replace_value(rng: random.Random, body: dict[str, Any]) -> None:
    container, key = rng.choice(places(body))
    container[key] = copy.deepcopy(rng.choice(VALUES))


def nudge_number(rng: random.Random, body: dict[str, Any]) -> None:
    numbers = [(c, k) for c, k in places(body) if isinstance(c[k], int | float)]
    if numbers:
        container, key = rng.choice(numbers)
        container[key] = rng.choice(
            [container[key] + 1, container[key] - 1, -container[key], container[key] * 10**9, 0.5]
        )


def drop(rng: random.Random, body: dict[str, Any]) -> None:
    container, key = rng.choice(places(body))
    del container[key]


def add_field(rng: random.Random, body: dict[str, Any]) -> None:
    containers = [body, *(c[k] for c, k in places(body) if isinstance(c[k], dict))]
    _, other = rng.choice(GOOD)
    name = rng.choice([*other, "made_up", "", "é", "__class__", "model_fields"])
    rng.choice(containers)[name] = copy.deepcopy(other.get(name, rng.choice(VALUES)))


def deepen(rng: random.Random, body: dict[str, Any]) -> None:
    container, key = rng.choice(places(body))
    for _ in range(rng.choice([1, 5, 50, 99, 120])):
        container[key] = [container[key]] if rng.random() < 0.5 else {"a": container[key]}


def repeat(rng: random.Random, body: dict[str, Any]) -> None:
    lists = [(c, k) for c, k in places(body) if isinstance(c[k], list | str)]
    if lists:
        container, key = rng.choice(lists)
        container[key] = container[key] * rng.choice([2, 20, 300])


def swap(rng: random.Random, body: dict[str, Any]) -> None:
    (first, i), (second, j) = rng.choice(places(body)), rng.choice(places(body))
    first[i], second[j] = copy.deepcopy(second[j]), copy.deepcopy(first[i])


STRUCTURE: tuple[Callable[[random.Random, dict[str, Any]], None], ...] = (
    replace_value, replace_value, replace_value, nudge_number, drop, add_field, deepen, repeat, swap,
)  # fmt: skip


def spoil_bytes(rng: random.Random, data: bytes) -> bytes:
    """Flip, insert, cut, double or exchange some bytes."""
    at, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return rng.choice(
        [
            data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :],
            data[:at] + rng.choice(RAW) + data[at:],
            data[:at] + rng.choice(RAW) + data[end:],
            data[:at],
            data[:end] + data[at:],
            data[:at] + data[end:],
            data + data,
            rng.choice([b"", b" "]) + data + rng.choice([b"\n", b"\x00", b"}"]),
            data.decode("utf-8", "replace").encode(rng.choice(["utf-16", "utf-32", "latin-1"]), "replace"),
        ]
    )


def make_request(seed: str) -> tuple[str, bytes]:
    """Path and body of one request."""
    rng = random.Random(seed)
    path, good = rng.choice(GOOD)
    body = copy.deepcopy(good)
    for _ in range(rng.randrange(4)):
        if places(body):
            rng.choice(STRUCTURE)(rng, body)
    data = json.dumps(body, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    for _ in range(rng.choice([0, 0, 1, 2])):
        data = spoil_bytes(rng, data)
    return path, data


def check(path: str, response: httpx.Response) -> None:
    """The answer is one that the route may give."""
    assert response.status_code < 500 or (path == "/generate" and response.status_code == 424), response.text[:2000]
    if response.headers["content-type"].startswith("text/event-stream"):
        for line in filter(None, response.text.splitlines()):
            data = line.removeprefix("data: ")
            event = {} if data == "[DONE]" else strict_json(data)
            assert event.get("error", {}).get("code", 400) < 500, data
        return
    found = strict_json(response.content)
    if response.status_code != 200:
        error = found["error"]
        if path == "/generate":
            error = {"message": error, "type": found["error_type"], "param": None, "code": None}
        assert set(error) == {"message", "type", "param", "code"}, found
        assert error["message"] and len(response.content) < 10_000 and "Traceback" not in error["message"]


def fuzz(client: Client, seed: int, *, count: int = sys.maxsize, minutes: float = 1e9) -> int:
    """Send `count` requests, or as many as the minutes allow. Returns how many were sent.

    Raises:
        AssertionError: an answer is none that the route may give, or the server is not what it was.
    """

    def reference() -> Any:
        return client.complete("the reference", max_tokens=8, seed=1, logprobs=2)["choices"]

    expected, end_s = reference(), time.monotonic() + minutes * 60
    number = 0
    while number < count and time.monotonic() < end_s:
        name = f"{seed}/{number}"
        path, data = make_request(name)
        try:
            check(path, client.http.post(path, content=data, headers={"Content-Type": "application/json"}))
            number += 1
            if number % 100 == 0:
                assert reference() == expected, "the reference answer has changed"
        except (AssertionError, httpx.HTTPError, ValueError, KeyError, TypeError) as err:
            raise AssertionError(f"request {name}: {path} {data[:2000]!r}: {err!r}") from err
    client.wait_until_idle()
    assert reference() == expected and client.http.get("/health").status_code == 200
    return number


def main() -> None:
    """Fuzz a server of our own, or one that runs."""
    parser = argparse.ArgumentParser(description="Random bodies over HTTP; see tests/server/fuzz.py.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument(
        "--seed", default=str(random.randrange(2**31)), help="SEED, or SEED/NUMBER for that one request"
    )
    parser.add_argument("--url", help="a server of a model named test, started with OCTAVO_MAX_N_SEQUENCES=16")
    args = parser.parse_args()
    seed, _, number = args.seed.partition("/")
    os.environ.setdefault("OCTAVO_MAX_N_SEQUENCES", "16")

    def run(client: Client) -> None:
        if number:
            path, data = make_request(args.seed)
            response = client.http.post(path, content=data, headers={"Content-Type": "application/json"})
            print(f"{path} {data!r}\n{response.status_code} {response.text}")
            return check(path, response)
        print(f"{fuzz(client, int(seed), minutes=args.minutes)} requests of seed {seed}, and nothing has happened")

    if args.url:
        with httpx.Client(base_url=args.url, timeout=30) as http:
            run(Client(args.url, http))
    else:
        with (
            tempfile.TemporaryDirectory() as folder,
            serve_app(write_random_model(Path(folder)), max_model_len=256) as world,
        ):
            run(world)


if __name__ == "__main__":
    main()
