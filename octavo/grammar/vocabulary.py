"""A model's vocabulary as llguidance wants it. Knows a tokenizer by the little it asks of one."""

from collections.abc import Callable, Sequence, Set
from functools import cached_property
from typing import NamedTuple, Protocol

from llguidance import LLTokenizer, TokenizerWrapper


class Vocabulary(Protocol):
    """What there is to know of a tokenizer; `octavo.tokenizer.tokenizer.Tokenizer` is one."""

    @property
    def special_ids(self) -> Set[int | None]: ...
    def token_bytes(self, token_id: int) -> bytes: ...
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...


class Tokens(NamedTuple):
    """A model's vocabulary, ready for matching."""

    vocabulary: Vocabulary
    ll_tokenizer: LLTokenizer
    eos_token_ids: list[int]


LoadTokens = Callable[[], Tokens]


def make_tokens(vocabulary: Vocabulary, num_logits: int, eos_token_ids: Sequence[int]) -> Tokens:
    """Takes a tenth of a second for 50,000 tokens and one or two for 250,000, most of it without other threads running.

    Args:
        num_logits: the model's; ids that the tokenizer does not have are never allowed.
        eos_token_ids: allowed where the answer may end; at least one.
    """
    wrapper = TokenizerWrapper(_Spelling(vocabulary, num_logits, eos_token_ids))
    return Tokens(vocabulary, LLTokenizer(wrapper, eos_token=list(eos_token_ids)), list(eos_token_ids))


class _Spelling:
    """The attributes that `TokenizerWrapper` takes over, and a tokenization for text that the grammar forces."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, num_logits: int, eos_token_ids: Sequence[int]) -> None:
        self.eos_token_id = eos_token_ids[0]
        self.tokens = [vocabulary.token_bytes(token_id) for token_id in range(num_logits)]
        known = {token_id for token_id in vocabulary.special_ids if token_id is not None and token_id < num_logits}
        self.special_token_ids = sorted(known.union(eos_token_ids))
        self._encode = vocabulary.encode

    def __call__(self, data: bytes) -> list[int]:
        """Ids that spell exactly `data`: as the model's own tokenizer cuts it, or, where that adds something (the space
        of a SentencePiece vocabulary, say), the longest token first.
        """
        token_ids = self._encode(data.decode("utf-8", "replace"), add_special_tokens=False)
        if b"".join(self.tokens[token_id] for token_id in token_ids) == data:
            return token_ids
        return self._longest_first(data)

    def _longest_first(self, data: bytes) -> list[int]:
        token_ids, position = [], 0
        while position < len(data):
            lengths = range(min(len(data) - position, self._max_length), 0, -1)
            found = next((n for n in lengths if data[position : position + n] in self._by_bytes), None)
            if found is None:  # this vocabulary cannot spell it
                break
            token_ids.append(self._by_bytes[data[position : position + found]])
            position += found
        return token_ids

    @cached_property
    def _by_bytes(self) -> dict[bytes, int]:
        special = set(self.special_token_ids)
        return {raw: token_id for token_id, raw in enumerate(self.tokens) if raw and token_id not in special}

    @cached_property
    def _max_length(self) -> int:
        return max(map(len, self._by_bytes))
