import asyncio
import gc
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from octavo.engine import watchdog
from octavo.engine.input_processor import derive_seed
from octavo.errors import ClientError, EngineDeadError, ModelError, OverloadedError
from octavo.sampling_params import SamplingParams
from tests.core.worlds import make_request, oracle
from tests.engine.worlds import (
    CRASH,
    FAULT,
    HANG,
    SLOW,
    make_engine_config,
)

GREEDY = {"temperature": 0.0, "ignore_eos": True}


async def collect(engine, prompt, request_id="r", **params):
    """The last output of a request."""
    async for output in engine.generate(prompt, SamplingParams(**{**GREEDY, **params}), request_id):
        last = output
    return last


async def pid_is_gone(pid, within_s):
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        if not Path(f"/proc/{pid}").exists() or "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
            return True
        await asyncio.sleep(0.02)
    return False


def test_many_requests_at_once_get_what_each_gets_alone(make_engine):
    async def run():
        async with make_engine(token_budget=16) as engine:
            requests = [make_request(f"r{i}", 4 + i, max_tokens=8) for i in range(30)]
            outputs = await asyncio.gather(
                *(collect(engine, r.prompt_token_ids, r.request_id, max_tokens=8, seed=0) for r in requests)
            )
            for request, output in zip(requests, outputs, strict=True):
                assert output.outputs[0].token_ids == oracle(request, (None,), 256)
                assert output.finished and output.outputs[0].finish_reason == "length"
            await asyncio.sleep(0.1)
            stats = engine.stats()
            assert (stats.num_running, stats.num_waiting, stats.generation_tokens) == (0, 0, 240)
            assert engine.config.cache.num_blocks == (64,) and engine.facts.max_request_tokens == 256

    asyncio.run(run())


def test_outputs_grow_and_only_the_last_is_finished(make_engine):
    async def run():
        async with make_engine() as engine:
            lengths = []
            async for output in engine.generate([SLOW, 5], SamplingParams(**GREEDY, max_tokens=20), "r"):
                lengths.append(len(output.outputs[0].token_ids))
                assert output.finished == (lengths[-1] == 20)
            assert lengths == sorted(set(lengths)) and len(lengths) > 5

    asyncio.run(run())


def test_bad_requests_are_refused_and_others_go_on(make_engine):
    async def run():
        async with make_engine(max_num_queued_reqs=0, max_num_seqs=1) as engine:
            other = asyncio.create_task(collect(engine, [SLOW, 5], "good", max_tokens=30))
            await asyncio.sleep(0.1)
            with pytest.raises(ClientError, match="vocabulary"):
                await collect(engine, [96])
            with pytest.raises(ClientError, match="'good' is in use"):
                await collect(engine, [5], "good")
            with pytest.raises(OverloadedError, match="try again"):
                await collect(engine, [5], "late", n=2)
            assert (await other).outputs[0].finish_reason == "length"
            assert (await collect(engine, [5], "late", n=1, max_tokens=2)).finished

    asyncio.run(run())


def test_closing_the_iterator_stops_the_work(make_engine):
    async def run():
        async with make_engine() as engine:
            stream = engine.generate([SLOW, 5], SamplingParams(**GREEDY, max_tokens=200), "r")
            await anext(stream)
            await stream.aclose()
            await asyncio.sleep(0.3)
            stats = engine.stats()
            assert (stats.num_running, stats.kv_usage) == (0, 0.0) and stats.generation_tokens < 100

    asyncio.run(run())


def test_a_cancelled_reader_and_an_abort_both_end_their_requests(make_engine):
    async def run():
        async with make_engine() as engine:
            cancelled = asyncio.create_task(collect(engine, [SLOW, 5], "cancelled", max_tokens=200))
            aborted = asyncio.create_task(collect(engine, [SLOW, 6], "aborted", max_tokens=200, n=2))
            await asyncio.sleep(0.2)
            cancelled.cancel()
            await engine.abort(["aborted", "unknown"])
            assert [sample.finish_reason for sample in (await aborted).outputs] == ["abort", "abort"]
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            await asyncio.sleep(0.2)
            assert engine.stats().num_running == 0 and engine.is_alive

    asyncio.run(run())


