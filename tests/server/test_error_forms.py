"""Whatever refuses a request, be it the router, middleware or a route: the client reads it in the form of its API."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from octavo import limits
from octavo.config import ServerConfig
from octavo.server.app import build_app
from octavo.server.serving import Lifecycle
from tests.server.world import strict_json

PATHS = {
    "/v1/chat/completions": "openai", "/inference/v1/generate": "openai", "/v1/messages": "anthropic",
    "/v1/messages/count_tokens": "anthropic", "/generate": "tgi", "/generate_stream": "tgi", "/": "tgi",
}  # fmt: skip
KEY = {"Authorization": "Bearer k"}
GOOD = {
    "messages": [{"role": "user", "content": "hi"}], "model": "m", "max_tokens": 1, "inputs": "hi", "token_ids": [1],
    "sampling_params": {},
}  # fmt: skip
"""A body for every one of them: fields that a route does not know are no error."""

CAUSES: dict[int, dict[str, Any]] = {
    401: {"headers": {}},
    431: {"headers": KEY | {f"x-{i}": "y" for i in range(limits.HEADERS.value)}},
    413: {"content": b"x" * 1001},
    405: {"method": "DELETE"},
    415: {"headers": KEY | {"Content-Type": "text/plain"}},
    400: {"content": b"{"},
    503: {},
}
"""By the status that our own form has; nothing is wrong with the last request but that the model is still loaded."""

STATUSES: dict[str, dict[int, int]] = {"openai": {}, "anthropic": {503: 529}, "tgi": {400: 422, 503: 429}}
ANTHROPIC_TYPES = {401: "authentication_error", 413: "request_too_large", 503: "overloaded_error"}


@pytest.fixture(scope="module")
def app() -> Iterator[FastAPI]:
    """It still loads its model."""
    yield build_app(Lifecycle(ServerConfig(api_key=("k",), max_body_bytes=1000, root_path="/llm")))


def ask(app: FastAPI, path: str, method: str = "POST", **options: Any) -> httpx.Response:
    """A good request, but for the `options`."""
    content = {} if "content" in options else {"json": GOOD}

    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app, False), base_url="http://test") as http:
            return await http.request(method, path, **{"headers": KEY, **content, **options})

    return asyncio.run(send())


def words(form: str, status: int, found: Any) -> str:
    """What an error says; it has the fields of the form and no others, and the type that goes with the status."""
    match form:
        case "openai":
            assert set(found) == {"error"} and set(found["error"]) == {"message", "type", "param", "code"}
            return str(found["error"]["message"])
        case "anthropic":
            assert set(found) == {"type", "error"} and found["type"] == "error"
            assert set(found["error"]) == {"type", "message"}
            assert found["error"]["type"] == ANTHROPIC_TYPES.get(status, "invalid_request_error")
            return str(found["error"]["message"])
    assert set(found) == {"error", "error_type"}
    assert found["error_type"] == ("overloaded" if status == 503 else "validation")
    return str(found["error"])


@pytest.mark.parametrize("prefix", ["", "/llm"])
@pytest.mark.parametrize("status", CAUSES)
def test_every_refusal_has_the_form_of_the_api_that_was_asked(app: FastAPI, status: int, prefix: str) -> None:
    for path, form in PATHS.items():
        response = ask(app, prefix + path, **CAUSES[status])
        assert response.status_code == STATUSES[form].get(status, status), (path, response.text)
        assert response.headers["content-type"] == "application/json"
        assert words(form, status, strict_json(response.content)), path
        assert ("retry-after" in response.headers) == (status == 503), path
        assert response.headers.get("www-authenticate") == ("Bearer" if status == 401 else None), path


def test_a_path_below_anthropics_has_its_form_though_it_does_not_exist(app: FastAPI) -> None:
    assert "is not a route" in ask(app, "/v1/messages/batches").json()["error"]["message"]
    assert ask(app, "/v1/messages/batches").json()["error"]["type"] == "not_found_error"
    assert ask(app, "/v1/messagesx").json()["error"]["code"] == 404


def test_a_fault_is_a_500_in_every_form_and_says_nothing_of_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Lifecycle) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(Lifecycle, "serving", broken)
    app = build_app(Lifecycle(ServerConfig()))
    for path in PATHS:
        response = ask(app, path)
        assert (response.status_code, response.headers["connection"]) == (500, "close"), path
        assert "log has the cause" in response.text and "secret" not in response.text
