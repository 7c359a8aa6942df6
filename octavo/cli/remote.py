"""Talking to a running server from the command line."""

import json
from collections.abc import Iterator
from typing import Any

import httpx

from octavo.errors import ClientError, EngineError

TIMEOUT = httpx.Timeout(10.0, read=None)


def auth_headers(api_key: str | None) -> dict[str, str]:
    """The header that presents a key, or none."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def fetch_model_card(url: str, api_key: str | None, name: str | None) -> dict[str, Any]:
    """The server's card of model `name`, or of its first model.

    Raises:
        EngineError: the server cannot be reached or refuses.
        ClientError: it does not serve `name`.
    """
    try:
        response = httpx.get(f"{url.rstrip('/')}/models", headers=auth_headers(api_key), timeout=TIMEOUT)
    except httpx.HTTPError as err:
        raise EngineError(f"no answer from {url}: {err}; is `octavo serve` running there?") from None
    _check(response)
    cards: list[dict[str, Any]] = response.json()["data"]
    for card in cards:
        if name in (None, card["id"]):
            return card
    raise ClientError(f"{url} does not serve {name!r}; it serves {', '.join(card['id'] for card in cards)}")


def stream_events(url: str, path: str, body: dict[str, Any], api_key: str | None) -> Iterator[dict[str, Any]]:
    """POST a streaming request and yield its chunks as they come. Closing the iterator stops the server's work.

    Raises:
        EngineError: the server cannot be reached, refuses, or reports an error on the way.
    """
    try:
        with (
            httpx.Client(headers=auth_headers(api_key), timeout=TIMEOUT) as client,
            client.stream("POST", f"{url.rstrip('/')}{path}", json=body | {"stream": True}) as response,
        ):
            if response.status_code != 200:
                response.read()
            _check(response)
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    chunk: dict[str, Any] = json.loads(line[6:])
                    if "error" in chunk:
                        raise EngineError(str(chunk["error"].get("message", chunk["error"])))
                    yield chunk
    except httpx.HTTPError as err:
        raise EngineError(f"the connection to {url} broke: {err}") from None


def _check(response: httpx.Response) -> None:
    if response.status_code == 200:
        return
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = response.text[:200]
    raise EngineError(f"{response.url} answered {response.status_code}: {message}")
