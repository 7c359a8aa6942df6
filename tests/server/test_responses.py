"""/v1/responses by the official client: whole and streamed, continued, stored, in the background."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from octavo.config import ServerConfig
from tests.server.conftest import ARGUMENTS, SENTENCE, TEXT, THOUGHT
from tests.server.world import World, assert_refused, serve_app, wait_for

PATH = "/v1/responses"
TOOL: Any = {
    "type": "function", "name": "get_weather", "strict": False, "description": "Weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}  # fmt: skip


def client_of(world: World, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{world.url}/v1", api_key=key, max_retries=0)


@pytest.fixture
def client(script: World) -> Iterator[openai.OpenAI]:
    with client_of(script) as client:
        yield client


def events(world: World, **body: Any) -> list[Any]:
    found = world.named_events(PATH, temperature=0, **body)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def test_a_text_answer(client: openai.OpenAI, script: World) -> None:
    response = client.responses.create(model="test", input="hi", temperature=0, metadata={"a": "b"})
    assert response.output_text == SENTENCE and response.status == "completed"
    assert response.metadata == {"a": "b"} and response.error is None and response.temperature == 0
    assert response.usage is not None and response.usage.output_tokens == 6
    assert response.usage.input_tokens == script.chat()["usage"]["prompt_tokens"]
    (message,) = response.output
    assert message.type == "message" and message.status == "completed"


def test_instructions_and_parts_are_messages(client: openai.OpenAI, script: World) -> None:
    response = client.responses.create(
        model="test",
        instructions="Be brief.",
        input=[
            {"role": "developer", "content": "Now."},
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        ],
    )
    messages = [("system", "Be brief."), ("system", "Now."), ("user", "hi")]
    same = script.chat(messages=[{"role": role, "content": text} for role, text in messages])
    assert response.usage is not None and response.usage.input_tokens == same["usage"]["prompt_tokens"]


def test_a_stream_makes_the_same_response(client: openai.OpenAI, script: World) -> None:
    for fields in ({}, {"max_output_tokens": 2}, {"top_logprobs": 2, "include": ["message.output_text.logprobs"]}):
        whole = script.ok(PATH, input="hi", temperature=0, **fields)
        found = events(script, input="hi", **fields)
        assert [event["type"] for event in found[:3]] == (
            ["response.created", "response.in_progress", "response.output_item.added"]
        )
        deltas = [event for event in found if event["type"] == "response.output_text.delta"]
        text = whole["output"][0]["content"][0]
        assert "".join(event["delta"] for event in deltas) == text["text"]
        assert [entry for event in deltas for entry in event["logprobs"]] == text["logprobs"]
        assert len(text["logprobs"]) == (5 if "top_logprobs" in fields else 0)
        last = found[-1]["response"]
        assert found[-1]["type"] == f"response.{whole['status']}"
        for response in (last, whole):
            for name in ("id", "created_at", "completed_at", "usage"):
                response.pop(name)
            response["output"][0].pop("id")
        assert last == whole


def test_an_answer_that_is_cut_is_incomplete(client: openai.OpenAI) -> None:
    response = client.responses.create(model="test", input="hi", temperature=0, max_output_tokens=2)
    assert response.status == "incomplete" and response.output_text == "The quick"
    assert response.incomplete_details is not None and response.incomplete_details.reason == "max_output_tokens"


def test_text_in_a_format(varied: World) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}
    whole = varied.ok(PATH, input="hi", temperature=0, text={"format": form})
    assert set(json.loads(whole["output"][0]["content"][0]["text"])) == {"ok"} and whole["text"] == {"format": form}
    streamed = events(varied, input="hi", text={"format": form})[-1]["response"]
    assert streamed["output"][0]["content"] == whole["output"][0]["content"]


def test_thinking_text_and_a_call_are_items(caller: World) -> None:
    with client_of(caller) as client:
        response = client.responses.create(model="test", input="hi", tools=[TOOL], temperature=0)
        reasoning, message, call = response.output
        assert reasoning.type == "reasoning" and reasoning.content is not None
        assert reasoning.content[0].text == THOUGHT and response.output_text == TEXT
        assert message.type == "message" and call.type == "function_call" and call.name == "get_weather"
        assert json.loads(call.arguments) == ARGUMENTS and call.status == "completed"
        with client.responses.stream(model="test", input="hi", tools=[TOOL], temperature=0) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
        assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
        assert final.output_text == TEXT and final.output[2].arguments == call.arguments  # type: ignore[union-attr]
        done = [kind for kind in kinds if kind.endswith(".done")]
        assert done == [
            "response.reasoning_text.done", "response.content_part.done", "response.output_item.done",
            "response.output_text.done", "response.content_part.done", "response.output_item.done",
            "response.function_call_arguments.done", "response.output_item.done",
        ]  # fmt: skip


def test_a_conversation_goes_on_with_its_calls(caller: World) -> None:
    with client_of(caller) as client:
        first = client.responses.create(model="test", input="hi", tools=[TOOL], temperature=0)
        call: Any = first.output[2]
        result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
        second = client.responses.create(model="test", input=result, tools=[TOOL], previous_response_id=first.id)
        function = {name: TOOL[name] for name in ("name", "description", "parameters", "strict")}
        rendered = caller.ok(
            "/tokenize",
            tools=[{"type": "function", "function": function}],
            messages=[
                {"role": "user", "content": "hi"},
                {
                    "role": "assistant", "content": TEXT, "reasoning_content": THOUGHT,
                    "tool_calls": [{"type": "function", "function": {"name": call.name, "arguments": ARGUMENTS}}],
                },
                {"role": "tool", "content": "sunny"},
            ],
        )  # fmt: skip
        assert second.usage is not None and second.usage.input_tokens == rendered["count"]
        items = client.responses.input_items.list(second.id, order="asc").data
        assert [item.type for item in items] == [
            "message",
            "reasoning",
            "message",
            "function_call",
            "function_call_output",
        ]
        # The same conversation, sent whole by a client that stores nothing here.
        sent = client.responses.create(
            model="test", tools=[TOOL], store=False,
            input=[{"role": "user", "content": "hi"}, *[item.to_dict() for item in first.output], *result],
        )  # fmt: skip
        assert sent.usage is not None and sent.usage.input_tokens == rendered["count"]


def test_stored_responses_are_retrieved_listed_and_deleted(client: openai.OpenAI) -> None:
    response = client.responses.create(model="test", input="hi", temperature=0)
    assert client.responses.retrieve(response.id) == response
    (item,) = client.responses.input_items.list(response.id).data
    assert item.type == "message" and item.content[0].text == "hi"  # type: ignore[union-attr]
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(response.id)
    client.responses.delete(response.id)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            call(response.id)
    unstored = client.responses.create(model="test", input="hi", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unstored.id)


def test_input_items_come_in_pages(client: openai.OpenAI) -> None:
    texts = [str(i) for i in range(5)]
    response = client.responses.create(model="test", input=[{"role": "user", "content": text} for text in texts])
    page = client.responses.input_items.list(response.id, limit=2)
    assert [item.content for item in page.data] == ["4", "3"] and page.has_more
    assert [item.content for item in client.responses.input_items.list(response.id, limit=2)] == texts[::-1]


def test_a_background_response_is_fetched_when_it_is_done(client: openai.OpenAI) -> None:
    response = client.responses.create(model="test", input="hi", temperature=0, background=True)
    assert response.status == "in_progress" and response.background
    wait_for(lambda: client.responses.retrieve(response.id).status == "completed")
    assert client.responses.retrieve(response.id).output_text == SENTENCE


def test_a_background_response_can_be_cancelled(random_folder: Path) -> None:
    with serve_app(random_folder) as world, client_of(world) as client:
        body: Any = {"ignore_eos": True, "chat_template_kwargs": {}}
        response = client.responses.create(
            model="test", input="hi", background=True, max_output_tokens=450, extra_body=body
        )
        with pytest.raises(openai.BadRequestError, match="wait until"):
            client.responses.create(model="test", input="more", previous_response_id=response.id)
        assert client.responses.cancel(response.id).status == "cancelled"
        assert client.responses.retrieve(response.id).status == "cancelled"
        world.wait_until_idle()


def test_the_store_is_bounded_and_belongs_to_a_key(script_folder: Path) -> None:
    server = ServerConfig(api_key=("one", "two"), response_store_size=2, disable_log_stats=True)
    with serve_app(script_folder, server) as world, client_of(world, "one") as one, client_of(world, "two") as two:
        ids = [one.responses.create(model="test", input="hi").id for _ in range(3)]
        assert one.responses.retrieve(ids[1]) and one.responses.retrieve(ids[2])
        for client, response_id in ((one, ids[0]), (two, ids[2])):
            with pytest.raises(openai.NotFoundError):
                client.responses.retrieve(response_id)
            with pytest.raises(openai.NotFoundError):
                client.responses.create(model="test", input="hi", previous_response_id=response_id)


def test_a_store_in_a_file_survives_a_restart(random_folder: Path, tmp_path: Path) -> None:
    server = ServerConfig(response_store=str(tmp_path / "new" / "responses.db"), disable_log_stats=True)
    with serve_app(random_folder, server) as world, client_of(world) as client:
        done = client.responses.create(model="test", input="hi", max_output_tokens=4)
        running = client.responses.create(
            model="test", input="hi", background=True, max_output_tokens=450, extra_body={"ignore_eos": True}
        )
    with serve_app(random_folder, server) as world, client_of(world) as client:
        assert client.responses.retrieve(done.id) == done
        assert client.responses.retrieve(running.id).status in ("cancelled", "failed")
        assert client.responses.create(model="test", input="more", previous_response_id=done.id, max_output_tokens=4)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": ""}, None),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
        ({"input": [{"type": "function_call_output"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input"),
        ({"input": "x" * 3000}, "input"),
        ({"input": "hi", "previous_response_id": "resp_none"}, "previous_response_id"),
        ({"input": "hi", "tools": [{"type": "web_search"}]}, "tools"),
        ({"input": "hi", "tool_choice": "required"}, "tool_choice"),
        ({"input": "hi", "temperature": -1}, "temperature"),
        ({"input": "hi", "truncation": "auto"}, "truncation"),
        ({"input": "hi", "include": ["computer_call_output.output.image_url"]}, "include"),
        ({"input": "hi", "background": True, "store": False}, "background"),
        ({"input": "hi", "background": True, "stream": True}, "background"),
        ({"input": "hi", "prompt": {"id": "x"}}, "prompt"),
        ({"input": "hi", "conversation": "x"}, "conversation"),
        ({"input": "hi", "top_logprobs": 21}, "top_logprobs"),
        ({"input": "hi", "text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"input": "hi", "text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"input": "hi", "text": {"format": {"type": "json_schema", "schema": {"type": "x"}}}}, "text.format"),
        ({"input": "hi", "tools": [{**TOOL, "parameters": {"type": "x"}}], "tool_choice": "required"}, "tools"),
        ({"input": "hi", "max_output_tokens": 10**9}, "max_output_tokens"),
    ],
)
def test_bad_bodies_name_the_field(script: World, body: dict[str, Any], param: str | None) -> None:
    if param is None:
        assert script.post(PATH, **body).status_code == 200
        return
    assert_refused(script.post(PATH, **body), (400, 404), param)
    for path in ("none", "none/input_items"):
        assert_refused(script.http.get(f"{PATH}/{path}"), 404)
