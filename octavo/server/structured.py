"""What a request says its answer must match, in every spelling: `response_format`, `structured_outputs`, and the
`guided_*` fields that vLLM has removed and clients still send. Knows no grammars.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from octavo.errors import ClientError
from octavo.sampling_params import StructuredOutputsParams
from octavo.server.requests import GenerationRequest

GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_whitespace_pattern": "whitespace_pattern",
}
"""Removed field -> its name in `structured_outputs`."""

FORMATS = ("text", "json_object", "json_schema", "structural_tag")


def structured_params(body: GenerationRequest) -> StructuredOutputsParams | None:
    """What the answer must match; None if anything goes.

    Raises:
        ClientError: it is malformed, or said twice; `param` names the field.
    """
    wishes = {
        "response_format": _from_response_format(body.response_format),
        "structured_outputs": _without_nulls(body.structured_outputs),
        **{name: {field: getattr(body, name)} for name, field in GUIDED.items() if getattr(body, name) is not None},
    }
    said = {name: wish for name, wish in wishes.items() if wish}
    values: dict[str, Any] = {}
    for name, wish in said.items():
        for field, value in wish.items():
            if field not in StructuredOutputsParams.__struct_fields__:
                known = ", ".join(StructuredOutputsParams.__struct_fields__)
                raise ClientError(f"{name} has the unknown field {field[:80]!r}; known: {known}", param=name)
            if field in values:
                raise ClientError(f"{' and '.join(said)} say twice what the answer must match; send one", param=name)
            values[field] = value
    if not said:
        return None
    with naming_its_field(body):
        return StructuredOutputsParams(**values)


@contextmanager
def naming_its_field(body: GenerationRequest) -> Iterator[None]:
    """Within, an error about `structured_outputs` names the field that the client has sent instead."""
    try:
        yield
    except ClientError as err:
        param, _, field = (err.param or "").partition(".")
        if param == "structured_outputs" and body.structured_outputs is None:
            guided = {theirs: ours for ours, theirs in GUIDED.items() if getattr(body, ours) is not None}
            said = "response_format" if body.response_format is not None else "tools"
            err.param = guided.get(field) or next(iter(guided.values()), said)
        raise


def _from_response_format(wanted: dict[str, Any] | None) -> dict[str, Any]:
    if wanted is None:
        return {}
    kind = wanted.get("type")
    if kind not in FORMATS:
        raise ClientError(
            f"response_format has the type {str(kind)[:80]!r}; known: {', '.join(FORMATS)}", param="response_format"
        )
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_object": True}
    if kind == "structural_tag":
        return {"structural_tag": wanted}
    described = wanted.get("json_schema")
    if not isinstance(described, dict) or not isinstance(described.get("schema"), dict):
        raise ClientError(
            'response_format of type json_schema needs json_schema: {"name": ..., "schema": {...}}',
            param="response_format",
        )
    return {"json": described["schema"]}


def _without_nulls(given: dict[str, Any] | None) -> dict[str, Any]:
    """An empty object asks for something, but for nothing that can be."""
    if given is None:
        return {}
    return {name: value for name, value in given.items() if value is not None} or {"json_object": False}
