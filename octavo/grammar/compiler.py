"""Compiled grammars: made in threads of their own, off the step, and kept up to a cap. Knows no requests."""

import re
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import msgspec
from llguidance import LLMatcher, LLParserLimits

from octavo.errors import ClientError
from octavo.grammar.effort import WAY_OUT, Effort
from octavo.grammar.thinking import GrammarList, Thinking
from octavo.grammar.vocabulary import LoadTokens, Tokens, Vocabulary

LIMITS = LLParserLimits(verbose_errors=False)
"""llguidance's own bounds on the work for a grammar and for a token. An error must not tell the grammar's text."""

MAX_CACHED_GRAMMARS = 256
MAX_CACHED_BYTES = 16 * 1024 * 1024
"""Of grammars' text. What is compiled from it takes some ten times as much, and grows with use."""

COMPILE_THREADS = 2

_OVER_A_LIMIT = re.compile(r"max is|limit|fuel|too (many|large|big)|exceed")


class ThinkingEnd(NamedTuple):
    """How thinking begins and ends, in tokens.

    Attributes:
        token_ids: of the marker that ends it.
        text: that marker, if it is nothing but text: other tokens may spell it too.
        next_ids: of a text, the token to write once so many of its bytes are there; None inside a character.
        budget: as in `Thinking`.
        begin: what spells the marker that begins it, special tokens included; b"" if it has begun.
    """

    token_ids: list[int]
    text: bytes | None
    next_ids: list[int | None]
    budget: int | None
    begin: bytes


class Compiled(NamedTuple):
    """What all sequences with a grammar share.

    Attributes:
        matcher: in its first state, to be copied; None allows everything.
        effort: what following it has cost.
    """

    matcher: LLMatcher | None
    thinking: ThinkingEnd | None
    tokens: Tokens
    effort: Effort


class GrammarCompiler:
    """Compiles for one model, whose vocabulary is prepared when the first grammar arrives.

    Args:
        load_tokens: called once, in a thread.
    """

    def __init__(self, load_tokens: LoadTokens) -> None:
        self._load_tokens = load_tokens
        self._threads: ThreadPoolExecutor | None = None
        self._tokens: Future[Tokens]
        self._cache: OrderedDict[str, Future[Compiled]] = OrderedDict()
        self._num_cached_bytes = 0

    def compile(self, grammar: str) -> "Future[Compiled]":
        """The grammar's compiled form, now or later; ClientError if there is none."""
        if grammar in self._cache:
            self._cache.move_to_end(grammar)
            return self._cache[grammar]
        if self._threads is None:
            self._threads = ThreadPoolExecutor(COMPILE_THREADS, thread_name_prefix="grammar")
            self._tokens = self._threads.submit(self._load_tokens)
        self._cache[grammar] = self._threads.submit(self._compile, grammar)
        self._num_cached_bytes += len(grammar)
        while len(self._cache) > MAX_CACHED_GRAMMARS or self._num_cached_bytes > MAX_CACHED_BYTES:
            oldest, _ = self._cache.popitem(last=False)
            self._num_cached_bytes -= len(oldest)
        return self._cache[grammar]

    def close(self) -> None:
        """Give the threads back."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _compile(self, grammar: str) -> Compiled:
        return compile_grammar(grammar, self._tokens.result())


def compile_grammar(grammar: str, tokens: Tokens) -> Compiled:
    """Compile what `build_grammar` or `after_thinking` made.

    Raises:
        ClientError: it is wrong, or no token can begin an answer.
    """
    read = msgspec.json.decode(grammar, type=GrammarList)
    thinking = None if read.thinking is None else _thinking_end(read.thinking, tokens.vocabulary)
    if not read.grammars:
        return Compiled(None, thinking, tokens, Effort())
    matcher = LLMatcher(tokens.ll_tokenizer, grammar, limits=LIMITS, log_level=0)
    if not matcher.is_error():
        matcher.compute_bitmask()  # the first one costs the most, and finds out whether anything can match
    if matcher.is_error():
        raise ClientError(describe(matcher.get_error()), param="structured_outputs")
    return Compiled(matcher, thinking, tokens, Effort())


def describe(error: str) -> str:
    """llguidance's message without its dumps."""
    message = error.partition("<non-verbose/>")[0].strip()
    if message.startswith("NoExtensionBias"):
        return "nothing can match the grammar"
    too_much = _OVER_A_LIMIT.search(message) is not None
    return f"the grammar cannot be followed: {message[:400]}{'; ' + WAY_OUT if too_much else ''}"


def _thinking_end(thinking: Thinking, vocabulary: Vocabulary) -> ThinkingEnd:
    parts = [
        [part] if isinstance(part, int) else vocabulary.encode(part, add_special_tokens=False) for part in thinking.end
    ]
    all_text = all(isinstance(part, str) for part in thinking.end)
    text = "".join(map(str, thinking.end)).encode() if all_text else None
    next_ids = [_first_id(text[place:], vocabulary) for place in range(len(text or b""))] if text else []
    begin = b"".join(
        vocabulary.token_bytes(part) if isinstance(part, int) else part.encode() for part in thinking.begin
    )
    return ThinkingEnd([token_id for part in parts for token_id in part], text, next_ids, thinking.budget, begin)


def _first_id(raw: bytes, vocabulary: Vocabulary) -> int | None:
    try:
        return vocabulary.encode(raw.decode(), add_special_tokens=False)[0]
    except UnicodeDecodeError:
        return None
