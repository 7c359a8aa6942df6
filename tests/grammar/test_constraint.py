"""Following a sequence: a vocabulary of bytes and a few longer tokens, a thread pool, no model."""

import time
from collections.abc import Iterable
from concurrent.futures import Future

import pytest
from llguidance import LLParserLimits

from octavo.grammar.build import build_grammar, lark_grammar
from octavo.grammar.compiler import MAX_CACHED_GRAMMARS, Compiled, GrammarCompiler, compile_grammar
from octavo.grammar.constraint import Constraint
from octavo.grammar.effort import MOST_DEBT_SECONDS, STEP_SECONDS
from octavo.grammar.masks import FEWEST_TO_SHARE, MaskWriter
from octavo.grammar.thinking import after_thinking
from octavo.grammar.vocabulary import Tokens, make_tokens
from octavo.sampling_params import StructuredOutputsParams

EOS, TURN = 256, 257
LONGER = ["</", "think", ">", '{"', ">yes"]
VOCAB_SIZE = 300


class Bytes:
    """Ids 0 - 255 are bytes, then two special tokens, then LONGER."""

    special_ids = frozenset([EOS, TURN])

    def token_bytes(self, token_id: int) -> bytes:
        if token_id < 256:
            return bytes([token_id])
        return [b"<eos>", b"<turn>", *map(str.encode, LONGER), b""][min(token_id - 256, 2 + len(LONGER))]

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [3, *text.encode()] if add_special_tokens else list(text.encode())


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    return make_tokens(Bytes(), VOCAB_SIZE, [EOS])


def following(tokens: Tokens, grammar: str, stop_token_ids: Iterable[int] = ()) -> Constraint:
    done: Future[object] = Future()
    done.set_result(compile_grammar(grammar, tokens))
    return Constraint(done, stop_token_ids)  # type: ignore[arg-type]


def allowed(constraint: Constraint) -> set[int]:
    """Ids that its mask allows now, as the sampler would read it."""
    masks = MaskWriter(VOCAB_SIZE).write({5: constraint})
    assert masks is not None and masks.rows == [5] and not masks.errors, masks
    bits = int.from_bytes(masks.bits, "little")
    return {token_id for token_id in range(32 * masks.words) if bits >> token_id & 1}


