"""The masks of one step, written into one buffer. Knows rows by their numbers; no logits."""

import ctypes
from collections import Counter

from llguidance import LLExecutor

from octavo.grammar.constraint import Constraint
from octavo.messages import TokenMasks

FEWEST_TO_SHARE = 4
"""From this many masks on they are shared out over threads."""


class MaskWriter:
    """Reuses its buffer, which grows with the largest step.

    Args:
        vocab_size: of the model's logits.
    """

    def __init__(self, vocab_size: int) -> None:
        self._words = -(-vocab_size // 32)
        self._buffer = bytearray()
        self._executor: LLExecutor | None = None

    def write(self, constraints: dict[int, Constraint]) -> TokenMasks | None:
        """The masks of the sampling rows that have a constraint; None if there are none."""
        if not constraints:
            return None
        for constraint in constraints.values():
            constraint.begin()
        for effort, num_rows in Counter(constraint.effort for constraint in constraints.values()).items():
            effort.begin_step(num_rows)
        rows = [row for row, constraint in constraints.items() if constraint.error is None]
        ready = [constraints[row] for row in rows]
        if ready:
            self._fill(ready)
        return TokenMasks(
            rows=rows,
            bits=self._buffer,
            words=self._words,
            complete=[constraint.is_complete for constraint in ready],
            errors={row: each.error for row, each in constraints.items() if each.error is not None},
            refused={row for row, each in constraints.items() if each.is_refused},
        )

    def _fill(self, constraints: list[Constraint]) -> None:
        size = 4 * self._words
        if len(constraints) * size > len(self._buffer):
            self._buffer = bytearray(len(constraints) * size)
        view = memoryview(self._buffer)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))
        computed = []
        for index, constraint in enumerate(constraints):
            matcher = constraint.matcher
            if matcher is not None and constraint.effort.is_high:  # alone, so that its time is known
                constraint.compute(matcher, address + index * size, size)
            elif matcher is not None:
                computed.append((matcher, index))
        if len(computed) >= FEWEST_TO_SHARE:
            if self._executor is None:
                self._executor = LLExecutor()
            self._executor.unsafe_compute_mask_ptr(computed, address, size, len(constraints))
        else:
            for matcher, index in computed:
                matcher.unsafe_compute_mask_ptr(address + index * size, size)
        for index, constraint in enumerate(constraints):
            constraint.adjust(view[index * size : (index + 1) * size])