def test_two_hundred_requests_that_are_left_aborted_or_wrong_end_once_each(make_engine):
    async def one(engine, i, choose):
        fate, finals = choose.choice(["stay", "stay", "leave", "cancel", "abort", "wrong"]), 0
        prompt = [SLOW if choose.random() < 0.2 else 5, *(choose.randrange(3, 40) for _ in range(choose.randrange(30)))]
        params = SamplingParams(**GREEDY, n=choose.choice([1, 1, 3]), max_tokens=choose.randint(0, 15))
        if fate == "wrong":
            params.stop_token_ids = [96]
        await asyncio.sleep(choose.random())
        stream = engine.generate(prompt, params, f"r{i}")
        reading = asyncio.ensure_future(anext(stream))
        if fate in ("cancel", "abort"):
            await asyncio.sleep(choose.random() / 20)
            reading.cancel() if fate == "cancel" else await engine.abort([f"r{i}"])
        try:
            finals += (await reading).finished
            if fate == "leave":
                await stream.aclose()
                return "left"
            async for output in stream:
                finals += output.finished
        except (ClientError, asyncio.CancelledError) as err:
            return type(err).__name__
        assert finals == 1
        return "ended"

    async def run():
        async with make_engine(num_blocks=40, token_budget=32) as engine:
            choose = random.Random(3)
            ends = await asyncio.wait_for(asyncio.gather(*(one(engine, i, choose) for i in range(200))), 60)
            assert {"left", "ClientError", "CancelledError", "ended"} <= set(ends)
            await asyncio.sleep(0.2)
            stats = engine.stats()
            assert (stats.num_running, stats.num_waiting, stats.kv_usage, len(engine._outputs)) == (0, 0, 0.0, 0)

    asyncio.run(run())


def test_a_failed_step_is_an_error_of_its_request_and_the_engine_lives(make_engine):
    async def run():
        async with make_engine() as engine:
            with pytest.raises(Exception, match="made to fail"):
                await collect(engine, [FAULT, 5])
            assert (await collect(engine, [5], max_tokens=2)).finished and engine.is_alive

    asyncio.run(run())


def test_a_prefix_cache_is_reset_on_request(make_engine):
    async def run():
        async with make_engine() as engine:
            prompt = list(range(3, 23))
            cached = [(await collect(engine, prompt, max_tokens=1)).num_cached_tokens for _ in range(2)]
            assert await engine.reset_prefix_cache()
            cached.append((await collect(engine, prompt, max_tokens=1)).num_cached_tokens)
            assert cached == [0, 16, 0]

    asyncio.run(run())


def test_pages_are_told_also_when_somebody_who_asked_has_gone(make_engine):
    async def run():
        async with make_engine() as engine:
            prompt = list(range(3, 23))
            running = engine.generate([SLOW, *prompt], SamplingParams(**GREEDY, max_tokens=50), "r")
            await anext(running)
            impatient = asyncio.create_task(engine.page_maps())
            await asyncio.sleep(0)
            impatient.cancel()
            [pages] = await engine.page_maps()
            assert pages.states.count(2) == pages.num_used >= 2 and len(pages.states) == pages.num_blocks
            async for _ in running:
                pass
            assert engine.is_alive and (await engine.page_maps())[0].num_used == 0
            [request] = engine.recent_requests()
            assert (request.num_prompt_tokens, request.samples[0].num_tokens) == (21, 50)

    asyncio.run(run())


def test_a_killed_process_ends_every_open_request_within_a_second(make_engine):
    async def run():
        async with make_engine() as engine:
            open_ones = [asyncio.create_task(collect(engine, [SLOW, i], f"r{i}", max_tokens=200)) for i in range(4, 20)]
            await asyncio.sleep(0.2)
            killed_s = time.monotonic()
            os.kill(engine._client.process_id, signal.SIGKILL)
            results = await asyncio.gather(*open_ones, return_exceptions=True)
            assert time.monotonic() - killed_s < 1.0
            assert all(isinstance(result, EngineDeadError) for result in results)
            assert "killed by signal 9" in str(results[0])
            assert not engine.is_alive
            with pytest.raises(EngineDeadError, match="signal 9"):
                await collect(engine, [5])

    asyncio.run(run())