def spend(seconds: float) -> None:
    """Processor time of this thread."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def choice(*texts: str) -> str:
    return build_grammar(StructuredOutputsParams(choice=list(texts)))


def test_only_what_continues_a_match_is_allowed_and_at_the_end_only_the_end(tokens: Tokens) -> None:
    constraint = following(tokens, choice("yes", "no"))
    assert allowed(constraint) == {ord("y"), ord("n")}
    constraint.consume(list(b"yes"))
    assert allowed(constraint) == {EOS}
    assert constraint.is_complete


def test_thinking_that_may_begin_is_open_once_its_marker_is_there(tokens: Tokens) -> None:
    made = after_thinking(choice("yes"), "</t>", budget=6, begin_marker=["<t>"])
    constraint = following(tokens, made)
    assert {ord("y"), ord("<")} <= allowed(constraint) and EOS not in allowed(constraint)
    constraint.consume(list(b"<t>ab"))
    assert ord("y") in allowed(constraint) and ord("x") in allowed(constraint)
    constraint.consume(list(b"cdef"))
    assert allowed(constraint) == {ord("<")}  # the budget is spent
    constraint.consume(list(b"</t>"))
    assert ord("y") in allowed(constraint) and ord("x") not in allowed(constraint)
    other = following(tokens, made)
    other.begin()
    other.consume(list(b"yes"))
    assert allowed(other) == {EOS}


def test_stop_ids_of_the_caller_are_allowed_where_the_answer_may_end(tokens: Tokens) -> None:
    constraint = following(tokens, build_grammar(StructuredOutputsParams(regex="ab?")), [TURN])
    assert TURN not in allowed(constraint)
    constraint.consume([ord("a")])
    assert allowed(constraint) == {ord("b"), EOS, TURN}


def test_a_token_that_does_not_match_is_an_error_of_that_sequence(tokens: Tokens) -> None:
    constraint = following(tokens, choice("yes"))
    constraint.begin()
    constraint.consume([ord("n")])
    assert constraint.error is not None and "cannot be followed" in constraint.error and "yes" not in constraint.error


def test_the_end_of_thinking_is_found_however_tokens_cut_it(tokens: Tokens) -> None:
    grammar = after_thinking(choice("yes"), "</think>")
    for ending in ([258, 259, 260], list(b"</think>"), [*b"<", *b"/", 259, 260]):
        constraint = following(tokens, grammar)
        assert {*range(128)} <= allowed(constraint) and EOS not in allowed(constraint)
        constraint.consume([*b"hm </thin", *ending])
        assert allowed(constraint) == {ord("y")}
    constraint = following(tokens, grammar)
    constraint.begin()
    constraint.consume([258, 259])
    assert 262 in allowed(constraint)  # ">yes" ends the thinking and goes on with the answer
    constraint.consume([262])
    assert allowed(constraint) == {EOS}


@pytest.mark.parametrize("grammar", [None, choice("yes")])
def test_a_spent_budget_writes_the_marker(tokens: Tokens, grammar: str | None) -> None:
    constraint = following(tokens, after_thinking(grammar, "</think>", budget=3))
    marker = []
    for token_id in b"abc":
        assert len(allowed(constraint)) > 100
        constraint.consume([token_id])
    while len(found := allowed(constraint)) == 1 and len(marker) < 8:
        marker += found
        constraint.consume(list(found))
    assert bytes(marker) == b"</think>"
    assert allowed(constraint) == {ord("y")} if grammar else len(allowed(constraint)) > 255


def test_a_marker_begun_in_time_is_finished_not_written_again(tokens: Tokens) -> None:
    constraint = following(tokens, after_thinking(choice("yes"), [TURN, "x", TURN], budget=2))
    constraint.begin()
    constraint.consume([ord("a"), TURN])
    assert allowed(constraint) == {ord("x")}
    constraint.consume([ord("x"), TURN])
    assert allowed(constraint) == {ord("y")}


def test_many_rows_share_threads_and_get_the_masks_they_get_alone(tokens: Tokens) -> None:
    texts = ["yes", "no", "maybe", "never", "often", "rarely"]
    assert len(texts) >= FEWEST_TO_SHARE
    masks = MaskWriter(VOCAB_SIZE).write({row: following(tokens, choice(text)) for row, text in enumerate(texts)})
    assert masks is not None
    for row, text in enumerate(texts):
        one = masks.bits[4 * masks.words * row : 4 * masks.words * (row + 1)]
        assert int.from_bytes(one, "little") == 1 << ord(text[0])


def test_text_the_tokenizer_cannot_spell_exactly_is_cut_longest_token_first() -> None:
    class Spaced(Bytes):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            return [32, *text.encode()]

    constraint = following(make_tokens(Spaced(), VOCAB_SIZE, [EOS]), choice("</think>"))
    assert allowed(constraint) == {258}


def test_grammars_are_compiled_once_and_the_oldest_are_forgotten(tokens: Tokens) -> None:
    loads = []
    compiler = GrammarCompiler(lambda: loads.append(1) or tokens)
    first = compiler.compile(choice("0"))
    assert compiler.compile(choice("0")) is first
    for number in range(MAX_CACHED_GRAMMARS):
        compiler.compile(choice(str(number + 1)))
    assert compiler.compile(choice("0")) is not first
    assert first.result(5).matcher is not None and loads == [1]
    compiler.close()


def test_a_grammar_that_is_wrong_or_a_vocabulary_that_is_missing_fails_those_who_need_it(tokens: Tokens) -> None:
    def broken() -> Tokens:
        raise OSError("tokenizer.json is gone")

    for load, grammar, words in (
        (broken, choice("a"), "tokenizer.json is gone"),
        (lambda: tokens, lark_grammar("start: start"), "nothing can match"),
        (lambda: tokens, lark_grammar("start: <nope>"), "unknown special token"),
    ):
        compiler = GrammarCompiler(load)
        constraint = Constraint(compiler.compile(grammar))
        deadline = time.monotonic() + 5
        while not constraint.is_ready and time.monotonic() < deadline:
            time.sleep(0.001)
        masks = MaskWriter(VOCAB_SIZE).write({3: constraint})
        assert masks is not None and words in masks.errors[3] and masks.rows == []
        compiler.close()


def test_a_grammar_that_grows_too_much_to_follow_is_refused_with_a_way_out(
    tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.grammar.compiler.LIMITS", LLParserLimits(max_items_in_row=40, verbose_errors=False))
    constraint = following(tokens, lark_grammar('start: a\na: a a | "x"'))
    while constraint.error is None:
        assert allowed(constraint) == {ord("x"), EOS} or not constraint.is_complete
        constraint.consume([ord("x")])
    assert constraint.is_refused and "max is 40" in constraint.error and "; simplify it" in constraint.error


def test_a_grammar_that_takes_too_long_fails_all_its_sequences_and_lets_new_ones_try(tokens: Tokens) -> None:
    done: Future[Compiled] = Future()
    done.set_result(compile_grammar(choice("yes"), tokens))
    constraint, other, late = (Constraint(done) for _ in range(3))
    writer, effort = MaskWriter(VOCAB_SIZE), done.result().effort
    with effort:
        spend(STEP_SECONDS + 0.01)
    assert writer.write({0: constraint, 1: other}).errors == {}  # type: ignore[union-attr]
    with effort:
        spend(MOST_DEBT_SECONDS + STEP_SECONDS)
    constraint.consume([ord("y")])
    masks = writer.write({0: constraint, 1: other})
    assert masks is not None and masks.refused == {0, 1} and "the limit is 10 ms a token" in masks.errors[1]
    late.begin()
    late.consume([ord("y")])
    assert late.error is None and allowed(late) == {ord("e")}
