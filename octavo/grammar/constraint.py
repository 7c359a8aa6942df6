"""One sequence and the grammar it must match: which tokens may come next. Knows no rows and no logits.

What is allowed depends on the sequence's own tokens alone, so it survives a preemption and never depends on the batch.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Future

from llguidance import LLMatcher

from octavo.errors import ClientError
from octavo.grammar.compiler import Compiled, ThinkingEnd, describe
from octavo.grammar.effort import Effort


class Constraint:
    """Follows one sequence, from the moment its grammar is asked for.

    Args:
        compiled: of the sequence's grammar; nothing but `is_ready` may be used before it is there.
        stop_token_ids: of the caller; allowed wherever the answer may end.

    Attributes:
        error: why the sequence cannot go on.
        is_refused: whether its grammar is why.
        effort: what following the grammar costs; its own until the grammar is there.
    """

    def __init__(self, compiled: "Future[Compiled]", stop_token_ids: Iterable[int] = ()) -> None:
        self._compiled = compiled
        self._stop_token_ids = list(stop_token_ids)
        self._begun = False
        self._matcher: LLMatcher | None = None
        self._thinking: _Thinking | None = None
        self.error: str | None = None
        self.is_refused = False
        self.effort = Effort()

    @property
    def is_ready(self) -> bool:
        """Whether the grammar has been compiled, or turned out to be wrong."""
        return self._compiled.done()

    def begin(self) -> None:
        """Take the compiled grammar over; called again, nothing."""
        if self._begun:
            return
        self._begun = True
        try:
            compiled = self._compiled.result()
        except ClientError as err:
            self._refuse(err.message)
        except Exception as err:  # a tokenizer that cannot be read, say; only those who need it suffer
            self.error = f"the grammar could not be compiled: {type(err).__name__}: {err}"
        else:
            self._eos_token_ids = compiled.tokens.eos_token_ids
            self._matcher = None if compiled.matcher is None else compiled.matcher.deep_copy()
            self.effort = compiled.effort
            self.effort.welcome()
            if compiled.thinking is not None:
                self._thinking = _Thinking(compiled.thinking, compiled.tokens.vocabulary.token_bytes)

    @property
    def is_complete(self) -> bool:
        """Whether nothing but the end can come."""
        return self._matcher is not None and self._matcher.is_stopped()

    def consume(self, token_ids: list[int]) -> None:
        """The sequence has gone on; sets `error` if it must not."""
        for token_id in token_ids:
            if self._thinking is not None:
                self._thinking.see(token_id)
            if self._matcher is not None and not self._consume(self._matcher, token_id):
                return

    def _consume(self, matcher: LLMatcher, token_id: int) -> bool:
        if self._is_too_slow():
            return False
        with self.effort:
            is_match = matcher.consume_token(token_id)
        if not is_match:
            self._refuse(describe(matcher.get_error()))
        return is_match

    def _is_too_slow(self) -> bool:
        error = self.effort.error
        if error is not None:
            self._refuse(error)
        return error is not None

    @property
    def matcher(self) -> LLMatcher | None:
        """What computes the next mask, before `adjust`; None if `adjust` makes it all."""
        forced = self._thinking is not None and self._thinking.forced is not None
        return None if forced else self._matcher

    def compute(self, matcher: LLMatcher, address: int, size: int) -> None:
        """Compute what `adjust` wants, unless the grammar has taken too long already."""
        if not self._is_too_slow():
            with self.effort:
                matcher.unsafe_compute_mask_ptr(address, size)

    def adjust(self, mask: memoryview) -> None:
        """Correct the mask that `matcher` computed, or make one: a bit per token, in bytes, lowest first."""
        matcher = self._matcher
        if self._thinking is not None and self._thinking.is_open:
            forced = self._thinking.forced
            if forced is not None:
                mask[:] = bytes(len(mask))
                _set(mask, forced)
                return
            if matcher is not None:
                for token_id in self._eos_token_ids:
                    _clear(mask, token_id)
        if matcher is None:
            mask[:] = b"\xff" * len(mask)
        elif matcher.is_error():
            self._refuse(describe(matcher.get_error()))
        elif self._stop_token_ids and matcher.is_accepting():
            for token_id in self._stop_token_ids:
                _set(mask, token_id)

    def _refuse(self, message: str) -> None:
        self.error, self.is_refused = message, True


class _Thinking:
    """Looks for the end of the thinking, and brings it about when the budget is spent.

    Attributes:
        is_open: whether the model thinks, as far as it is known.
    """

    def __init__(self, end: ThinkingEnd, token_bytes: Callable[[int], bytes]) -> None:
        self.is_open = not end.begin
        self._may_begin = bool(end.begin)
        self._lead = b""
        self._end = end
        self._token_bytes = token_bytes
        self._num_tokens = 0
        self._last_ids: list[int] = []
        self._last_bytes = b""

    @property
    def forced(self) -> int | None:
        """The token that must come now, because the budget is spent."""
        budget, marker_ids = self._end.budget, self._end.token_ids
        if not self.is_open or budget is None or self._num_tokens < budget:
            return None
        if self._end.text is not None:
            return self._next_of_text(self._end.text)
        num_written = len(self._last_ids)
        while self._last_ids[len(self._last_ids) - num_written :] != marker_ids[:num_written]:
            num_written -= 1
        return marker_ids[num_written]

    def _next_of_text(self, marker: bytes) -> int:
        """Goes on with what there is of the marker, whichever tokens have spelled it."""
        written = next(n for n in range(len(marker) - 1, -1, -1) if self._last_bytes.endswith(marker[:n]))
        found = self._end.next_ids[written]
        return self._end.token_ids[0] if found is None else found

    def see(self, token_id: int) -> None:
        """One more token."""
        if self._may_begin:
            self._look_for_begin(token_id)
            return
        if not self.is_open:
            return
        self._num_tokens += 1
        marker_ids, marker = self._end.token_ids, self._end.text
        self._last_ids = [*self._last_ids, token_id][-len(marker_ids) :]
        self.is_open = self._last_ids != marker_ids
        if marker is not None:
            text = self._last_bytes + self._token_bytes(token_id)
            self.is_open = self.is_open and marker not in text
            self._last_bytes = text[1 - len(marker) :] if len(marker) > 1 else b""

    def _look_for_begin(self, token_id: int) -> None:
        """The first tokens decide whether the model thinks at all."""
        self._lead = (self._lead + self._token_bytes(token_id)).lstrip()
        begin = self._end.begin
        self.is_open = self._lead.startswith(begin)
        self._may_begin = not self.is_open and begin.startswith(self._lead)


def _set(mask: memoryview, token_id: int) -> None:
    mask[token_id >> 3] |= 1 << (token_id & 7)


def _clear(mask: memoryview, token_id: int) -> None:
    mask[token_id >> 3] &= 0xFF ^ 1 << (token_id & 7)