def test_a_request_that_kills_the_process_is_told_so(make_engine):
    async def run():
        async with make_engine() as engine:
            with pytest.raises(EngineDeadError):
                await collect(engine, [CRASH, 5])

    asyncio.run(run())


def test_the_watchdog_sees_a_step_that_never_ends_but_no_idle_time(make_engine):
    async def run():
        async with make_engine(watchdog_timeout_s=0.5) as engine:
            await asyncio.sleep(0.7)
            assert engine.is_alive
            hung = asyncio.create_task(collect(engine, [HANG, 5]))
            await asyncio.sleep(0.2)
            assert engine.is_alive
            await asyncio.sleep(0.5)
            assert not engine.is_alive
            with pytest.raises(EngineDeadError, match=r"no step has ended for .* while 1 requests are open"):
                engine.check_health()
            with pytest.raises(EngineDeadError, match="no step has ended"):
                await hung

    asyncio.run(run())


def test_a_stopped_process_is_noticed_also_when_idle_and_is_gone_at_once(make_engine, monkeypatch):
    monkeypatch.setattr(watchdog, "SILENCE_S", 2.0)

    async def run(busy):
        async with make_engine() as engine:
            pid = engine._client.process_id
            open_one = asyncio.create_task(collect(engine, [SLOW, 5], max_tokens=200)) if busy else None
            await asyncio.sleep(0.1)
            stopped_s = time.monotonic()
            os.kill(pid, signal.SIGSTOP)
            assert "has said nothing for" in str(await asyncio.wait_for(engine.lost(), 10))
            if open_one:
                with pytest.raises(EngineDeadError, match="stopped"):
                    await open_one
            assert await pid_is_gone(pid, 1.0) and time.monotonic() - stopped_s < 4.0

    async def both():
        await asyncio.gather(run(True), run(False))

    asyncio.run(both())


def test_a_step_that_sleeps_is_a_hung_one_and_ends_its_requests(make_engine, monkeypatch):
    monkeypatch.setattr(watchdog, "ASLEEP_S", 1.0)

    async def run():
        async with make_engine() as engine:
            with pytest.raises(EngineDeadError, match="a step hangs"):
                await asyncio.wait_for(collect(engine, [HANG, 5]), 10)

    asyncio.run(run())


def test_an_observer_that_was_stopped_itself_blames_nobody(make_engine, monkeypatch):
    monkeypatch.setattr(watchdog, "SILENCE_S", 2.0)

    async def run():
        async with make_engine() as engine:
            open_one = asyncio.create_task(collect(engine, [SLOW, 5], max_tokens=40))
            await asyncio.sleep(0.05)
            time.sleep(2.5)  # the whole event loop
            assert (await open_one).outputs[0].finish_reason == "length" and engine.is_alive

    asyncio.run(run())


def test_a_lost_engine_is_started_again_with_the_same_sizes_counters_and_seeds(make_engine):
    async def run():
        async with make_engine() as engine:
            seeds = [(await collect(engine, list(range(3, 23)), temperature=1.0, max_tokens=5)).outputs[0].seed]
            config, steps, pid = engine.config, engine.stats().steps, engine._client.process_id
            open_one = asyncio.create_task(collect(engine, [SLOW, 5], temperature=1.0, max_tokens=200))
            await asyncio.sleep(0.1)
            os.kill(pid, signal.SIGKILL)
            assert "signal 9" in str(await engine.lost())
            with pytest.raises(EngineDeadError):
                await open_one
            assert engine.stats().num_running == 0 and engine.stats().steps >= steps
            await engine.restart()
            last = await collect(engine, list(range(3, 23)), temperature=1.0, max_tokens=5)
            seeds.append(last.outputs[0].seed)
            assert last.num_cached_tokens == 0 and engine.config == config
            assert engine.stats().steps > steps and engine.stats().generation_tokens >= 10
            assert await pid_is_gone(pid, 1.0)

        assert seeds == [derive_seed(0, 0), derive_seed(0, 2)]

    asyncio.run(run())


