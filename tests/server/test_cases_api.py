"""Fault cases of the class "api_validation", over HTTP."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from octavo.config import ServerConfig
from octavo.server.error_forms import form_of
from octavo.server.middleware import OPEN_PATHS
from octavo.server.requests import ChatRequest, CompletionRequest, TokenizeRequest
from tests.server.conftest import SENTENCE
from tests.server.world import World, assert_refused, finish_reasons, joined, serve_app, strict_json

USER = {"role": "user", "content": "hi"}
KEY = "sesame-1"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"model": "nobody"}, 404, "model"),
        ({"messages": {"role": "user"}}, 400, "messages"),
        ({"messages": None}, 400, "messages"),
        ({"messages": "hi"}, 400, "messages"),
        ({"messages": [1]}, 400, "messages[0]"),
        ({"n": 0}, 400, "n"),
        ({"n": -1}, 400, "n"),
        ({"n": "two"}, 400, "n"),
        ({"n": True}, 400, "n"),
        ({"response_format": {"type": "json_schema"}}, 400, "response_format"),
        ({"response_format": {"type": "poem"}}, 400, "response_format"),
        ({"response_format": "json"}, 400, "response_format"),
        ({"stream_options": 5}, 400, "stream_options"),
        ({"top_logprobs": 3}, 400, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, 400, "logprobs"),
        ({"tools": []}, 400, "tools"),
        ({"tool_choice": "auto"}, 400, "tool_choice"),
        ({"logit_bias": {"100000": 1}}, 400, "logit_bias"),
        ({"logit_bias": {"x": 1}}, 400, "logit_bias"),
        ({"allowed_token_ids": []}, 400, "allowed_token_ids"),
        ({"allowed_token_ids": [10**6]}, 400, "allowed_token_ids"),
        ({"stop_token_ids": [10**6]}, 400, "stop_token_ids"),
        ({"seed": 2**70}, 400, "seed"),
        ({"cache_salt": "a/b"}, 400, "cache_salt"),
        ({"priority": 5}, 400, "priority"),
        ({"priority": -(2**64)}, 400, "priority"),
        ({"min_tokens": 5, "max_tokens": 2}, 400, "min_tokens"),
        ({"prompt_logprobs": 10**6}, 400, "prompt_logprobs"),
    ],
)
def test_api_01_a_bad_chat_request_gets_an_envelope_and_no_stream(
    script: World, change: dict[str, Any], status: int, param: str, stream: bool
) -> None:
    if stream and "prompt_logprobs" in change:
        param = "prompt_logprobs"
    start = time.monotonic()
    response = script.post("/v1/chat/completions", **{"messages": [USER], "stream": stream, **change})
    assert_refused(response, status, param)
    assert time.monotonic() - start < 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"model": "other"}, 404, "model"),
        *(({"n": n}, 400, "n") for n in (0, -1, "two")),
        ({"prompt": {"role": "user"}}, 400, "prompt"),
        ({"response_format": {"type": "json_schema"}}, 400, "response_format"),
        ({"response_format": {"type": "poem"}}, 400, "response_format"),
        ({"logprobs": 10**6}, 400, "logprobs"),
    ],
)
def test_api_01_a_bad_completion_request_gets_an_envelope_and_no_stream(
    script: World, change: dict[str, Any], status: int, param: str, stream: bool
) -> None:
    assert_refused(script.post("/v1/completions", **{"prompt": "hi", "stream": stream, **change}), status, param)


def test_api_01_a_missing_field_is_named(script: World) -> None:
    assert_refused(script.post("/v1/chat/completions"), param="messages")
    assert_refused(script.post("/v1/completions"), param="prompt")
    assert_refused(script.post("/detokenize"), param="tokens")
    assert_refused(script.post("/tokenize"), param="prompt")


def test_api_01_routes_methods_and_content_types(script: World) -> None:
    assert_refused(script.http.get("/v1/completions"), 405)
    assert_refused(script.post("/v1/models"), 405)
    assert_refused(script.http.get("/v1/nothing"), 404)
    assert_refused(script.http.get("/v1/models/other/model"), 404, "model")
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        response = script.http.post("/v1/completions", content=b'{"prompt":"hi"}', headers={"Content-Type": kind})
        assert_refused(response, 415)
    plain = script.http.post("/v1/completions", content=b'{"prompt":"hi","temperature":0}')
    assert plain.status_code == 200  # no Content-Type at all is taken as JSON


def test_api_01_an_unknown_field_is_ignored(script: World) -> None:
    assert script.complete("hi", max_tokens=20, no_such_field={"a": [1]})["choices"][0]["text"] == SENTENCE


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("suffix", "end"),
        ("prompt_embeds", "AAAA"),
        ("logits_processors", ["x"]),
        ("thinking_token_budget", 5),
        ("kv_transfer_params", {"a": 1}),
        ("best_of", 3),
        ("vllm_xargs", {"a": 1}),
    ],
)
def test_what_is_not_there_is_refused_by_name_and_asking_for_nothing_is_not(
    script: World, field: str, value: Any
) -> None:
    error = assert_refused(script.post("/v1/completions", prompt="hi", **{field: value}), param=field)
    assert field in error["message"] and error["type"] == "UnsupportedError"
    assert script.complete("hi", **{field: None})["choices"]


def test_tools_are_rendered_whatever_the_choice_and_one_that_is_not_there_is_refused(script: World) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    body = {"messages": [USER], "tools": tools}
    for harmless in ("auto", "none", None):
        assert script.chat(tools=tools, tool_choice=harmless)["choices"][0]["message"]["content"]
    unknown = {"type": "function", "function": {"name": "g"}}
    assert_refused(script.post("/v1/chat/completions", **body, tool_choice=unknown), param="tool_choice")


# ---------------------------------------------------------------- keys


@pytest.fixture(scope="module")
def guarded(script_folder: Path) -> Iterator[World]:
    """A server with two keys and one allowed origin."""
    server = ServerConfig(api_key=(KEY, "sesame-2"), allowed_origins=("https://app.example",), disable_log_stats=True)
    with serve_app(script_folder, server) as world:
        yield world


def test_api_03_every_route_but_probes_needs_a_key(guarded: World) -> None:
    schema = guarded.http.get("/openapi.json", headers={"Authorization": f"Bearer {KEY}"}).json()
    routes = [(path, method) for path, methods in schema["paths"].items() for method in methods]
    routes += [("/docs", "get"), ("/redoc", "get"), ("/openapi.json", "get"), ("/no/such/path", "get")]
    assert len(routes) > 12
    bad = [{}, {"Authorization": "Bearer nope"}, {"Authorization": f"Basic {KEY}"}, {"Authorization": KEY},
           {"Authorization": f"Bearer {KEY}x"}, {"Authorization": "Bearer"}]  # fmt: skip
    for path, method in routes:
        for headers in bad:
            response = guarded.http.request(method, path, headers=headers)
            if path in OPEN_PATHS:
                assert response.status_code == 200, path
            else:
                assert response.status_code == 401, path
                msgspec.json.decode(response.content, type=form_of(path).body)
                assert KEY not in response.text


@pytest.mark.parametrize("value", [f"Bearer {KEY}", f"bearer {KEY}", f"Bearer {KEY}  ", "Bearer sesame-2"])
def test_api_03_a_key_works_in_every_spelling_of_the_scheme(guarded: World, value: str) -> None:
    request = f"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: {value}\r\n\r\n"
    with socket.create_connection(_address(guarded)) as sock:
        sock.sendall(request.encode())
        assert _read_all(sock).startswith(b"HTTP/1.1 200 ")


def test_api_03_a_preflight_is_answered_by_the_cors_policy(guarded: World, script: World) -> None:
    headers = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    allowed = guarded.http.options("/v1/chat/completions", headers=headers)
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == "https://app.example"
    other = guarded.http.options("/v1/chat/completions", headers={**headers, "Origin": "https://evil.example"})
    assert other.status_code == 400 and "access-control-allow-origin" not in other.headers
    assert script.http.options("/v1/chat/completions", headers=headers).status_code == 400


# ---------------------------------------------------------------- bodies


@pytest.mark.parametrize(
    "body",
    [
        b"{:",
        b"",
        b"   ",
        b"null",
        b"[]",
        b"5",
        b'"x"',
        '{"prompt": "你好"}'.encode("gbk"),
        '{"prompt": "hi"}'.encode("utf-16"),
        '{"prompt": "hi"}'.encode("utf-16-le"),
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "\\ud83d"}',
        b'{"prompt": ["a", "x\\udc00y"]}',
        b'{"\\ud83d": "x", "prompt": "hi"}',
        b'{"prompt": "hi", "n": 1' + b"0" * 5000 + b"}",
        b"[" * 100_000,
        b'{"prompt":' * 50_000,
        b'{"prompt": "hi"} {"prompt": "hi"}',
        b'{"prompt": "hi\n"}',
    ],
)
def test_api_04_a_body_that_is_not_one_json_object_in_utf8_is_refused(script: World, body: bytes) -> None:
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
        response = script.http.post(path, content=body, headers={"Content-Type": "application/json"})
        assert_refused(response)
        assert len(response.content) < 4000
    assert script.complete("hi", max_tokens=20)["choices"][0]["text"] == SENTENCE


def test_api_04_a_byte_order_mark_and_nul_are_taken(script: World) -> None:
    headers = {"Content-Type": "application/json"}
    marked = b"\xef\xbb\xbf" + json.dumps({"prompt": "hi", "temperature": 0}).encode()
    assert script.http.post("/v1/completions", content=marked, headers=headers).status_code == 200
    assert script.complete("a\0b", stop=["\0"], max_tokens=20, echo=True)["choices"][0]["text"] == f"a\0b{SENTENCE}"


def test_api_04_a_whole_surrogate_pair_in_escapes_is_a_character(script: World) -> None:
    response = script.http.post("/tokenize", content=b'{"prompt": "\\ud83d\\ude00"}')
    assert response.json()["count"] == 4


def test_api_04_user_text_quoted_in_a_message_does_not_break_the_encoding(script: World) -> None:
    error = assert_refused(script.post("/v1/completions", prompt="hi", model="\U0001f600\0中" * 500), 404)
    assert len(error["message"]) < 2200


@pytest.mark.parametrize("half_close", [False, True])
def test_api_04_a_chunked_upload_cut_half_way_hurts_nobody(script: World, half_close: bool) -> None:
    with socket.create_connection(_address(script)) as sock:
        sock.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b'Transfer-Encoding: chunked\r\n\r\n10\r\n{"prompt": "hi",\r\n'
        )
        if half_close:
            sock.shutdown(socket.SHUT_WR)
            head, _, body = _read_all(sock).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400 ")
            assert strict_json(body)["error"]["message"]
    assert script.complete("hi", max_tokens=20)["choices"][0]["text"] == SENTENCE


def test_api_04_bytes_that_are_not_http_get_an_envelope(script: World) -> None:
    with socket.create_connection(_address(script)) as sock:
        sock.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        head, _, body = _read_all(sock).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and strict_json(body)["error"]["message"]


def test_a_body_over_the_limit_is_refused_before_it_is_read(script_folder: Path) -> None:
    with serve_app(script_folder, ServerConfig(max_body_bytes=1000)) as world:
        assert_refused(world.post("/v1/completions", prompt="x" * 2000), 413)
        pieces = (b"x" * 100 for _ in range(20))
        assert_refused(world.http.post("/v1/completions", content=pieces), 413)
        assert world.complete("hi")["choices"]


# ---------------------------------------------------------------- several prompts


def test_api_05_choices_are_ordered_by_prompt_and_sample(varied: World) -> None:
    prompts = ["a", "The quick brown fox " * 6, "xyz!"]
    body = {"n": 2, "temperature": 1.0, "seed": 7, "ignore_eos": True, "return_token_ids": True}
    alone = [varied.complete(prompt, max_tokens=8 + 4 * i, **body) for i, prompt in enumerate(prompts)]
    together = varied.complete(prompts, max_tokens=8, **body)
    assert [choice["index"] for choice in together["choices"]] == list(range(6))
    for i, answer in enumerate(alone):
        for sample in range(2):
            assert answer["choices"][sample]["token_ids"][:8] == together["choices"][2 * i + sample]["token_ids"]
    assert together["usage"]["completion_tokens"] == 6 * 8
    assert together["usage"]["prompt_tokens"] == sum(answer["usage"]["prompt_tokens"] for answer in alone)
    chunks = varied.stream_complete(prompts, max_tokens=8, stream_options={"include_usage": True}, **body)
    for choice in together["choices"]:
        assert joined(chunks, choice["index"]) == choice["text"]
        assert finish_reasons(chunks, choice["index"]) == ["length"]
    assert chunks[-1]["usage"]["completion_tokens"] == 48


def test_api_05_lists_of_ids_are_prompts(varied: World) -> None:
    texts = ["abc", "de", "f" * 20]
    ids = [varied.ok("/tokenize", prompt=text)["tokens"] for text in texts]
    as_text, as_ids = varied.complete(texts, max_tokens=6), varied.complete(ids, max_tokens=6)
    assert [c["text"] for c in as_text["choices"]] == [c["text"] for c in as_ids["choices"]]
    assert varied.complete(ids[0], max_tokens=6)["choices"][0]["text"] == as_text["choices"][0]["text"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("bad", ["x" * 600, [3] * 600, "", []])
def test_api_05_one_bad_prompt_refuses_the_whole_request(varied: World, bad: Any, stream: bool) -> None:
    good = "good" if isinstance(bad, str) else [5, 6]
    assert_refused(varied.post("/v1/completions", prompt=[good, bad, good], stream=stream, n=2), param="prompt")
    varied.wait_until_idle()


@pytest.mark.parametrize("size", [600, 6000, 600_000])
def test_a_prompt_beyond_the_context_is_refused_in_no_time(varied: World, size: int) -> None:
    start = time.monotonic()
    assert_refused(varied.post("/v1/completions", prompt="x" * size), param="prompt")
    assert_refused(varied.post("/v1/completions", prompt=[5] * size), param="prompt")
    chat = [{"role": "user", "content": "x" * size}]
    assert_refused(varied.post("/v1/chat/completions", messages=chat), param="messages")
    assert time.monotonic() - start < 3
    assert varied.ok("/tokenize", prompt="x" * size)["count"] == size  # counting is no generating


def test_api_05_the_newer_name_of_the_token_limit_wins(varied: World) -> None:
    body = {"ignore_eos": True}
    both = varied.chat(max_tokens=5, max_completion_tokens=3, **body)
    assert both["usage"]["completion_tokens"] == 3
    assert varied.complete("hi", max_completion_tokens=3, **body)["usage"]["completion_tokens"] == 3
    assert varied.complete("hi", **body)["usage"]["completion_tokens"] == 16


# ---------------------------------------------------------------- load


@pytest.mark.parametrize("count", [60, pytest.param(300, marks=pytest.mark.slow)])
def test_api_07_many_connections_at_once_are_all_answered(varied: World, count: int) -> None:
    def ask(i: int) -> int:  # all are under way at once, so each has a connection of its own
        body = {"messages": [{"role": "user", "content": f"q{i}"}], "max_tokens": 1}
        return varied.post("/v1/chat/completions", **body).status_code

    with ThreadPoolExecutor(count) as pool:
        assert set(pool.map(ask, range(count))) == {200}
    varied.wait_until_idle()


@pytest.mark.parametrize("count", [60, pytest.param(300, marks=pytest.mark.slow)])
def test_api_07_many_requests_on_one_kept_connection(varied: World, count: int) -> None:
    with httpx.Client(base_url=varied.url, limits=httpx.Limits(max_connections=1)) as http:
        for _ in range(count):
            assert http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200


def test_api_07_slow_clients_do_not_block_others(varied: World) -> None:
    stop = threading.Event()
    socks = [socket.create_connection(_address(varied)) for _ in range(50)]

    def dribble() -> None:
        request = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + b" " * 1000
        for position in range(len(request)):
            for sock in socks:
                sock.sendall(request[position : position + 1])
            if stop.wait(0.05):
                return

    thread = threading.Thread(target=dribble)
    thread.start()
    try:
        for _ in range(5):
            start = time.monotonic()
            assert varied.complete("hi", max_tokens=4)["choices"]
            assert time.monotonic() - start < 5
    finally:
        stop.set()
        thread.join()
        for sock in socks:
            sock.close()


def test_api_07_an_endless_answer_ends_at_the_context_limit(varied: World) -> None:
    answer = varied.chat("go on", ignore_eos=True)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == 512


# ---------------------------------------------------------------- the rest of the surface


def test_request_ids_come_back(script: World) -> None:
    body = {"prompt": "hi", "temperature": 0}
    response = script.http.post("/v1/completions", json=body, headers={"X-Request-Id": "abc-1"})
    assert response.headers["x-request-id"] == "abc-1" and response.json()["id"] == "cmpl-abc-1"
    assert "x-request-id" not in script.post("/v1/completions", **body).headers
    assert script.complete("hi", request_id="mine")["id"] == "cmpl-mine"
    odd = script.http.post("/v1/completions", json=body, headers={"X-Request-Id": "x" * 200})
    assert odd.status_code == 200 and "x-request-id" not in odd.headers


def test_the_same_request_id_twice_at_once_is_no_error(varied: World) -> None:
    def ask(_: int) -> str:
        return str(varied.complete("hi", request_id="same", max_tokens=20, ignore_eos=True)["choices"][0]["text"])

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(ask, range(4)))) == 1


def test_models_are_listed_under_every_name(script_folder: Path) -> None:
    with serve_app(script_folder, served_model_name=("org/first", "second")) as world:
        cards = world.http.get("/v1/models").json()["data"]
        assert [card["id"] for card in cards] == ["org/first", "second"]
        assert cards[0]["max_model_len"] == 512 and cards[0]["object"] == "model"
        assert world.http.get("/v1/models/org/first").json() == cards[0]
        assert world.complete("hi", model="second")["model"] == "org/first"


def test_tokenize_and_detokenize_are_inverse(script: World) -> None:
    tokens = script.ok("/tokenize", prompt="Münster 中", return_token_strs=True)
    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"]) and tokens["max_model_len"] == 512
    assert script.ok("/detokenize", tokens=tokens["tokens"]) == {"prompt": "Münster 中"}
    assert_refused(script.post("/detokenize", tokens=[10**6]), param="tokens")
    assert_refused(script.post("/detokenize", tokens=[-1]), param="tokens")
    chat = script.ok("/tokenize", messages=[USER])
    assert chat["count"] == script.chat()["usage"]["prompt_tokens"]


def test_probes_answer(script: World) -> None:
    for path in ("/health", "/livez", "/readyz", "/ping", "/version"):
        assert script.http.get(path).status_code == 200
    assert script.http.post("/ping").status_code == 200
    for path in ("/health", "/livez", "/readyz"):
        probed = script.http.head(path)
        assert (probed.status_code, probed.content) == (200, b"")
    assert script.http.get("/load", headers={}).json() == {"server_load": 0}


def test_asking_for_plain_text_is_no_structured_output(script: World) -> None:
    assert script.chat(response_format={"type": "text"}, modalities=["text"])["choices"]
    assert_refused(
        script.post("/v1/chat/completions", messages=[USER], modalities=["text", "audio"]), param="modalities"
    )


def test_every_answer_carries_a_fresh_id_if_asked_to(script_folder: Path) -> None:
    with serve_app(script_folder, ServerConfig(enable_request_id_headers=True)) as world:
        ids = [world.http.get("/livez").headers["x-request-id"] for _ in range(3)]
        assert len(set(ids)) == 3


def test_requests_are_logged_without_their_text_if_asked_to(
    script_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serve_app(script_folder, ServerConfig(enable_log_requests=True)) as world:
        with caplog.at_level("INFO", logger="octavo"):
            world.complete("a secret", request_id="logged", max_tokens=3)
        assert "logged" in caplog.text and "'max_tokens': 3" in caplog.text and "secret" not in caplog.text


def _address(world: World) -> tuple[str, int]:
    url = httpx.URL(world.url)
    assert url.port is not None
    return url.host, url.port


def _read_all(sock: socket.socket) -> bytes:
    sock.settimeout(10)
    data = b""
    while chunk := sock.recv(65536):
        data += chunk
    return data


def test_null_means_not_said_in_every_field(script: World) -> None:
    script.ok("/v1/completions", **{**dict.fromkeys(CompletionRequest.model_fields), "prompt": "x"})
    script.ok("/v1/chat/completions", **{**dict.fromkeys(ChatRequest.model_fields), "messages": [USER]})
    script.ok("/tokenize", **{**dict.fromkeys(TokenizeRequest.model_fields), "prompt": "x"})
    assert script.stream_complete("x", stream_options={"include_usage": None})
