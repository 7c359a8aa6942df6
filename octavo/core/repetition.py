"""Notice an answer that is stuck: a pattern of tokens stands at its end several times in a row. Knows token ids."""

from collections import deque

from octavo.sampling_params import RepetitionDetectionParams


class RepetitionDetector:
    """Follows one answer. A token costs a step for each of its earlier places within reach of a pattern."""

    def __init__(self, params: RepetitionDetectionParams) -> None:
        self._min_size = params.min_pattern_size or 1
        self._max_size = params.max_pattern_size
        self._min_count = params.min_count
        self._places: dict[int, deque[int]] = {}
        self._num_tokens = 0
        # By distance: how many of the last tokens are those that stand so far before them.
        self._repeats: dict[int, int] = {}

    def push(self, token_id: int) -> bool:
        """Take in the next token. Returns whether the answer now ends with a pattern often enough."""
        place = self._num_tokens
        self._num_tokens += 1
        places = self._places.setdefault(token_id, deque())
        while places and place - places[0] > self._max_size:
            places.popleft()
        before = self._repeats
        self._repeats = {size: before.get(size, 0) + 1 for other in places if (size := place - other) >= self._min_size}
        places.append(place)
        return any(count >= size * (self._min_count - 1) for size, count in self._repeats.items())
