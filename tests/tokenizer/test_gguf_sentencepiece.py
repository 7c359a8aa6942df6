"""SentencePiece from GGUF, against the sentencepiece library itself and against Transformers."""

import numpy as np
import pytest
import sentencepiece
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer
from transformers.tokenization_utils_base import generate_merges

from octavo.errors import ModelError
from octavo.tokenizer.merges import merges_of
from octavo.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.tokenizer.worlds import LETTERS, WORDS, texts, train_sentencepiece, write_gguf, write_sentencepiece_gguf

pieces = st.lists(st.text("ab▁\n😀", min_size=1, max_size=6), min_size=1, max_size=60, unique=True)


@settings(deadline=None, max_examples=200)
@given(pieces, st.randoms())
def test_merges_are_those_of_transformers(pieces, random):
    scores = [float(random.randint(-5, 0)) for _ in pieces]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    expected = generate_merges(vocab, dict(zip(pieces, scores, strict=True)))
    # Among equals Transformers goes by the ids of the halves within a piece; the lengths decide before that.
    assert merges_of(pieces, np.array(scores)) == expected


def test_merges_of_a_vocabulary_without_pairs_are_none():
    assert merges_of(["a", "b", "xyz"], np.zeros(3)) == []


@pytest.fixture(scope="module", params=[True, False], ids=["prefix", "no-prefix"])
def world(request, tmp_path_factory) -> tuple[Tokenizer, sentencepiece.SentencePieceProcessor]:
    folder = tmp_path_factory.mktemp("spm")
    model = train_sentencepiece(dummy_prefix=request.param)
    path = write_sentencepiece_gguf(folder / "tiny.gguf", model, add_space_prefix=request.param)
    return load_tokenizer(path), sentencepiece.SentencePieceProcessor(model_proto=model)


@settings(max_examples=150, deadline=None)
@given(texts)
def test_ids_are_those_of_sentencepiece(world, text):
    tokenizer, processor = world
    # Transformers adds no second space in front of a leading one; the library does.
    assume(not (tokenizer.strips_first_space and text.startswith((" ", "▁"))))
    assert tokenizer.encode(text, add_special_tokens=False) == processor.encode(text)


@settings(max_examples=100, deadline=None)
@given(texts)
def test_decoding_gives_the_text_back(world, text):
    tokenizer, _ = world
    assume(not (tokenizer.strips_first_space and text.startswith(" ")))
    ids = tokenizer.encode(text)
    assert ids[0] == 1
    assert tokenizer.decode(ids) == text


def test_ids_are_those_of_transformers_for_the_same_file(tmp_path):
    model = train_sentencepiece()
    path = write_sentencepiece_gguf(tmp_path / "tiny.gguf", model, add_bos_token=True)
    tokenizer = load_tokenizer(path)
    reference = AutoTokenizer.from_pretrained(str(tmp_path), gguf_file=path.name)
    hard = [
        "12345",
        " 😀",
        "  two",
        "don't stop\n\n\tx",
        "Café — 123",
        "a</s>b </s> c",
        "<0x0A>",
        "▁a",
        "\x00\x07ꙮ",
        "",
    ]
    for text in [*hard, *WORDS, LETTERS]:
        assert tokenizer.encode(text) == reference(text)["input_ids"], text


def test_gemma_files_store_spaces_and_order_by_id(tmp_path):
    # Ids 6.. are: runs of spaces as real spaces, bytes, then letters and merges. Scores are useless on purpose.
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "\n\n", "  ", "   ", *byte_tokens]
    tokens += ["ab", "▁a", "▁▁▁a", "a", "b", "▁", "c"]
    types = [3, 3, 3, 2, 3, 4, 4, 4, *[6] * 256, *[1] * 7]
    path = write_gguf(
        tmp_path / "gemma.gguf",
        **{"architecture": "gemma3", "model": "llama", "pre": "default", "tokens": tokens, "token_type": types},
        **{"scores": [-1000.0] * len(tokens), "bos_token_id": 2, "eos_token_id": 1, "unknown_token_id": 3},
        **{"padding_token_id": 0, "add_bos_token": True, "add_space_prefix": False},
    )
    tokenizer = load_tokenizer(path)
    reference = AutoTokenizer.from_pretrained(str(tmp_path), gguf_file=path.name)
    for text in ("ab", " ab", "a  b", "   a", "a\n\nb", "<start_of_turn>a", "é", "    ab ab", "▁▁a", "a\nb"):
        ids = tokenizer.encode(text)
        assert ids == reference(text)["input_ids"], text
        assert tokenizer.decode(ids, skip_special_tokens=False) == "<bos>" + text.replace("▁", " ")
    assert tokenizer.token_bytes(6) == b"  "
    assert tokenizer.encode(" ab")[1:] == [tokens.index("▁"), tokens.index("ab")]  # "ab" has the lower id


def test_phi3_puts_its_space_before_the_texts_own(tmp_path):
    model = train_sentencepiece()
    path = write_sentencepiece_gguf(tmp_path / "tiny.gguf", model, architecture="phi3")
    tokenizer, processor = load_tokenizer(path), sentencepiece.SentencePieceProcessor(model_proto=model)
    for text in ("  hi", "hi", "a b"):
        assert tokenizer.encode(text, add_special_tokens=False) == processor.encode(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_byte_pieces_are_bytes_and_markers_are_spaces(world):
    tokenizer, processor = world
    euro = [processor.piece_to_id(f"<0x{byte:02X}>") for byte in "€".encode()]
    assert [tokenizer.token_bytes(i) for i in euro] == [b"\xe2", b"\x82", b"\xac"]
    assert tokenizer.decode([tokenizer.encode("a", add_special_tokens=False)[-1], *euro]).endswith("€")
    assert tokenizer.token_text(euro[0]) == r"bytes:\xe2"
    quick = tokenizer.backend.token_to_id("▁the")
    assert tokenizer.token_bytes(quick) == b" the" and tokenizer.id_to_token(quick) == "▁the"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"scores": [0.0]}, "3 tokens but 1 scores"),
        ({"scores": ["x"] * 3}, "scores must be an array of float"),
        ({"scores": [0.0] * 3, "pre": "smollm9"}, "'smollm9', which is unknown for llama.*Known: default"),
    ],
)
def test_metadata_that_does_not_fit_is_an_error(keys, message, tmp_path):
    path = write_gguf(tmp_path / "t.gguf", model="llama", tokens=["<unk>", "<s>", "</s>"], **keys)
    with pytest.raises(ModelError, match=rf"t\.gguf: .*{message}"):
        load_tokenizer(path)
