"""Incremental text and stop strings, against whole-text oracles."""

from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from octavo.tokenizer.detokenizer import Detokenizer
from octavo.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.tokenizer.worlds import (
    train_byte_level,
    train_sentencepiece,
    write_byte_level_gguf,
    write_sentencepiece_gguf,
)


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("bytes")
    return load_tokenizer(write_byte_level_gguf(folder / "tiny.gguf", train_byte_level(), "smollm"))


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("spm")
    return load_tokenizer(write_sentencepiece_gguf(folder / "tiny.gguf", train_sentencepiece()))


@dataclass
class Letters:
    """A vocabulary with one token per given string: what tokens are does not matter to stop strings."""

    tokens: list[bytes]
    special_ids: frozenset[int] = frozenset()
    strips_first_space: bool = False

    def token_bytes(self, token_id: int) -> bytes:
        return self.tokens[token_id]


def run(tokenizer, chunks, prompt=(), **options):
    """Push chunk after chunk as an output processor does; returns the deltas and the detokenizer."""
    detokenizer = Detokenizer(tokenizer, prompt, **options)
    deltas = []
    for chunk in chunks:
        stopped = detokenizer.push(chunk) is not None
        deltas.append(detokenizer.delta(finished=stopped))
        if stopped:
            break
    else:
        deltas.append(detokenizer.delta(finished=True))
    return deltas, detokenizer


def cut(items, sizes):
    """Consecutive chunks of the given sizes, then the rest."""
    chunks, start = [], 0
    for size in sizes:
        chunks.append(items[start : start + size])
        start += size
    return [*chunks, items[start:]]


# ---------------------------------------------------------------- characters


@settings(deadline=None)
@given(st.lists(st.integers(0, 699), max_size=40), st.lists(st.integers(0, 4), max_size=20), st.booleans())
def test_deltas_join_to_the_decoded_text_for_every_chunking(byte_level, ids, sizes, skip):
    deltas, _ = run(byte_level, cut(ids, sizes), skip_special_tokens=skip)
    assert "".join(deltas) == byte_level.decode(ids, skip_special_tokens=skip)


@settings(deadline=None)
@given(st.text(), st.lists(st.integers(0, 3), max_size=20))
@example("<|im_end|>", [])
def test_no_delta_holds_a_broken_character(byte_level, text, sizes):
    text = text.replace("\ufffd", "")
    # A text may spell a special token, which then is one.
    deltas, _ = run(byte_level, cut(byte_level.encode(text), sizes), skip_special_tokens=False)
    assert "".join(deltas) == text
    assert not any("\ufffd" in delta for delta in deltas)


@pytest.mark.parametrize(
    ("num_tokens", "text"), [(1, "\ufffd"), (2, "\ufffd"), (3, "\ufffd"), (4, "😀"), (5, "😀\ufffd")]
)
def test_an_answer_cut_inside_a_character_ends_with_one_replacement_character(num_tokens, text):
    vocabulary = Letters([bytes([byte]) for byte in range(256)])
    ids = list("😀中".encode())[:num_tokens]
    for chunks in ([ids], [[i] for i in ids]):
        deltas, _ = run(vocabulary, chunks)
        assert "".join(deltas) == text
        assert all("\ufffd" not in delta for delta in deltas[:-1])


def test_special_tokens_are_skipped_or_shown_and_do_not_break_characters():
    vocabulary = Letters([b"\xe4\xb8", b"\xad", b"<|end|>"], special_ids=frozenset([2]))
    assert run(vocabulary, [[0], [2], [1], [2]])[0] == ["", "", "中", "", ""]
    shown, _ = run(vocabulary, [[0, 1], [2]], skip_special_tokens=False)
    assert shown == ["中", "<|end|>", ""]


def test_ids_without_a_token_add_nothing(byte_level):
    assert run(byte_level, [[byte_level.vocab_size + 5]])[0] == ["", ""]


# ---------------------------------------------------------------- the first space


@settings(deadline=None)
@given(st.integers(0, 6), st.text("ab é中\n", max_size=12), st.lists(st.integers(0, 3), max_size=8), st.booleans())
def test_sentencepiece_answers_are_what_follows_the_decoded_prompt(sentencepiece, length, text, sizes, skip):
    whole = sentencepiece.encode("The fox " + text)
    prompt, answer = whole[:length], whole[length:]
    decode = sentencepiece.backend.decode
    expected = decode(whole, skip_special_tokens=skip)[len(decode(prompt, skip_special_tokens=skip)) :]
    deltas, _ = run(sentencepiece, cut(answer, sizes), prompt, skip_special_tokens=skip)
    assert "".join(deltas) == expected


