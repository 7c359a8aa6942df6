"""Tiny tokenizers, trained in a moment and written as folders and as GGUF files."""

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import sentencepiece
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend
from transformers import LlamaTokenizer
from transformers.tokenization_utils_base import generate_merges

CORPUS = [
    "The quick brown fox jumps over the lazy dog, doesn't it? It's 12345 o'clock; they'll say we've 67 of 890.",
    "def f(x):\n    return x ** 2  # squared\n\n\nclass A:\n\tpass\r\n",
    "Café déjà vu — naïve façade, Ångström; ΑΒΓ αβγ δέλτα; Привет, мир! Ещё раз.",
    "中文字符测试。日本語のテキスト、カタカナ。한국어 텍스트입니다. हिन्दी में पाठ। مرحبا بالعالم",
    "😀 🎉👍🏽 🇫🇷 ½ ² ٣٤٥ Ⅻ   three   spaces    four\t\ttabs <tag> [x] {y} a|b $5 +1 <= ^ ~ `code`",
    "ABC CamelCaseWords HTTPServer iPhone x1y2z3 1,000,000.00 2024-01-31 'quoted' \"double\" it'S WE'LL I'M",
] * 4

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# Characters whose classes have not changed between Unicode versions, so that all regex engines agree on them.
LETTERS = "aAbzZtTsSéÉßñΑαΩжЖйמאب中文字日のカ한국हन"
MARKS = "\u0301\u0308्ि"
DIGITS = "0123456789٣½²Ⅻ"
SIGNS = "'’\".,;:!?-_/\\|()[]{}<>=+*&^%$#@~`—…。，、！€©😀🎉👍🏽"
SPACES = "  \t\n\r\u00a0\u3000\u2028"
WORDS = [
    "The",
    " quick",
    "brown",
    "don't",
    "'s",
    "'S",
    "'LL",
    "  ",
    "\n\n",
    "\r\n",
    "123",
    "12345",
    "HTTP",
    "CamelCase",
]

texts = st.lists(st.one_of(st.sampled_from(LETTERS + MARKS + DIGITS + SIGNS + SPACES), st.sampled_from(WORDS))).map(
    "".join
)
"""Random text that is hard to split: every kind of character next to every other."""


@cache
def train_byte_level(vocab_size: int = 700) -> Backend:
    """Byte-level BPE with GPT-2's split; the special tokens come first."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=alphabet,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def tokens_and_merges(backend: Backend) -> tuple[list[str], list[str]]:
    """Token texts by id, and merges as a GGUF file stores them."""

    model = json.loads(backend.to_str())["model"]
    vocab = backend.get_vocab()
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return sorted(vocab, key=vocab.__getitem__), merges


@cache
def train_sentencepiece(dummy_prefix: bool = True, vocab_size: int = 600) -> bytes:
    """A SentencePiece BPE model with byte fallback, like Llama's; returns the content of tokenizer.model."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in CORPUS for line in text.splitlines() if line),
        model_writer=out,
        model_type="bpe",
        vocab_size=vocab_size,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=dummy_prefix,
        character_coverage=1.0,
        allow_whitespace_only_pieces=True,
        minloglevel=2,
    )
    return out.getvalue()


def write_gguf(path: Path, *, architecture: str = "llama", **keys: Any) -> Path:
    """A GGUF file with `tokenizer.ggml.<key>` of each given key (chat_template as `tokenizer.chat_template`)."""
    writer = gguf.GGUFWriter(str(path), architecture)
    for key, value in keys.items():
        if key == "chat_template":
            writer.add_chat_template(value)
        elif isinstance(value, bool):
            writer.add_bool(f"tokenizer.ggml.{key}", value)
        elif isinstance(value, int):
            writer.add_uint32(f"tokenizer.ggml.{key}", value)
        elif isinstance(value, str):
            writer.add_string(f"tokenizer.ggml.{key}", value)
        else:
            writer.add_array(f"tokenizer.ggml.{key}", value)
    writer.add_uint32(f"{architecture}.vocab_size", len(keys.get("tokens", [])))
    # Transformers reads the config of a file before its tokenizer.
    for key, value in {"block_count": 1, "embedding_length": 8, "context_length": 64, "feed_forward_length": 8}.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_uint32(f"{architecture}.attention.head_count", 1)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tensor("token_embd.weight", np.zeros((1, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_byte_level_gguf(path: Path, backend: Backend, pre: str, **keys: Any) -> Path:
    """The GGUF form of `train_byte_level`'s result."""
    tokens, merges = tokens_and_merges(backend)
    types = [3 if token in SPECIAL else 1 for token in tokens]
    keys = {"tokens": tokens, "merges": merges, "token_type": types, "bos_token_id": 1, "eos_token_id": 2} | keys
    return write_gguf(path, model="gpt2", pre=pre, **keys)


def write_sentencepiece_gguf(path: Path, model: bytes, **keys: Any) -> Path:
    """The GGUF form of `train_sentencepiece`'s result."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    ids = range(processor.get_piece_size())
    types = [
        6 if processor.is_byte(i) else 2 if processor.is_unknown(i) else 3 if processor.is_control(i) else 1
        for i in ids
    ]
    keys = {
        "tokens": [processor.id_to_piece(i) for i in ids],
        "scores": [float(processor.get_score(i)) for i in ids],
        "token_type": types,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    } | keys
    return write_gguf(path, model="llama", pre="default", **keys)


def write_folder(folder: Path, backend: Backend, **config: Any) -> Path:
    """A Transformers folder with a tokenizer."""

    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast"} | config
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def sentencepiece_backend(model: bytes) -> Backend:
    """A fast tokenizer for `train_sentencepiece`'s result, made by Transformers."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    scores = {piece: processor.get_score(i) for i, piece in enumerate(pieces)}
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = LlamaTokenizer(vocab=vocab, merges=generate_merges(vocab, scores))
    backend = tokenizer.backend_tokenizer
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return backend
