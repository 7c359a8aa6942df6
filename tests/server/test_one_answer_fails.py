"""A fault of ours in one answer, in the HTTP process: that request ends with an error, others and the server go on.
And nothing of a request stays behind, however it ended (MEM-01; memory itself is for tests/e2e/soak.py).
"""

import asyncio
import gc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch import Tensor

from octavo.engine.output_processor import RequestState, SampleState
from octavo.messages import SchedulerOutput
from octavo.outputs import CompletionOutput
from octavo.tokenizer.detokenizer import Detokenizer
from octavo.worker.model_runner import ModelRunner
from tests.script_model import byte_id
from tests.server.world import World, assert_refused, joined, strict_json, wait_for

BODY: dict[str, Any] = {"prompt": "hello", "max_tokens": 60, "temperature": 0, "ignore_eos": True}


@pytest.mark.parametrize("name", ["append", "completion"])
def test_a_fault_in_one_answer_ends_that_request_alone(
    varied: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    reference = varied.complete(**BODY)["choices"][0]["text"]
    original = getattr(SampleState, name)

    def failing(sample: SampleState, *args: Any) -> CompletionOutput | bool:
        if "bad" in sample.engine_id and len(sample.token_ids) > 3:
            raise RuntimeError("made to fail")
        result: CompletionOutput | bool = original(sample, *args)
        return result

    monkeypatch.setattr(SampleState, name, failing)
    with ThreadPoolExecutor(4) as pool:
        good = [pool.submit(varied.complete, **BODY) for _ in range(3)]
        assert_refused(varied.post("/v1/completions", **BODY, request_id="bad"), 500)
        text = varied.post("/v1/completions", **BODY, request_id="bad", stream=True).text
        events = [strict_json(line.removeprefix("data: ")) for line in text.splitlines() if line]
        assert events[-1]["error"]["type"] == "InternalServerError"
        assert reference.startswith(joined(events[:-1]))
        assert [each.result()["choices"][0]["text"] for each in good] == [reference] * 3
    varied.wait_until_idle()
    assert varied.http.get("/health").status_code == 200


def test_mem_01_no_object_or_task_of_a_request_stays(varied: World) -> None:
    def alive() -> Counter[str]:
        gc.collect()
        kinds = (RequestState, SampleState, Detokenizer)
        found = Counter(type(each).__name__ for each in gc.get_objects() if type(each) in kinds)
        found["Task"] = len(asyncio.all_tasks(varied.loop))
        return found

    varied.complete(**BODY)
    varied.wait_until_idle()
    before = alive()
    for number in range(20):
        varied.complete(f"{number}", max_tokens=3, n=2)
        stream = varied.events("/v1/completions", **BODY, stream=True)
        next(stream)
        stream.close()
        assert_refused(varied.post("/v1/completions", **BODY | {"temperature": -1}))
    varied.wait_until_idle()
    wait_for(lambda: not alive() - before)


def test_fifty_poison_prompts_alone_and_in_batches_leave_the_engine_up_with_right_answers(
    varied: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = varied.complete(**BODY)["choices"][0]["text"]
    compute = ModelRunner._compute

    def failing(runner: ModelRunner, plan: SchedulerOutput) -> Tensor:
        if any(runner.rows.token_ids[row, 0] == byte_id("~") for row in plan.rows):
            raise RuntimeError("made to fail")
        return compute(runner, plan)

    monkeypatch.setattr(ModelRunner, "_compute", failing)

    def poison(number: int) -> None:
        error = assert_refused(varied.post("/v1/completions", prompt=f"~{number}", max_tokens=5), 500)
        assert "made to fail" in error["message"]

    for number in range(50):
        poison(number)
    with ThreadPoolExecutor(16) as pool:
        bad = [pool.submit(poison, number) for number in range(50)]
        good = [pool.submit(varied.complete, **BODY) for _ in range(6)]
        assert [each.result()["choices"][0]["text"] for each in good] == [reference] * 6
        assert [each.result() for each in bad] == [None] * 50
    varied.wait_until_idle()
    assert varied.http.get("/health").status_code == 200
