"""Encoding and decoding rules that hold for every kind of tokenizer."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import pre_tokenizers

from octavo.tokenizer.spelling import byte_alphabet
from octavo.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.tokenizer.worlds import texts, train_byte_level, write_byte_level_gguf, write_folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    return load_tokenizer(
        write_byte_level_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", train_byte_level(), "smollm")
    )


@settings(deadline=None)
@given(st.text())
def test_decoding_gives_any_text_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


@settings(deadline=None)
@given(st.lists(st.integers(-0, 720), max_size=30), st.booleans())
def test_decoding_any_ids_is_what_transformers_backend_decodes(tokenizer, ids, skip):
    assert tokenizer.decode(ids, skip_special_tokens=skip) == tokenizer.backend.decode(ids, skip_special_tokens=skip)


@settings(deadline=None)
@given(st.lists(st.integers(0, 699), max_size=30), st.booleans())
def test_pieces_join_to_the_text_and_bytes_to_its_bytes(tokenizer, ids, skip):
    pieces = tokenizer.token_pieces(ids, skip_special_tokens=skip)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)
    raw = b"".join(tokenizer.token_bytes(i) for i in ids if not (skip and i in tokenizer.special_ids))
    assert raw.decode(errors="replace") == tokenizer.decode(ids, skip_special_tokens=skip)


def test_the_byte_alphabet_is_the_librarys_and_every_byte_has_its_token(tokenizer):
    alphabet = byte_alphabet()
    assert set(alphabet.values()) == set(pre_tokenizers.ByteLevel.alphabet())
    for byte, character in alphabet.items():
        assert tokenizer.token_bytes(tokenizer.backend.token_to_id(character)) == bytes([byte])


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("a\ud83d", "a\ufffd"),
        ("\ude00b", "\ufffdb"),
        ("\ud83d\ud83dx", "\ufffd\ufffdx"),
        ("\ud83d\ude00", "😀"),  # both halves, as JSON escapes may give them
        ("\ude00\ud83d", "\ufffd\ufffd"),
    ],
)
def test_lone_surrogates_count_as_replacement_characters(tokenizer, text, meant):
    assert tokenizer.encode(text) == tokenizer.encode(meant)
    assert tokenizer.decode(tokenizer.encode(text)) == meant


def test_nul_is_text(tokenizer):
    assert tokenizer.decode(tokenizer.encode("a\x00b\x00")) == "a\x00b\x00"


def test_a_batch_is_its_texts_one_by_one(tokenizer):
    many = ["The quick", "", "12345 <|im_end|>", "é" * 200]
    assert tokenizer.encode_batch(many) == [tokenizer.encode(text) for text in many]
    assert tokenizer.encode_batch([]) == []


@settings(max_examples=5, deadline=None)
@given(st.lists(texts, min_size=20, max_size=20))
def test_threads_get_what_one_thread_gets(tokenizer, many):
    expected = [(tokenizer.encode(text), text) for text in many]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda text: (tokenizer.encode(text), tokenizer.decode(tokenizer.encode(text))), many))
    assert [ids for ids, _ in found] == [ids for ids, _ in expected]


def test_logprob_names_of_tokens_are_never_empty_and_never_confused(tokenizer):
    names = [tokenizer.token_text(i) for i in range(tokenizer.vocab_size + 3)]
    assert all(names) and len(set(names)) == len(names)
    assert tokenizer.token_text(tokenizer.encode("龍")[0]).startswith(r"bytes:\xe9")
    assert tokenizer.token_text(tokenizer.vocab_size) == f"<token {tokenizer.vocab_size}>"
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""
    assert tokenizer.id_to_token(tokenizer.vocab_size) is None


def test_special_tokens_are_the_bytes_of_their_text(tokenizer):
    assert tokenizer.token_bytes(1) == b"<|im_start|>" and tokenizer.token_text(2) == "<|im_end|>"


def test_a_special_token_made_of_alphabet_characters_is_its_text(tmp_path):
    backend = Backend.from_str(train_byte_level().to_str())
    backend.add_special_tokens(["<é>"])  # é spells the byte 0xE9, but not here
    tokenizer = load_tokenizer(write_folder(tmp_path / "model", backend))
    assert tokenizer.decode(tokenizer.encode("<é>"), skip_special_tokens=False) == "<é>"
