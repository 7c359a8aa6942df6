"""Messages between the processes that cannot be read or written: what they are about ends, and nothing else."""

import asyncio

import msgspec
import pytest
import zmq

from octavo.engine.core_process import EngineProcess
from octavo.engine.protocol import News, Submit, decode_from_engine, encode, request_ids
from octavo.errors import EngineError
from octavo.messages import EngineOutput, EngineOutputs
from tests.core.worlds import make_request
from tests.engine.test_async_llm import collect
from tests.engine.worlds import SLOW, CoreWorld


def corrupted(message, **changes):
    """An encoded message whose inner struct has values of wrong types."""
    plain = msgspec.msgpack.decode(encode(message))
    [part] = plain["requests"] if "requests" in plain else plain["outputs"]["outputs"]
    part.update(changes)
    return msgspec.msgpack.encode(plain)


def test_ids_are_found_in_what_cannot_be_decoded():
    assert request_ids(corrupted(Submit([make_request("a", 3)]), prompt_token_ids="oops")) == ["a"]
    news = News(EngineOutputs(outputs=[EngineOutput(request_id="b")]))
    assert request_ids(corrupted(news, num_preemptions=[])) == ["b"]
    assert request_ids(b"\xc1") == request_ids(b"") == request_ids(encode([1, "x"])) == []


def test_a_request_the_engine_cannot_read_ends_alone(make_engine, monkeypatch):
    async def run():
        async with make_engine() as engine:
            other = asyncio.create_task(collect(engine, [SLOW, 5], "other", max_tokens=40))
            await asyncio.sleep(0.05)
            client = engine._client
            client._outbox.send(b"\xc1 no message at all")

            def submit(requests):
                client._outbox.send(corrupted(Submit(list(requests)), prompt_token_ids="oops"))

            with monkeypatch.context() as patch, pytest.raises(EngineError, match="could not take this request"):
                patch.setattr(client, "submit", submit)
                await asyncio.wait_for(collect(engine, [5], "bad"), 5)
            assert (await other).outputs[0].finish_reason == "length"
            assert (await collect(engine, [5], "bad", max_tokens=2)).finished

    asyncio.run(run())


def test_an_answer_the_client_cannot_read_ends_its_request_alone(make_engine):
    async def run():
        async with make_engine() as engine:
            open_ones = [asyncio.create_task(collect(engine, [SLOW, i], f"r{i}", max_tokens=60)) for i in (5, 6)]
            await asyncio.sleep(0.1)
            with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
                socket.connect(f"ipc://{engine._client._folder}/from_engine")
                news = News(EngineOutputs(outputs=[EngineOutput(request_id="r5")]))
                socket.send(corrupted(news, new_token_ids={"not": "a list"}))
                with pytest.raises(EngineError, match="cannot be read"):
                    await open_ones[0]
            await asyncio.sleep(0.1)
            assert engine.stats().num_running == 1  # the core has ended it too
            assert (await open_ones[1]).outputs[0].finish_reason == "length"

    asyncio.run(run())


def test_an_answer_the_engine_cannot_write_ends_its_request_alone():
    sent = []

    class Outbox:
        def send(self, data):
            sent.append(decode_from_engine.decode(data))

    world = CoreWorld()
    world.core.submit([make_request("good", 4), make_request("bad", 4)])
    world.core.step()
    process = EngineProcess(world.config, None, Outbox(), lambda: None)
    outputs = [
        EngineOutput(request_id="bad", error="half a \ud83d"),
        EngineOutput(request_id="good", new_token_ids=[7]),
    ]
    process._send_news(world.core, EngineOutputs(outputs=outputs))
    [good, bad] = sent[0].outputs.outputs
    assert (good.request_id, good.new_token_ids) == ("good", [7])
    assert (bad.request_id, bad.finish_reason) == ("bad", "error") and "could not be sent" in bad.error
    assert sent[0].outputs.stats.num_running == 1
