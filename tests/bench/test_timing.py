"""Figures from token times, against hand-made ones."""

import random
import statistics

from octavo.bench.peers.runner import RequestTimes
from octavo.bench.timing import percentiles, summarize


def test_figures_of_two_requests():
    requests = [RequestTimes(0.0, 10, [1.0, 1.5, 2.5]), RequestTimes(1.0, 20, [1.25])]
    figures = summarize(requests, elapsed_s=2.5)
    assert figures["output_tokens"] == 4
    assert figures["output_tokens_per_s"] == 1.6
    assert figures["total_tokens_per_s"] == 13.6
    assert figures["ttft_s"] == {"p50": 0.25, "p95": 1.0, "p99": 1.0}
    assert figures["itl_s"] == {"p50": 0.5, "p95": 1.0, "p99": 1.0}


def test_a_failed_request_counts_as_an_error_and_nowhere_else():
    figures = summarize([RequestTimes(0.0, 10, [1.0], error="gone"), RequestTimes(0.0, 5, [1.0])], 1.0)
    assert (figures["requests"], figures["errors"], figures["prompt_tokens"], figures["output_tokens"]) == (1, 1, 5, 1)


def test_percentiles_split_a_sample_where_they_say():
    rng = random.Random(0)
    values = [rng.random() for _ in range(1000)]
    found = percentiles(values)
    for p, value in ((50, found["p50"]), (95, found["p95"]), (99, found["p99"])):
        assert abs(sum(v <= value + 1e-5 for v in values) - 10 * p) <= 1
    assert abs(found["p50"] - statistics.median(values)) < 0.01


def test_percentiles_of_nothing_are_unknown():
    assert percentiles([]) == {"p50": None, "p95": None, "p99": None}


def test_gaps_beside_prompts_are_those_in_which_another_request_waited():
    stream = RequestTimes(0.0, 1, [1.0, 2.0, 3.0, 6.0, 7.0])
    late = RequestTimes(3.5, 100, [6.0])
    figures = summarize([stream, late], 7.0)
    assert figures["itl_s"]["p50"] == 1.0 and figures["itl_s"]["p99"] == 3.0
    assert figures["itl_beside_prompts_s"] == {"p50": 3.0, "p95": 3.0, "p99": 3.0}
    assert summarize([stream], 7.0)["itl_beside_prompts_s"]["p50"] is None
