"""The loop that sends requests: arrivals and users, against an engine of a few lines."""

from collections.abc import Sequence
from itertools import pairwise

from octavo.bench.peers.runner import Item, Line, Output, run_steps, value_of


class CountingEngine:
    """Gives every running request one token per step, and notes how many ran."""

    def __init__(self) -> None:
        self.left: dict[int, int] = {}
        self.running: list[int] = []
        self.added: list[int] = []

    def add(self, index: int, item: Item) -> None:
        self.left[index] = item.output_tokens
        self.added.append(index)

    def step(self) -> Sequence[Output]:
        assert self.left, "a step without requests"
        self.running.append(len(self.left))
        self.left = {index: left - 1 for index, left in self.left.items()}
        outputs = [Output(index, 1, left == 0) for index, left in self.left.items()]
        self.left = {index: left for index, left in self.left.items() if left}
        return outputs


def lines(*output_tokens: int) -> list[Line]:
    return [Line([1, 2], tokens) for tokens in output_tokens]


def test_all_are_sent_at_once_without_a_limit():
    engine = CountingEngine()
    times, elapsed_s = run_steps(engine, lines(1, 2, 3))
    assert engine.running == [3, 2, 1]
    assert [len(t.token_times_s) for t in times] == [1, 2, 3]
    assert all(0 <= s - t.sent_s <= elapsed_s for t in times for s in t.token_times_s)


def test_a_user_sends_the_next_request_when_the_last_one_ended():
    engine, seen = CountingEngine(), []
    run_steps(engine, lines(2, 4, 2, 2), 2, seen.append)
    assert engine.running == [2, 2, 2, 2, 1, 1]
    assert engine.added == [0, 1, 2, 3] and max(engine.running) == 2 and seen[-1] == 4


def test_one_user_is_one_after_the_other():
    engine = CountingEngine()
    times, _ = run_steps(engine, lines(2, 1, 3), 1)
    assert engine.running == [1] * 6
    assert all(a.token_times_s[-1] <= b.sent_s for a, b in pairwise(times))


def test_a_request_is_not_sent_before_it_arrives_and_waits_from_then_on():
    engine = CountingEngine()
    items = [Line([1], 1), Line([1], 1, 0.02)]
    times, elapsed_s = run_steps(engine, items)
    assert engine.running == [1, 1] and elapsed_s >= 0.02
    assert abs(times[1].sent_s - (times[0].sent_s + 0.02)) < 0.01 and times[1].token_times_s[0] >= times[1].sent_s


def test_an_error_is_kept():
    class Failing(CountingEngine):
        def step(self) -> Sequence[Output]:
            return [Output(index, 0, True, "gone") for index in self.left]

    times, _ = run_steps(Failing(), lines(1))
    assert times[0].error == "gone" and times[0].token_times_s == []


def test_an_option_is_json_or_else_text():
    assert [value_of(text) for text in ("true", "4", "null", "sdpa", "a=b")] == [True, 4, None, "sdpa", "a=b"]
