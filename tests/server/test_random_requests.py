"""Random requests, good ones, bad ones and ones whose client leaves: none is answered 500, every good one is answered
like alone, and nothing is left behind.
"""

import asyncio
import gc
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.script_model import byte_id
from tests.server.world import World, assert_refused, finish_reasons, joined, serve_app, strict_json

BAD_VALUES: list[Any] = [
    None,
    -1,
    0,
    1.5,
    "x",
    "",
    [],
    {},
    [1],
    ["a"],
    {"a": 1},
    True,
    10**12,
    -(10**12),
    [[]],
    "\0",
    1e300,
]
FIELDS = [
    "n", "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "bad_words",
    "logprobs", "logprob_token_ids", "repetition_detection", "use_beam_search", "length_penalty",
    "top_logprobs", "prompt_logprobs", "logit_bias", "allowed_token_ids", "echo", "stream_options", "min_tokens",
    "presence_penalty", "repetition_penalty", "ignore_eos", "prompt", "messages", "tools", "tool_choice", "suffix",
    "response_format", "priority", "cache_salt", "truncate_prompt_tokens", "skip_special_tokens", "documents",
    "chat_template_kwargs", "request_id", "user", "made_up", "model",
]  # fmt: skip


def good_request(rng: random.Random) -> dict[str, Any]:
    """A request that has one right answer."""
    body: dict[str, Any] = {"temperature": 0, "max_tokens": rng.randrange(1, 24), "ignore_eos": rng.random() < 0.5}
    body["prompt"] = "".join(rng.choices("abc defé中", k=rng.randrange(1, 60)))
    if rng.random() < 0.4:
        body |= {"temperature": rng.choice([0.3, 1.0]), "seed": rng.randrange(100), "n": rng.randrange(1, 3)}
    if rng.random() < 0.3:
        body["stop"] = rng.sample(["a", "e", "\ufffd", "the"], k=rng.randrange(1, 3))
    if rng.random() < 0.3:
        body["logprobs"] = rng.randrange(3)
    if rng.random() < 0.2:
        body["echo"] = True
    if rng.random() < 0.2:
        body["allowed_token_ids"] = [byte_id(character) for character in rng.sample("abcdefgh", k=3)]
    if rng.random() < 0.2:
        body["frequency_penalty"] = 0.5
    return body


def spoiled(rng: random.Random, body: dict[str, Any]) -> dict[str, Any]:
    """The request with fields that may or may not make sense."""
    return body | {rng.choice(FIELDS): rng.choice(BAD_VALUES) for _ in range(rng.randrange(1, 3))}


def texts(answer: Any) -> list[str]:
    return [choice["text"] for choice in answer["choices"]]


@pytest.mark.parametrize("count", [120, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_requests_leave_nothing_behind(random_folder: Path, count: int) -> None:
    with serve_app(random_folder, max_num_seqs=6, num_gpu_blocks_override=40) as world:
        before = census(world)
        rng = random.Random(count)
        jobs = [(rng.randrange(4), rng.randrange(2**31)) for _ in range(count)]
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda job: one_request(world, *job), jobs))
        world.wait_until_idle()
        assert world.http.get("/health").status_code == 200
        assert all(value >= 0 for value in world.metrics().values())
        assert census(world) == before


def one_request(world: World, kind: int, seed: int) -> None:
    rng = random.Random(seed)
    body = good_request(rng)
    if kind == 0:
        assert texts(world.ok("/v1/completions", **body)) == texts(world.ok("/v1/completions", **body))
    elif kind == 1:
        whole = world.ok("/v1/completions", **body)
        chunks = world.stream("/v1/completions", **body)
        for choice in whole["choices"]:
            assert joined(chunks, choice["index"]) == choice["text"]
            assert finish_reasons(chunks, choice["index"]) == [choice["finish_reason"]]
    elif kind == 2:
        path = rng.choice(["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
        if "chat" in path:
            body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
            body.pop("logprobs", None)
        response = world.post(path, **spoiled(rng, body))
        if response.status_code == 200:
            strict_json(response.content)
        else:
            assert_refused(response, (400, 404))
    else:
        with world.send_and_hold("/v1/completions", **body | {"max_tokens": 300, "stream": rng.random() < 0.5}) as sock:
            sock.settimeout(rng.random() * 0.1)
            with suppress(TimeoutError):
                sock.recv(rng.randrange(1, 500))


def census(world: World) -> dict[str, int]:
    """What the server holds on to: open requests, tasks of its loop that are not connections, live request objects."""

    async def count() -> int:
        for _ in range(100):  # connections that were just closed
            names = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]  # type: ignore[union-attr]
            if not any("run_asgi" in name for name in names):
                break
            await asyncio.sleep(0.02)
        return len(names) - 1

    tasks = asyncio.run_coroutine_threadsafe(count(), world.loop).result(10)
    gc.collect()
    kinds = ("RequestState", "Detokenizer", "Submission", "RequestClock")
    live = [type(thing).__name__ for thing in gc.get_objects()]
    return {"tasks": tasks, "open": len(world.engine._outputs), **{kind: live.count(kind) for kind in kinds}}
