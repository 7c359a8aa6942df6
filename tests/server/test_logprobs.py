"""The two forms of logprobs on a tokenizer of a dozen tokens."""

from typing import Any

from octavo.outputs import Logprob
from octavo.server.logprobs import CompletionLogprobsWriter, chat_logprobs, most_likely, prompt_pieces
from octavo.server.responses import CompletionLogprobs

BOS, EOS = 0, 1
TOKENS = {BOS: b"<s>", EOS: b"</s>", 2: b" Hello", 3: b" w", 4: "ö".encode(), 5: b"\xf0\x9f", 6: b"\x98\x80", 7: b"!"}


class Tokens:
    """As much of a tokenizer as logprobs need; 9 is an id without a token."""

    special_ids = frozenset([BOS, EOS])

    def token_bytes(self, token_id: int) -> bytes:
        return TOKENS.get(token_id, b"")

    def token_text(self, token_id: int) -> str:
        raw = self.token_bytes(token_id)
        try:
            return raw.decode() or f"<token {token_id}>"
        except UnicodeDecodeError:
            return f"bytes:{raw.hex()}"


tokens: Any = Tokens()


def entries(*pairs: tuple[int, float]) -> dict[int, Logprob]:
    return {token_id: Logprob(logprob) for token_id, logprob in pairs}


def write(ids: list[int], **options: Any) -> CompletionLogprobs:
    out = CompletionLogprobs([], [], [], [])
    writer = CompletionLogprobsWriter(tokens, 1, skip_special=True, as_ids=False)
    logprobs = [entries((i, -1.0), (7, -0.5)) for i in ids]
    writer.write_sampled(out, ids, logprobs, **{"last_is_hidden": False, "finished": True, **options})
    return out


def test_the_most_likely_come_first_and_ties_go_to_the_lowest_id() -> None:
    found = entries((7, -3.0), (5, -1.0), (2, -1.0), (3, float("-inf")))
    assert most_likely(found, 2) == [2, 5]
    assert most_likely(found, -1) == [2, 5, 7, 3]
    assert most_likely(found, 0) == []


def test_the_pieces_of_a_prompt_spell_it_whatever_the_tokenizer_added() -> None:
    assert prompt_pieces(tokens, [BOS, 2, 3, 4, 5, 6, 7], "Hello wö\U0001f600!") == [
        "", "Hello", " w", "ö", "", "\U0001f600", "!",
    ]  # fmt: skip
    assert prompt_pieces(tokens, [BOS, BOS, 2], "<s> Hello") == ["<s>", "", " Hello"]
    assert prompt_pieces(tokens, [BOS, 2, EOS], None) == ["<s>", " Hello", "</s>"]


def test_pieces_of_an_answer_join_to_its_text_and_offsets_point_into_it() -> None:
    out = write([2, 5, 6, EOS, 7])
    assert out.tokens == [" Hello", "", "\U0001f600", "", "!"]
    assert out.text_offset == [0, 6, 6, 7, 7]
    assert out.token_logprobs == [-1.0, -1.0, -1.0, -1.0, -0.5]


def test_an_answer_cut_inside_a_character_ends_with_a_replacement() -> None:
    assert write([2, 5]).tokens == [" Hello", "\ufffd"]
    assert write([2, 5], finished=False).tokens == [" Hello", ""]


def test_a_stop_token_is_counted_but_spells_nothing() -> None:
    assert write([2, 7], last_is_hidden=True).tokens == [" Hello", ""]


def test_the_actual_token_is_a_key_of_its_own_top() -> None:
    out = write([2, 5, 6])
    assert [sorted(top) for top in out.top_logprobs if top] == [[" Hello", "!"], ["", "!"], ["!", "\U0001f600"]]


def test_chat_entries_leave_out_special_tokens_and_keep_broken_ones_apart() -> None:
    logprobs = [entries((5, -0.1), (6, -0.2), (9, -0.3)), entries((EOS, -0.1))]
    shown = chat_logprobs(tokens, [5, EOS], logprobs, 3, skip_special=True, as_ids=False)
    assert len(shown) == 1
    assert [(top.token, bytes(top.bytes)) for top in shown[0].top_logprobs] == [
        ("bytes:f09f", b"\xf0\x9f"), ("bytes:9880", b"\x98\x80"), ("<token 9>", b""),
    ]  # fmt: skip
    assert len(chat_logprobs(tokens, [5, EOS], logprobs, 3, skip_special=False, as_ids=True)) == 2
