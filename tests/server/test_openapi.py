"""The OpenAPI document is true: random requests made from it get answers it describes, never a 5xx."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck
from schemathesis import GenerationMode

from octavo.config import ServerConfig
from tests.server.conftest import SENTENCE
from tests.server.world import World, serve_app


@pytest.fixture(scope="module")
def small(script_folder: Path) -> Iterator[World]:
    """A server on which no request takes long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OCTAVO_MAX_N_SEQUENCES", "8")
        with serve_app(script_folder, max_model_len=64) as world:
            yield world


def document(world: World) -> dict[str, Any]:
    found: dict[str, Any] = world.http.get("/openapi.json").json()
    return found


def test_every_reference_of_the_document_leads_somewhere(small: World) -> None:
    found = document(small)
    references = set(re.findall(r'"\$ref": "#/([^"]*)"', json.dumps(found)))
    assert len(references) > 20
    for reference in references:
        target: Any = found
        for step in reference.split("/"):
            target = target[step]
    assert "HTTPValidationError" not in found["components"]["schemas"]


def test_every_operation_tells_its_answer_and_its_errors(small: World) -> None:
    for path, operations in document(small)["paths"].items():
        for method, operation in operations.items():
            responses = operation["responses"]
            assert {"200", "4XX", "5XX"} <= responses.keys() and "422" not in responses, (path, method)
            if method == "post" and path != "/ping" and "cancel" not in path:
                assert operation["requestBody"]["content"], path


def test_a_key_is_part_of_the_document_where_one_is_needed(script_folder: Path, small: World) -> None:
    with serve_app(script_folder, ServerConfig(api_key=("k",))) as world:
        found = world.http.get("/openapi.json", headers={"Authorization": "Bearer k"}).json()
    assert found["paths"]["/v1/completions"]["post"]["security"] == [{"key": []}]
    assert "security" not in found["paths"]["/health"]["get"]
    assert "securitySchemes" not in document(small)["components"]


MAIN = ("/v1/chat/completions", "/v1/completions", "/inference/v1/generate", "/tokenize")


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize(("paths", "count"), [(MAIN, 2), pytest.param(None, 15, marks=pytest.mark.slow)])
def test_requests_made_from_the_document_are_answered_as_it_says(
    small: World, mode: GenerationMode, paths: tuple[str, ...] | None, count: int
) -> None:
    found = document(small)
    for operation in (result.ok() for result in schemathesis.openapi.from_dict(found).get_all_operations()):
        has_input = operation.body or operation.path_parameters or operation.query
        if (paths is None or operation.path in paths) and (has_input or mode is GenerationMode.POSITIVE):
            check(small, found, operation, mode, count)
    assert small.http.get("/health").status_code == 200
    assert small.complete("hi", max_tokens=20)["choices"][0]["text"] == SENTENCE


def check(world: World, found: dict[str, Any], operation: Any, mode: GenerationMode, count: int) -> None:
    described = found["paths"][operation.path][operation.method.lower()]["responses"]

    @hypothesis.settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        response = case.call(base_url=world.url)
        status = response.status_code
        told = described.get(str(status)) or described.get(f"{status // 100}XX")
        assert told is not None, (case.method, case.path, status, response.text)
        assert status < 500 or "503" in described, (case.body, response.text)
        kind = response.headers.get("content-type", [""])[0].partition(";")[0]
        if case.method == "HEAD" or not told.get("content"):
            return
        assert kind in told["content"], (case.path, kind)
        if kind == "application/json":
            where = {**told["content"][kind]["schema"], "components": found["components"]}
            jsonschema_rs.validate(where, response.json())

    try:
        run()
    except hypothesis.errors.Unsatisfiable:  # nothing that can be sent would be wrong
        assert mode is GenerationMode.NEGATIVE and not operation.body
