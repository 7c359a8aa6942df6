import json

import pytest

from octavo.engine import crash_dump
from octavo.engine.crash_dump import KEPT_S, STATS_INTERVAL_S, CrashRecorder, shape_of, shape_of_params
from octavo.engine.input_processor import InputProcessor
from octavo.engine.output_processor import OutputProcessor
from octavo.errors import ConfigError
from octavo.messages import EngineOutput, SchedulerStats
from octavo.sampling_params import SamplingParams, StructuredOutputsParams
from octavo.tokenizer.tokenizer import load_tokenizer
from tests.engine.worlds import make_engine_config, write_tokenizer


class World:
    """A recorder whose clock stands where a test puts it, and requests to record."""

    def __init__(self, folder):
        self.now_s = 1000.0
        self.folder = folder / "dumps"
        self.recorder = CrashRecorder(str(self.folder), clock=lambda: self.now_s)
        tokenizer = load_tokenizer(str(write_tokenizer(folder / "tokenizer")))
        self._inputs = InputProcessor(make_engine_config(), tokenizer, 256)
        self._outputs = OutputProcessor(tokenizer)

    def request(self, name, **params):
        submission = self._inputs.process("secret prompt", SamplingParams(**params), name)
        state = self._outputs.add(submission)
        state.metrics.arrival_time_s = self.now_s
        self._outputs.process([EngineOutput(request_id=name, new_token_ids=[77, 78, 79])])
        return state

    def dump(self, still_open=()):
        self.recorder.write("it fell", {"device": "cpu"}, still_open)
        return sorted(self.folder.iterdir())[-1].read_text()


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_a_dump_has_lengths_times_and_parameters_but_nothing_that_was_said(world):
    params = {"stop": ["hush"], "max_tokens": 9, "temperature": 0.5, "logit_bias": {71: 1.0}, "bad_words": ["whisper"]}
    text = world.dump([world.request("r1", **params)])
    assert not any(word in text for word in ("secret", "hush", "whisper", "71", "77"))
    dump = json.loads(text)
    [shape] = dump["open"]
    assert (dump["cause"], dump["engine"], dump["now_s"]) == ("it fell", {"device": "cpu"}, 1000.0)
    assert (shape["request_id"], shape["num_prompt_tokens"], shape["arrival_s"]) == ("r1", 13, 1000.0)
    assert shape["samples"] == [{"num_tokens": 3, "finish_reason": None}]
    assert shape["params"] == {
        "stop": "1 items", "max_tokens": 9, "temperature": 0.5, "logit_bias": "1 items", "bad_words": "1 items",
    }  # fmt: skip


def test_of_a_grammar_only_its_kind_and_size_are_told():
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="secret"))
    assert shape_of_params(params)["structured_outputs"]["regex"] == "6 characters"


def test_ended_requests_are_kept_for_minutes_and_up_to_a_number(world, monkeypatch):
    monkeypatch.setattr(crash_dump, "MAX_REQUESTS", 3)
    world.recorder = CrashRecorder(str(world.folder), clock=lambda: world.now_s)
    for i in range(5):
        world.recorder.end(shape_of(world.request(f"r{i}")))
        world.now_s += 1
    assert [shape["request_id"] for shape in json.loads(world.dump())["ended"]] == ["r2", "r3", "r4"]
    world.now_s += KEPT_S - 1
    assert [shape["request_id"] for shape in json.loads(world.dump())["ended"]] == ["r4"]


def test_the_scheduler_is_noted_once_a_second(world):
    for i in range(10):
        world.recorder.observe(SchedulerStats(steps=i))
        world.now_s += STATS_INTERVAL_S / 2
    assert [moment["stats"]["steps"] for moment in json.loads(world.dump())["stats"]] == [0, 2, 4, 6, 8]


def test_a_folder_that_cannot_be_is_an_error_at_the_start_and_a_full_disk_is_none_at_the_end(world, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--crash-dump-folder .*/file/x"):
        CrashRecorder(str(tmp_path / "file" / "x"))
    world.folder.rmdir()
    world.recorder.write("it fell", {}, [])
