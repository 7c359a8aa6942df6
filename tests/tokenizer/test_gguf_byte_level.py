"""Byte-level BPE from GGUF: every pre-tokenizer against splits done by another regex engine, and Transformers."""

import itertools
import unicodedata
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import regex
from hypothesis import given, settings
from transformers import AutoTokenizer

from octavo.errors import ModelError
from octavo.tokenizer.pretokenizers import RECIPES
from octavo.tokenizer.spelling import byte_alphabet
from octavo.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.tokenizer.worlds import (
    CHATML,
    SPECIAL,
    texts,
    tokens_and_merges,
    train_byte_level,
    write_byte_level_gguf,
    write_gguf,
)

# How llama.cpp splits for each name: every regex cuts the pieces of the one before.
APOSTROPHES = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
)
CASED_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CJK = "[一-龥ࠀ-一가-퟿]+"
DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {
    "gpt-2": [GPT2],
    "olmo": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "starcoder": [r"\p{N}", GPT2],
    "command-r": [r"\p{N}", GPT2],
    "llama-bpe": [rf"{APOSTROPHES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{TAIL}"],
    "dbrx": [rf"{APOSTROPHES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{TAIL}"],
    "qwen2": [rf"{APOSTROPHES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{TAIL}"],
    "stablelm2": [rf"{APOSTROPHES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{TAIL}"],
    "qwen35": [
        rf"{APOSTROPHES}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "tekken": [CASED % ("", "") + rf"|\p{{N}}|{CASED_TAIL}"],
    "gpt-4o": [CASED % (APOSTROPHES + "?", APOSTROPHES + "?") + rf"|\p{{N}}{{1,3}}|{CASED_TAIL}"],
    "deepseek-llm": [
        r"[\r\n]",
        r"\s?[A-Za-zµÀ-ÖØ-öø-ƺΑ-ΡΣ-ϵϷ-ҁҊ-ԯ]+",  # the scripts of these tests; the full class is longer
        r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
        r"\s+$",
        CJK,
        r"\p{N}+",
    ],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3],
    "bloom": [r" ?[^(\s|.,!?…。，、।۔،)]+"],
    "viking": [r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}"],
    "bailingmoe": [
        rf"{APOSTROPHES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    ],
    "seed-coder": [
        rf"{APOSTROPHES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "exaone-moe": [
        rf"{APOSTROPHES}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
    ],
    "minicpm5": [r"\p{N}{1,3}", rf"{APOSTROPHES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}+|{TAIL}"],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
}
NORMALIZED = {"olmo", "command-r", "qwen2", "qwen35"}
WHOLE_WORDS = {"llama-bpe", "tekken", "minicpm5"}
ADDS_BOS = {"llama-bpe", "tekken"}

BACKEND = train_byte_level()


@cache
def tokenizer_for(pre: str) -> Tokenizer:
    with TemporaryDirectory() as folder:
        return load_tokenizer(write_byte_level_gguf(Path(folder) / "tiny.gguf", BACKEND, pre))


def split(text: str, regexes: list[str]) -> list[str]:
    """Matches and what lies between them, regex after regex."""
    pieces = [text]
    for pattern in regexes:
        compiled = regex.compile(pattern)
        cut: list[str] = []
        for piece in pieces:
            start = 0
            for match in compiled.finditer(piece):
                cut += [piece[start : match.start()], match.group()]
                start = match.end()
            cut.append(piece[start:])
        pieces = [piece for piece in cut if piece]
    return pieces


class NaiveBPE:
    """Byte-pair encoding as the papers describe it: merge the best pair everywhere, until there is none."""

    def __init__(self) -> None:
        tokens, merges = tokens_and_merges(BACKEND)
        self.ids = {token: i for i, token in enumerate(tokens)}
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self.alphabet = byte_alphabet()

    def encode(self, pieces: list[str], whole_words: bool) -> list[int]:
        ids: list[int] = []
        for piece in pieces:
            spelled = "".join(self.alphabet[byte] for byte in piece.encode())
            parts = [spelled] if whole_words and spelled in self.ids else self.merge(list(spelled))
            ids += [self.ids[part] for part in parts]
        return ids

    def merge(self, parts: list[str]) -> list[str]:
        while True:
            pairs = list(itertools.pairwise(parts))
            best = min(range(len(pairs)), key=lambda i: self.ranks.get(pairs[i], 1 << 30), default=None)
            if best is None or pairs[best] not in self.ranks:
                return parts
            parts[best : best + 2] = [parts[best] + parts[best + 1]]


NAIVE = NaiveBPE()


@pytest.mark.parametrize("pre", SPLITS)
@settings(max_examples=40, deadline=None)
@given(texts)
def test_ids_are_those_of_naive_bpe_on_llama_cpp_splits(pre, text):
    expected = unicodedata.normalize("NFC", text) if pre in NORMALIZED else text
    naive = NAIVE.encode(split(expected, SPLITS[pre]), pre in WHOLE_WORDS)
    assert tokenizer_for(pre).encode(text, add_special_tokens=False) == naive


@pytest.mark.parametrize("pre", sorted(RECIPES))
def test_every_known_name_builds_and_keeps_all_text(pre):
    tokenizer = tokenizer_for(pre)
    for text in ("It's 12345 o'clock\n\n\tdon't", " 😀", "Ω Café déjà vu — 123", "中文。テキスト 한국"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_falcon_splits_as_its_own_tokenizer_file():
    words = [word for word, _ in tokenizer_for("falcon").backend.pre_tokenizer.pre_tokenize_str("a--b 12345, x")]
    assert words == ["a", "--", "b", "Ġ", "123", "45", ",", "Ġx"]


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", "tekken", "gpt-4o", "qwen35", "gpt-2"])
def test_ids_are_those_of_transformers_for_the_same_file(pre, tmp_path):
    # Transformers neither normalizes for these names nor looks whole words up; the texts need neither.
    path = write_byte_level_gguf(tmp_path / "tiny.gguf", BACKEND, pre, add_bos_token=True)
    reference = AutoTokenizer.from_pretrained(str(tmp_path), gguf_file=path.name)
    tokenizer = load_tokenizer(path)
    for text in ("12345", " 😀", "Ω", "don't stop\n\n\tx", "Café déjà vu — 123", "a<|im_end|>b", "HTTPServer it'S"):
        assert tokenizer.encode(text) == reference(text)["input_ids"], text
        assert tokenizer.encode(text, add_special_tokens=False) == reference.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("pre", ["smollm", "llama-bpe", "tekken", "qwen2"])
def test_bos_is_added_where_the_name_says_so_and_the_file_is_silent(pre):
    with_special = tokenizer_for(pre).encode("hi")
    assert (with_special[0] == 1) == (pre in ADDS_BOS)


def test_the_files_flags_decide_about_bos_and_eos(tmp_path):
    path = write_byte_level_gguf(tmp_path / "tiny.gguf", BACKEND, "llama-bpe", add_bos_token=False, add_eos_token=True)
    tokenizer = load_tokenizer(path)
    assert tokenizer.encode("hi") == [*tokenizer.encode("hi", add_special_tokens=False), 2]


def test_special_tokens_in_user_text_are_special_and_user_defined_ones_are_whole(tmp_path):
    tokens, _ = tokens_and_merges(BACKEND)
    tokens = [*tokens, "<think>", "    "]
    types = [3 if token in SPECIAL else 1 for token in tokens[:-2]] + [4, 4]
    path = write_byte_level_gguf(tmp_path / "tiny.gguf", BACKEND, "qwen2", tokens=tokens, token_type=types)
    tokenizer = load_tokenizer(path)
    think, spaces = len(tokens) - 2, len(tokens) - 1
    ids = tokenizer.encode("<|im_end|><think>x    ")
    assert ids == [2, think, *tokenizer.encode("x"), spaces]
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.decode(ids) == "<think>x    "
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_end|><think>x    "


def test_special_tokens_outside_the_byte_alphabet_keep_their_id(tmp_path):
    # DeepSeek's "<｜end▁of▁sentence｜>": Transformers' reader of GGUF files drops it.
    tokens, _ = tokens_and_merges(BACKEND)
    tokens[2] = "<｜end▁of▁sentence｜>"
    types = [3] * 3 + [1] * (len(tokens) - 3)
    path = write_byte_level_gguf(tmp_path / "t.gguf", BACKEND, "deepseek-v3", tokens=tokens, token_type=types)
    tokenizer = load_tokenizer(path)
    assert tokenizer.encode(f"a{tokens[2]}") == [*tokenizer.encode("a"), 2]
    assert tokenizer.token_bytes(2).decode() == tokens[2] and 2 in tokenizer.special_ids


def test_roles_ids_and_templates_are_read(tmp_path):
    path = write_byte_level_gguf(
        tmp_path / "t.gguf", BACKEND, "smollm", chat_template=CHATML, unknown_token_id=0, padding_token_id=2
    )
    tokenizer = load_tokenizer(path)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert tokenizer.special_tokens["pad_token"] == "<|im_end|>"
    assert tokenizer.chat_template == CHATML
    assert tokenizer.vocab_size == BACKEND.get_vocab_size()


def test_an_unknown_pre_tokenizer_is_an_error_that_lists_the_known_ones(tmp_path):
    path = write_byte_level_gguf(tmp_path / "t.gguf", BACKEND, "smollm-9")
    with pytest.raises(ModelError, match=r"t\.gguf.*'smollm-9'.*--tokenizer.*llama-bpe.*smollm"):
        load_tokenizer(path)


def test_a_missing_pre_tokenizer_is_reported(tmp_path, caplog):
    tokens, merges = tokens_and_merges(BACKEND)
    path = write_gguf(tmp_path / "t.gguf", model="gpt2", tokens=tokens, merges=merges)
    assert load_tokenizer(path).encode("hi 12345") == tokenizer_for("default").encode("hi 12345")
    assert "tokenizer.ggml.pre is missing" in caplog.text


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"tokens": ["a", "b", "a"], "token_type": [1, 1, 1], "merges": ["a b"]},
            "token 'a' appears twice, as 0 and 2",
        ),
        ({"tokens": ["a", "b"], "token_type": [1, 1], "merges": ["a c"]}, "do not fit"),
        ({"tokens": ["a", "b"], "token_type": [1], "merges": ["a b"]}, "2 tokens and 1 token types"),
        ({"tokens": [1, 2], "token_type": [1, 1], "merges": ["a b"]}, "tokens must be an array of str"),
        ({"bos_token_id": 10_000}, "bos_token_id is 10000"),
        ({"model": "rwkv"}, "'rwkv'.*gpt2"),
    ],
)
def test_inconsistent_metadata_is_an_error_naming_the_file(keys, message, tmp_path):
    tokens, merges = tokens_and_merges(BACKEND)
    good = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "merges": merges, "bos_token_id": 1, "eos_token_id": 0}
    with pytest.raises(ModelError, match=rf"t\.gguf: .*{message}"):
        load_tokenizer(write_gguf(tmp_path / "t.gguf", **(good | keys)))
