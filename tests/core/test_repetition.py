"""The detector against the definition, and what it ends."""

import random

import pytest

from octavo.core.repetition import RepetitionDetector
from octavo.core.request import Request
from octavo.errors import ClientError
from octavo.sampling_params import RepetitionDetectionParams
from tests.core.worlds import make_request

TWICE_AB = RepetitionDetectionParams(max_pattern_size=2, min_count=2)


def ends_with_a_pattern(tokens: list[int], params: RepetitionDetectionParams) -> bool:
    for size in range(params.min_pattern_size or 1, params.max_pattern_size + 1):
        tail = tokens[-size * params.min_count :]
        if len(tail) == size * params.min_count and tail == tail[:size] * params.min_count:
            return True
    return False


@pytest.mark.parametrize("seed", range(40))
def test_a_pattern_is_noticed_with_the_token_that_completes_it_and_never_else(seed):
    draw = random.Random(seed)
    largest = draw.randint(1, 6)
    params = RepetitionDetectionParams(
        max_pattern_size=largest, min_pattern_size=draw.randint(0, largest), min_count=draw.randint(2, 4)
    )
    detector, tokens, found = RepetitionDetector(params), [], 0
    while len(tokens) < 300:
        tokens.append(tokens[-draw.randint(1, 7)] if len(tokens) > 7 and draw.random() < 0.8 else draw.randint(0, 4))
        noticed = detector.push(tokens[-1])
        assert noticed == ends_with_a_pattern(tokens, params)
        found += noticed
    assert found


def test_the_answer_s_repetition_ends_it_and_the_prompt_s_does_not():
    spec = make_request("r", [7, 8, 7], max_tokens=20)
    spec.sampling.repetition_detection = TWICE_AB
    request = Request(spec, rank=(0, 0), max_total_tokens=23)
    assert request.extend([8]) == ([8], None)
    assert request.extend([7, 8, 7, 8]) == ([7, 8, 7], "repetition")


def test_an_answer_ends_for_repeating_itself_no_sooner_than_min_tokens():
    spec = make_request("r", [3], max_tokens=20, min_tokens=3)
    spec.sampling.repetition_detection = TWICE_AB
    request = Request(spec, rank=(0, 0), max_total_tokens=21)
    assert request.extend([5, 5, 5, 5]) == ([5, 5, 5], "repetition")


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"max_pattern_size": -1}, "max_pattern_size"),
        ({"max_pattern_size": 1025, "min_count": 2}, "max_pattern_size"),
        ({"max_pattern_size": 3, "min_count": 1}, "min_count"),
        ({"max_pattern_size": 3, "min_pattern_size": 4, "min_count": 2}, "min_pattern_size"),
        ({"max_pattern_size": True, "min_count": 2}, "max_pattern_size"),
    ],
)
def test_settings_that_mean_nothing_are_refused_by_name(values, field):
    with pytest.raises(ClientError) as caught:
        RepetitionDetectionParams(**values)
    assert caught.value.param == f"repetition_detection.{field}"