def test_a_leading_space_stays_after_visible_text_and_goes_after_a_bare_bos(sentencepiece):
    bos, *the = sentencepiece.encode("The")
    assert "".join(run(sentencepiece, [the], [bos])[0]) == "The"
    assert "".join(run(sentencepiece, [the], [bos], skip_special_tokens=False)[0]) == " The"
    assert "".join(run(sentencepiece, [the], [bos, *the])[0]) == " The"


# ---------------------------------------------------------------- stop strings


def oracle(text, stops, *, include, first_countable_end):
    """The first prefix of the text that ends with a stop string; the longest such string."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found and end > first_countable_end:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


small_texts = st.text("ab", max_size=8)


@settings(max_examples=400, deadline=None)
@given(
    tokens=st.lists(small_texts, max_size=12),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
    sizes=st.lists(st.integers(0, 3), max_size=8),
    include=st.booleans(),
    min_tokens=st.integers(0, 5),
)
def test_stop_strings_cut_where_the_oracle_cuts_for_every_chunking(tokens, stops, sizes, include, min_tokens):
    vocabulary = Letters([token.encode() for token in tokens])
    before = sum(map(len, tokens[:min_tokens]))
    text, stop = oracle("".join(tokens), stops, include=include, first_countable_end=before)
    deltas, detokenizer = run(
        vocabulary,
        cut(list(range(len(tokens))), sizes),
        **{"stop": stops, "include_stop_str_in_output": include, "min_tokens": min_tokens},
    )
    assert ("".join(deltas), detokenizer.stop_reason) == (text, stop)
    if stop is None:
        assert detokenizer.num_tokens == len(tokens)
    else:  # the token that completes the stop string is the last one used
        complete = text if include else text + stop
        used = "".join(tokens[: detokenizer.num_tokens])
        assert used.startswith(complete) and len("".join(tokens[: detokenizer.num_tokens - 1])) < len(complete)


@settings(deadline=None)
@given(st.lists(small_texts, max_size=12), st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3))
def test_only_the_beginning_of_a_stop_string_is_held_back(tokens, stops):
    detokenizer = Detokenizer(Letters([token.encode() for token in tokens]), (), stop=stops)
    text, sent = "", ""
    for i, token in enumerate(tokens):
        text += token
        if detokenizer.push([i]):
            break
        sent += detokenizer.delta(finished=False)
        longest = max(n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n]))
        assert sent == text[: len(text) - longest]


FOX = ["The", " quick", " brown", " fox", " jumps"]


@pytest.mark.parametrize(
    ("stops", "include", "text", "reason"),
    [
        (["own fox"], False, "The quick br", "own fox"),
        (["own fox", "quick br"], False, "The ", "quick br"),
        (["jumps over"], False, "The quick brown fox jumps", None),
        (["brow"], True, "The quick brow", "brow"),
    ],
)
def test_the_fox_stops(stops, include, text, reason):
    vocabulary = Letters([token.encode() for token in FOX])
    for chunks in ([[0], [1], [2], [3], [4]], [[0, 1, 2, 3, 4]], [[0, 1], [2, 3, 4]]):
        deltas, detokenizer = run(vocabulary, chunks, stop=stops, include_stop_str_in_output=include)
        assert "".join(deltas) == text and detokenizer.stop_reason == reason
        sent = ""
        for delta in deltas:
            sent += delta
            assert text.startswith(sent)


def test_nothing_is_held_back_if_the_stop_string_stays_in_the_text():
    vocabulary = Letters([b"ab", b"cd"])
    assert run(vocabulary, [[0], [1]], stop=["abx"], include_stop_str_in_output=True)[0] == ["ab", "cd", ""]
    assert run(vocabulary, [[0], [1]], stop=["abx"])[0] == ["", "abcd", ""]


def test_a_stop_string_inside_multi_byte_characters_and_with_nul_is_found():
    vocabulary = Letters(["é".encode()[:1], "é".encode()[1:] + b"\x00", b"z"])
    deltas, detokenizer = run(vocabulary, [[2], [0], [1], [2]], stop=["é\x00"])
    assert "".join(deltas) == "z" and detokenizer.stop_reason == "é\x00" and detokenizer.num_tokens == 3


def test_tokens_after_the_stop_string_change_nothing():
    detokenizer = Detokenizer(Letters([b"a", b"b", b"c"]), (), stop=["b"])
    assert detokenizer.push([0, 1, 2]) == "b" and detokenizer.push([2]) == "b"
    assert (detokenizer.delta(finished=True), detokenizer.num_tokens) == ("a", 2)
