"""One sequence's own bookkeeping."""

import pytest

from octavo.core.request import Request
from octavo.messages import PositionLogprobs, PromptLogprobs
from tests.core.worlds import make_request


def news(start, stop):
    return PromptLogprobs(start, [PositionLogprobs([position], [-1.0], 1) for position in range(start, stop)])


@pytest.mark.parametrize("again, fresh", [((1, 4), []), ((1, 5), []), ((1, 7), [5, 6]), ((3, 10), [5, 6, 7, 8, 9])])
def test_prompt_logprobs_that_were_delivered_are_left_out(again, fresh):
    request = Request(make_request("r", 10, prompt_logprobs=1), rank=(0, 0), max_total_tokens=20)
    assert len(request.take_prompt_logprobs(news(1, 5)).positions) == 4
    rest = request.take_prompt_logprobs(news(*again))
    told = [] if rest is None else [(rest.start + i, p.token_ids[0]) for i, p in enumerate(rest.positions)]
    assert told == [(position, position) for position in fresh]
    assert request.reads_prefix_cache == (again == (3, 10))


def test_hashes_grow_with_the_tokens_and_are_computed_once():
    request = Request(make_request("r", 9), rank=(0, 0), max_total_tokens=20)
    first = list(request.hash_blocks(2, 4))
    for token_id in range(4):
        request.extend([token_id])
    assert request.hash_blocks(3, 4)[:2] == first
    assert len(request.hash_blocks(1, 4)) == 3
