"""Tokenizers of Transformers folders, against Transformers."""

import json

import pytest
from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

from octavo.errors import ModelError
from octavo.tokenizer.tokenizer import load_tokenizer
from tests.tokenizer.worlds import (
    CHATML,
    LETTERS,
    WORDS,
    train_byte_level,
    train_sentencepiece,
    write_byte_level_gguf,
    write_folder,
)

TEXTS = [*WORDS, LETTERS, "a <|im_end|> b", " 😀", "don't stop\n\n\tx", "<think>x</think>", "[PAD]"]
ROLES = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}


@pytest.mark.parametrize(
    "config",
    [
        ROLES,
        ROLES | {"add_bos_token": True, "add_eos_token": True},
        ROLES | {"bos_token": {"__type": "AddedToken", "content": "<|im_start|>", "special": True}},
        {"added_tokens_decoder": {"700": {"content": "<think>", "special": False}, "701": {"content": "</think>"}}},
    ],
    ids=["plain", "flags", "token-object", "added-tokens"],
)
def test_ids_and_text_are_those_of_transformers(config, tmp_path):
    folder = write_folder(tmp_path / "model", train_byte_level(), **config)
    tokenizer, reference = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == reference(text)["input_ids"], text
        assert tokenizer.encode(text, add_special_tokens=False) == reference.encode(text, add_special_tokens=False)
        for skip in (True, False):
            assert tokenizer.decode(ids, skip_special_tokens=skip) == reference.decode(ids, skip_special_tokens=skip)
    assert tokenizer.vocab_size == len(reference)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (reference.bos_token_id, reference.eos_token_id)


def test_roles_of_special_tokens_map_are_read_and_tokens_outside_the_vocabulary_are_not_added(tmp_path):
    folder = write_folder(tmp_path / "model", train_byte_level(), unk_token="<not a token>")
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.special_tokens == {"eos_token": "<|im_end|>"}
    assert tokenizer.vocab_size == train_byte_level().get_vocab_size()


def test_a_token_with_a_role_is_special_even_if_the_file_does_not_say_so(tmp_path):
    backend = Backend.from_str(train_byte_level().to_str())
    backend.add_tokens([AddedToken("<end>", special=False)])
    tokenizer = load_tokenizer(write_folder(tmp_path / "model", backend, eos_token="<end>"))
    ids = tokenizer.encode("a<end>")
    assert tokenizer.eos_token_id == ids[-1] and ids[-1] in tokenizer.special_ids
    assert tokenizer.decode(ids) == "a"


def test_padding_and_truncation_of_the_file_do_not_touch_prompts(tmp_path):
    backend = Backend.from_str(train_byte_level().to_str())
    backend.enable_padding(length=64)
    backend.enable_truncation(4)
    tokenizer = load_tokenizer(write_folder(tmp_path / "model", backend))
    assert tokenizer.decode(tokenizer.encode("The quick brown fox")) == "The quick brown fox"


NAMED = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, {}),
        ({"tokenizer_config.json": {"chat_template": CHATML}}, {"default": CHATML}),
        ({"tokenizer_config.json": {"chat_template": NAMED}}, {"default": "plain", "tool_use": "tools"}),
        ({"chat_template.json": {"chat_template": "json"}}, {"default": "json"}),
        (
            {"tokenizer_config.json": {"chat_template": "old"}, "chat_template.jinja": "file"},
            {"default": "file"},
        ),
        (
            {"chat_template.jinja": "file", "additional_chat_templates/tool_use.jinja": "tools"},
            {"default": "file", "tool_use": "tools"},
        ),
    ],
    ids=["none", "config", "named", "json", "jinja-wins", "jinja-named"],
)
def test_chat_templates_are_found_where_models_keep_them(files, expected, tmp_path):
    folder = write_folder(tmp_path / "model", train_byte_level())
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.chat_templates == expected
    assert tokenizer.chat_template == expected.get("default")


def test_a_folder_with_only_a_sentencepiece_model_goes_through_transformers(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(train_sentencepiece())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": CHATML}))
    tokenizer, reference = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for text in ("The quick brown fox", "a</s>b", "12345 é 😀"):
        assert tokenizer.encode(text) == reference(text)["input_ids"]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.chat_template) == (1, 2, CHATML)
    assert tokenizer.decode(tokenizer.encode("The fox")) == "The fox"


def test_save_writes_a_folder_that_both_read_as_the_same_tokenizer(tmp_path):
    gguf = write_byte_level_gguf(tmp_path / "tiny.gguf", train_byte_level(), "llama-bpe", chat_template=NAMED)
    first = load_tokenizer(gguf)
    assert first.encode("x")[0] == first.bos_token_id
    first.save(tmp_path / "copy")
    second, reference = load_tokenizer(tmp_path / "copy"), AutoTokenizer.from_pretrained(tmp_path / "copy")
    for text in TEXTS:
        assert first.encode(text) == second.encode(text) == reference(text)["input_ids"]
    assert second.special_tokens == first.special_tokens
    assert second.chat_templates == first.chat_templates == reference.chat_template


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer.json", "{"), ("tokenizer_config.json", "not json"), ("tokenizer_config.json", "[]")],
)
def test_damaged_files_are_errors_that_name_the_file(name, content, tmp_path):
    folder = write_folder(tmp_path / "model", train_byte_level())
    (folder / name).write_text(content)
    with pytest.raises(ModelError, match=name):
        load_tokenizer(folder)


def test_a_folder_without_tokenizer_and_a_missing_path_are_errors(tmp_path):
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(ModelError, match=r"gone\.gguf: no such"):
        load_tokenizer(tmp_path / "gone.gguf")


def test_a_decoder_of_another_kind_is_an_error(tmp_path):
    folder = write_folder(tmp_path / "model", Backend(models.WordLevel({"a": 0}, unk_token="a")))
    with pytest.raises(ModelError, match="decoder is missing"):
        load_tokenizer(folder)
