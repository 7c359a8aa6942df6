import pytest

from octavo.engine.input_processor import InputProcessor
from octavo.engine.output_processor import OutputProcessor
from octavo.errors import ClientError, EngineDeadError, EngineError
from octavo.messages import EngineOutput, PositionLogprobs, PromptLogprobs
from octavo.outputs import Logprob
from octavo.sampling_params import SamplingParams
from octavo.tokenizer.tokenizer import load_tokenizer
from tests.engine.worlds import make_engine_config, write_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_tokenizer(write_tokenizer(tmp_path_factory.mktemp("tokenizer")))


class Desk:
    """A pair of processors and a scripted core."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.inputs = InputProcessor(make_engine_config(), tokenizer, 256)
        self.outputs = OutputProcessor(tokenizer)

    def open(self, request_id="r", prompt="hi", **params):
        submission = self.inputs.process(prompt, SamplingParams(**params), request_id)
        return self.outputs.add(submission)

    def say(self, text, engine_id="r", **fields):
        """News that bring the tokens of `text`; returns the sequences to abort."""
        ids = self.tokenizer.encode(text) if isinstance(text, str) else text
        return self.outputs.process([EngineOutput(request_id=engine_id, new_token_ids=ids, **fields)])


@pytest.fixture
def desk(tokenizer):
    return Desk(tokenizer)


def test_text_grows_and_the_end_of_sequence_token_is_not_part_of_it(desk):
    state = desk.open()
    desk.say("Hel")
    assert state.take().outputs[0].text == "Hel"
    desk.say([*desk.tokenizer.encode("lo"), 2], finish_reason="stop")
    output = state.take()
    assert (output.outputs[0].text, output.outputs[0].finish_reason, output.finished) == ("Hello", "stop", True)
    assert output.outputs[0].token_ids == [*desk.tokenizer.encode("Hello"), 2]


def test_a_stop_token_is_part_of_the_text_only_if_asked_for(desk):
    (full_stop,) = desk.tokenizer.encode(".")
    for keep, text in ((False, "ab"), (True, "ab.")):
        state = desk.open(stop_token_ids=[full_stop], include_stop_str_in_output=keep)
        desk.say("ab.", finish_reason="stop", stop_reason=full_stop)
        sample = state.result().outputs[0]
        assert (sample.text, sample.stop_reason) == (text, full_stop)


def test_a_stop_string_ends_the_request_here_and_has_it_aborted_in_the_core(desk):
    state = desk.open(stop=["own fox"])
    assert desk.say("The quick br") == []
    assert desk.say("own") == []
    assert desk.say(" fox jumps") == ["r"]
    sample = state.result().outputs[0]
    assert (sample.text, sample.finish_reason, sample.stop_reason) == ("The quick br", "stop", "own fox")
    assert sample.token_ids == desk.tokenizer.encode("The quick brown fox")
    assert state.finished and len(desk.outputs) == 0
    assert desk.say("late", finish_reason="abort") == []
    assert state.result().outputs[0].text == "The quick br"


def test_a_stop_string_in_the_last_news_wins_over_the_length(desk):
    state = desk.open(stop=["!"])
    assert desk.say("a!", finish_reason="length") == []
    assert (state.result().outputs[0].finish_reason, state.result().outputs[0].text) == ("stop", "a")


def test_text_held_back_for_a_stop_string_comes_out_at_the_end(desk):
    state = desk.open(stop=["jumps over"])
    desk.say("it jumps")
    assert state.take().outputs[0].text == "it "
    desk.say("", finish_reason="length")
    assert state.take().outputs[0].text == "it jumps"


def test_without_detokenizing_there_are_ids_only(desk):
    state = desk.open(detokenize=False)
    desk.say("abc", finish_reason="length")
    assert (state.result().outputs[0].text, len(state.result().outputs[0].token_ids)) == ("", 3)


def test_take_brings_changed_samples_only_and_result_brings_all(desk):
    state = desk.open(n=3)
    desk.say("a", "r#2")
    assert [sample.index for sample in state.take().outputs] == [2]
    assert state.take().outputs == []
    for i in range(3):
        desk.say("b", f"r#{i}", finish_reason="length")
    output = state.take()
    assert [sample.index for sample in output.outputs] == [0, 1, 2] and output.finished
    assert [sample.text for sample in state.result().outputs] == ["b", "b", "ab"]


def test_logprobs_carry_rank_and_text_and_end_with_the_stop_string(desk):
    ids = desk.tokenizer.encode("ab!c")
    position = [PositionLogprobs([token_id, ids[0], 50], [-2.5, -0.1, -0.7], 9) for token_id in ids]
    state = desk.open(logprobs=2, stop=["!"])
    desk.say("ab!c", logprobs=position)
    sample = state.result().outputs[0]
    assert len(sample.logprobs) == len(sample.token_ids) == 3 and sample.cumulative_logprob == -7.5
    assert sample.logprobs[1] == {
        ids[1]: Logprob(-2.5, 9, "b"),
        ids[0]: Logprob(-0.1, 1, "a"),
        50: Logprob(-0.7, 2, desk.tokenizer.token_text(50)),
    }


def test_prompt_logprobs_are_placed_by_position_and_a_repeated_part_changes_nothing(desk):
    state = desk.open(prompt="abcd", prompt_logprobs=0)
    ids = desk.tokenizer.encode("abcd")
    parts = {start: PositionLogprobs([ids[start]], [-float(start)], start) for start in (1, 2, 3)}
    desk.say("", prompt_logprobs=PromptLogprobs(1, [parts[1], parts[2]]))
    desk.say("", prompt_logprobs=PromptLogprobs(1, [parts[1]]))
    desk.say("", prompt_logprobs=PromptLogprobs(2, [parts[2], parts[3]]))
    first, *rest = state.result().prompt_logprobs
    assert first is None
    assert rest == [{ids[i]: Logprob(-float(i), i, "abcd"[i])} for i in (1, 2, 3)]


def test_an_id_in_use_is_refused_until_its_request_has_ended(desk):
    desk.open("r")
    with pytest.raises(ClientError, match="'r' is in use"):
        desk.open("r")
    desk.say("x", finish_reason="length")
    desk.open("r")
    desk.open("s", n=2)
    with pytest.raises(ClientError, match="'s#0' is in use"):
        desk.open("s#0")


def test_abort_ends_the_open_samples_and_keeps_the_finished_ones(desk):
    state = desk.open(n=2)
    desk.say("a", "r#0", finish_reason="stop")
    desk.say("b", "r#1")
    assert desk.outputs.abort(["r", "unknown"]) == ["r#1"]
    assert [sample.finish_reason for sample in state.result().outputs] == ["stop", "abort"]
    assert state.finished and state.error is None and desk.outputs.abort(["r"]) == []


def test_an_error_of_a_sample_is_told_with_its_reason(desk):
    state = desk.open()
    desk.say("", finish_reason="error", error="no token is left")
    assert state.result().outputs[0].error == "no token is left"
    assert isinstance(state.error, EngineError) and str(state.error) == "no token is left"


def test_every_open_request_fails_with_an_error_of_its_own_when_the_engine_is_lost(desk):
    states = [desk.open(f"r{i}") for i in range(3)]
    desk.outputs.fail_all(lambda: EngineDeadError("gone"))
    assert len({id(state.error) for state in states}) == 3
    assert all(state.finished and isinstance(state.error, EngineDeadError) for state in states)
    assert all(state.result().outputs[0].finish_reason == "error" for state in states)


def test_text_that_nobody_had_read_is_still_there_when_the_engine_is_lost(desk):
    state = desk.open(stop=["lost"])
    for letter in "a lo":
        desk.say(letter)
    desk.outputs.fail_all(lambda: EngineDeadError("gone"))
    assert state.result().outputs[0].text == "a "  # the rest may have been the beginning of a stop string


def test_a_fault_in_one_answer_leaves_the_others_alone(desk, monkeypatch):
    bad, good = desk.open("bad", n=2), desk.open("good")
    monkeypatch.setattr(bad.samples[0], "_detokenizer", object())
    assert desk.say("x", "bad#0") == ["bad#0", "bad#1"]
    desk.say("x", "good", finish_reason="length")
    assert isinstance(bad.error, EngineError) and "could not be decoded" in bad.result().outputs[1].error
    assert bad.finished and good.result().outputs[0].text == "x" and len(desk.outputs) == 0


def test_times_and_cached_tokens_are_those_of_the_first_news(desk):
    state = desk.open()
    desk.say("a", scheduled_time_s=1.0, first_token_time_s=2.0, num_cached_tokens=16)
    desk.say("b", finish_reason="length", num_preemptions=3)
    output = state.result()
    assert (output.metrics.scheduled_time_s, output.metrics.first_token_time_s) == (1.0, 2.0)
    assert output.metrics.finished_time_s >= output.metrics.arrival_time_s > 0
    assert (output.num_cached_tokens, output.metrics.num_preemptions) == (16, 3)
