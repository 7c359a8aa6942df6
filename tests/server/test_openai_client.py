"""The official `openai` client as it comes, against our server."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from octavo.config import ServerConfig
from tests.server.conftest import SENTENCE
from tests.server.world import World, serve_app

USER = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def world(script_folder: Path) -> Iterator[World]:
    with serve_app(script_folder, ServerConfig(api_key=("secret",))) as world:
        world.http.headers["Authorization"] = "Bearer secret"  # metrics need a key too
        yield world


@pytest.fixture
def client(world: World) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{world.url}/v1", api_key="secret", max_retries=0) as client:
        yield client


def test_models_and_chat(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["test"]
    assert client.models.retrieve("test").id == "test"
    answer = client.chat.completions.create(model="test", messages=USER, temperature=0, logprobs=True, top_logprobs=2)
    assert answer.choices[0].message.content == SENTENCE
    assert answer.choices[0].message.role == "assistant" and answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None and answer.usage.total_tokens == answer.usage.prompt_tokens + 6
    assert answer.choices[0].logprobs is not None and answer.choices[0].logprobs.content is not None
    assert bytes(b for entry in answer.choices[0].logprobs.content for b in entry.bytes or []).decode() == SENTENCE


def test_streamed_chat_with_usage(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="test", messages=USER, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == SENTENCE
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 6


def test_completions_in_both_ways(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="test", prompt=["hi", "ho"], temperature=0, max_tokens=20, logprobs=1)
    assert [choice.text for choice in whole.choices] == [SENTENCE, SENTENCE]
    stream = client.completions.create(model="test", prompt="hi", temperature=0, max_tokens=20, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == SENTENCE


def test_errors_are_the_clients_own_kinds(client: openai.OpenAI, world: World) -> None:
    with pytest.raises(openai.NotFoundError, match="nobody"):
        client.chat.completions.create(model="nobody", messages=USER)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="test", messages=USER, temperature=-1)
    assert caught.value.param == "temperature"
    with (
        openai.OpenAI(base_url=f"{world.url}/v1", api_key="wrong", max_retries=0) as other,
        pytest.raises(openai.AuthenticationError),
    ):
        other.models.list()


def test_leaving_a_stream_early_stops_the_work(client: openai.OpenAI, world: World) -> None:
    options = {"ignore_eos": True}
    with client.chat.completions.create(
        model="test", messages=USER, stream=True, extra_body=options, max_tokens=400
    ) as stream:
        next(iter(stream))
    world.wait_until_idle()


def test_the_async_client_streams_many_at_once(world: World) -> None:
    async def ask(client: openai.AsyncOpenAI) -> str:
        stream = await client.chat.completions.create(model="test", messages=USER, temperature=0, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{world.url}/v1", api_key="secret") as client:
            return await asyncio.gather(*(ask(client) for _ in range(20)))

    assert asyncio.run(ask_all()) == [SENTENCE] * 20