def test_drain_waits_for_open_requests_and_takes_no_new_ones(make_engine):
    async def run():
        async with make_engine() as engine:
            last = asyncio.create_task(collect(engine, [SLOW, 5], max_tokens=20))
            await asyncio.sleep(0.05)
            draining = asyncio.create_task(engine.drain(10.0))
            await asyncio.sleep(0.01)
            with pytest.raises(OverloadedError, match="shutting down"):
                await collect(engine, [5], "late")
            assert await draining and (await last).outputs[0].finish_reason == "length"

    asyncio.run(run())


def test_drain_aborts_what_is_left_in_the_end(make_engine):
    async def run():
        async with make_engine() as engine:
            last = asyncio.create_task(collect(engine, [SLOW, 5], max_tokens=250))
            await asyncio.sleep(0.05)
            assert not await engine.drain(0.1)
            assert (await last).outputs[0].finish_reason == "abort"

    asyncio.run(run())


def test_what_stops_a_start_reaches_the_caller_in_its_own_words(make_engine):
    async def run():
        engine = make_engine(name="broken")
        with pytest.raises(ModelError, match=r"lm_head\.weight is missing"):
            await engine.start()
        assert not engine.is_alive
        with pytest.raises(EngineDeadError):
            await collect(engine, [5])

    asyncio.run(run())


def test_loading_reports_progress_and_can_be_given_up(make_engine):
    async def run():
        engine = make_engine(name="endless")
        stages = []
        start = asyncio.create_task(engine.start(lambda *stage: stages.append(stage)))
        while not stages:
            await asyncio.sleep(0.01)
        assert stages == [("loading weights", 1, 2)] and not engine.is_alive
        pid = engine._client.process_id
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert await pid_is_gone(pid, 5.0)

    asyncio.run(run())


def test_nothing_is_left_behind(make_engine):
    async def run():
        engines = [make_engine() for _ in range(3)]
        folders = [engine._client._folder for engine in engines]
        await asyncio.gather(*(engine.start() for engine in engines))
        pids = [engine._client.process_id for engine in engines]
        for engine in engines:
            engine.close()
            engine.close()
        assert not any(os.path.exists(folder) for folder in folders)
        assert all([await pid_is_gone(pid, 1.0) for pid in pids])

    asyncio.run(run())
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(run())
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


PARENT = """
import asyncio, sys, msgspec
from octavo.config import EngineConfig
from octavo.engine import watchdog
from octavo.engine.async_llm import AsyncLLM
from octavo.engine.input_processor import derive_seed
from octavo.sampling_params import SamplingParams

async def main():
    engine = AsyncLLM(msgspec.json.decode(sys.stdin.readline(), type=EngineConfig))
    await engine.start()
    print(engine._client.process_id, engine._client._folder, flush=True)
    async for _ in engine.generate([93, 5], SamplingParams(max_tokens=200, ignore_eos=True), "r"):
        pass
    await asyncio.sleep(1000)

asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_engine_process_goes_when_its_parent_is_killed(files, how):
    config = make_engine_config(tokenizer_path=str(files / "tokenizer"), executor="scripted")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=-1, stdout=-1, env=env, text=True) as parent:
        parent.stdin.write(msgspec.json.encode(config).decode() + "\n")
        parent.stdin.flush()
        pid, folder = parent.stdout.readline().split()
        parent.send_signal(how)
        parent.wait()
        assert asyncio.run(pid_is_gone(pid, 5.0))
        assert not os.path.exists(folder)


def test_signals_to_the_whole_group_leave_the_engine_to_its_parent(make_engine):
    async def run():
        async with make_engine() as engine:
            request = asyncio.create_task(collect(engine, [SLOW, 5], max_tokens=20))
            await asyncio.sleep(0.05)
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(engine._client.process_id, number)
            assert (await request).outputs[0].finish_reason == "length"

    asyncio.run(run())


def test_an_idle_engine_uses_no_cpu(make_engine):
    def cpu_ticks(pid):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    async def run():
        async with make_engine() as engine:
            await collect(engine, [5])
            pid = engine._client.process_id
            before = cpu_ticks(pid)
            await asyncio.sleep(1.0)
            assert cpu_ticks(pid) - before <= 1

    asyncio.run(run())
