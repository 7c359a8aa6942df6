"""Fields that nobody knows are named in a header, or refused. Those that are known: test_every_field."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.config import ServerConfig
from octavo.server.unknown_fields import HEADER
from tests.server.world import World, assert_refused, serve_app

USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def strict(script_folder: Path) -> Iterator[World]:
    """A server with --strict-fields."""
    with serve_app(script_folder, ServerConfig(strict_fields=True, disable_log_stats=True)) as world:
        yield world


@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_field_is_named_in_a_header(script: World, stream: bool) -> None:
    body = {"prompt": "hi", "max_tokens": 1, "stream": stream}
    assert HEADER not in script.post("/v1/completions", **body, user="me", metadata={"a": "b"}).headers
    response = script.post("/v1/completions", **body, temprature=0, extra_body={"x": 1}, nothing=None)
    assert response.status_code == 200 and response.headers[HEADER] == "temprature, extra_body"
    nested = script.post("/v1/completions", **{**body, "stream": True, "stream_options": {"include_usge": True}})
    assert nested.headers[HEADER] == "stream_options.include_usge"


def test_a_name_that_no_header_can_hold_is_written_in_escapes_and_cut(script: World) -> None:
    response = script.post("/v1/completions", prompt="hi", max_tokens=1, **{"é\r\nX-Evil: 1": 1, "n" * 500: 1})
    first, second = response.headers[HEADER].split(", ")
    assert first == "%C3%A9%0D%0AX-Evil%3A%201" and len(second) == 64 and "x-evil" not in response.headers
    assert script.post("/v1/completions", prompt="hi", max_tokens=1, **{"": 1}).headers[HEADER] == '""'
    many = script.post("/v1/completions", prompt="hi", max_tokens=1, **{f"f{i}": i for i in range(5000)})
    assert many.headers[HEADER].endswith("f19, and 4980 more")


@pytest.mark.parametrize(("field", "value"), [("store", True), ("service_tier", "flex"), ("detokenize", False)])
def test_a_value_that_asks_for_more_than_there_is_is_named(script: World, field: str, value: Any) -> None:
    body = {"messages": [USER], "max_tokens": 1}
    assert script.post("/v1/chat/completions", **body, **{field: value}).headers[HEADER] == field
    for plain in (False, "default", True):
        if (field, plain) in [("store", False), ("service_tier", "default")]:
            assert HEADER not in script.post("/v1/chat/completions", **body, **{field: plain}).headers


def test_strict_fields_refuses_what_is_unknown_and_nothing_else(strict: World) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/chat/completions", {"messages": [USER]}),
        ("/tokenize", {"prompt": "hi"}),
        ("/detokenize", {"tokens": [5]}),
    ):
        error = assert_refused(strict.post(path, **body, temprature=0, other=1), param="temprature")
        assert "'other'" in error["message"] and "--strict-fields" in error["message"]
        assert error["code"] == "unknown_field"
        strict.ok(path, **body, temprature=None)
    strict.ok("/v1/chat/completions", messages=[USER], user="me", store=False, metadata={}, guided_json=None)
    options = {"include_usage": True, "made_up": 1}
    response = strict.post("/v1/completions", prompt="hi", stream=True, stream_options=options)
    assert_refused(response, param="stream_options.made_up")
