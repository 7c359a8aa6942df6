"""The tokenizers of the catalogue's models: the fault cases WGT-03, STR-01, TPL-01, TPL-03 and TPL-04 on real files."""

import random
import time
import unicodedata
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from octavo.errors import ModelError
from octavo.files.gguf_header import read_gguf_header
from octavo.loader.catalogue import pull
from octavo.tokenizer.chat_template import ChatTemplate
from octavo.tokenizer.detokenizer import Detokenizer
from octavo.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.tokenizer.worlds import write_gguf

pytestmark = pytest.mark.slow

TEXTS = [
    "12345",
    " 😀",
    "Ω",
    "don't stop\n\n\tx",
    "Café déjà vu — 123",
    "<|im_end|>",
    "<end_of_turn>x",
    "  two   three",
]


def random_texts(count: int = 500) -> list[str]:
    """Assigned characters of the planes in use, mixed with ordinary words."""
    rng = random.Random(0)
    characters = [
        chr(code)
        for code in [*range(0x20, 0xD800), *range(0xE000, 0x20000)]
        if unicodedata.category(chr(code)) not in ("Cc", "Cn", "Co", "Cs") and chr(code) != "▁"
    ]
    words = ["The", " quick", " 12", "\n", "  ", "don't", "\t", ". ", "中文"]
    return [
        "".join(rng.choice(words) if rng.random() < 0.3 else rng.choice(characters) for _ in range(rng.randint(1, 40)))
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def smollm2_path() -> Path:
    return pull("smollm2-135m-instruct")


@pytest.fixture(scope="module")
def gemma_path() -> Path:
    return pull("gemma-3-270m")


@pytest.fixture(scope="module")
def smollm2(smollm2_path) -> Tokenizer:
    return load_tokenizer(smollm2_path)


@pytest.fixture(scope="module")
def gemma(gemma_path) -> Tokenizer:
    return load_tokenizer(gemma_path)


@pytest.fixture(scope="module")
def original_smollm2(smollm2_path) -> PreTrainedTokenizerFast:
    """What the model's own tokenizer.json says: single digits, then GPT-2's split; no normalizer, no BOS."""
    metadata = read_gguf_header(smollm2_path).metadata
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    backend = Backend(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == 3]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=tokens[1], eos_token=tokens[2])


def test_smollm2_encodes_as_its_original_tokenizer(smollm2, original_smollm2):
    assert len(smollm2.encode("12345")) == 5
    assert smollm2.encode(" 😀") == [40303, 218]
    assert smollm2.encode("Ω") == [153, 119]
    assert smollm2.encode("<|im_end|>") == [2] == original_smollm2("<|im_end|>")["input_ids"]
    for text in [*TEXTS, *random_texts()]:
        ids = smollm2.encode(text)
        assert ids == original_smollm2(text)["input_ids"], text
        assert smollm2.decode(ids, skip_special_tokens=False) == text


def test_gemma_encodes_as_transformers_for_the_same_file(gemma, gemma_path):
    reference = AutoTokenizer.from_pretrained(str(gemma_path.parent), gguf_file=gemma_path.name)
    for text in [*TEXTS, *random_texts()]:
        ids = gemma.encode(text)
        assert ids == reference(text)["input_ids"], text
        assert gemma.decode(ids[1:], skip_special_tokens=False) == text
    assert gemma.vocab_size == len(reference) == 262144


def test_gemma_costs_little_to_build(gemma_path):
    def seconds() -> float:
        start = time.process_time()  # not the clock on the wall: other tests may run beside this one
        load_tokenizer(gemma_path)
        return time.process_time() - start

    assert min(seconds() for _ in range(3)) < 2.5  # 1.0 on a quiet machine; 20 the straightforward way


def test_an_unknown_pre_tokenizer_name_is_an_error(smollm2_path, tmp_path):
    metadata = read_gguf_header(smollm2_path).metadata
    keys = {key: metadata[f"tokenizer.ggml.{key}"] for key in ("model", "tokens", "token_type", "merges")}
    with pytest.raises(ModelError, match="'smollm9'"):
        load_tokenizer(write_gguf(tmp_path / "copy.gguf", pre="smollm9", **keys))


def test_bytes_become_characters_as_they_complete(smollm2):
    detokenizer = Detokenizer(smollm2, [])
    deltas = []
    for token_id in [10813, 242, 218, 143, 233, 28589, 2]:
        detokenizer.push([token_id])
        deltas.append(detokenizer.delta(finished=False))
    assert [*deltas, detokenizer.delta(finished=True)] == ["", "", "😀", "", "ď", "中", "", ""]
    assert smollm2.token_text(28589) == "中" and list(smollm2.token_bytes(28589)) == [228, 184, 173]
    assert len({smollm2.token_text(i) for i in range(111, 116)}) == 5


def test_chat_prompts_start_with_one_bos_and_raw_prompts_as_the_file_says(smollm2, gemma, original_smollm2):
    chat = [{"role": "user", "content": "hi"}]
    ids = ChatTemplate(smollm2.chat_template, smollm2).render_ids(chat)
    assert ids == original_smollm2.apply_chat_template(
        chat, chat_template=smollm2.chat_template, add_generation_prompt=True, return_dict=False
    )
    assert ids[:2] == [1, 9690] and smollm2.encode("hi")[0] != 1
    template = (Path(__file__).parent / "templates" / "gemma3.jinja").read_text()
    ids = ChatTemplate(template, gemma).render_ids(chat)
    assert ids[0] == 2 and ids.count(2) == 1
    assert gemma.encode("hi")[0] == 2 and gemma.encode("hi").count(2) == 1
    assert gemma.chat_template is None


def test_every_token_of_both_vocabularies_has_the_bytes_it_decodes_to(smollm2, gemma):
    for tokenizer in (smollm2, gemma):
        ids = random.Random(0).sample(range(tokenizer.vocab_size), 20_000)
        raw = b"".join(map(tokenizer.token_bytes, ids))
        assert tokenizer.decode(ids, skip_special_tokens=False) == raw.decode(errors="replace")
        whole = [token_id for token_id in ids if not tokenizer.token_text(token_id).startswith("bytes:")]
        assert tokenizer.backend.decode(whole, skip_special_tokens=False) == tokenizer.decode(
            whole, skip_special_tokens=False
        )


def test_long_texts_are_detokenized_in_linear_time(smollm2):
    def seconds(num_tokens: int) -> float:
        ids = (smollm2.encode("The quick brown fox jumps over the lazy dog. ") * num_tokens)[:num_tokens]
        detokenizer = Detokenizer(smollm2, [], stop=["never", "The quick brown cat"])
        start = time.perf_counter()
        for token_id in ids:
            detokenizer.push([token_id])
            detokenizer.delta(finished=False)
        return time.perf_counter() - start

    seconds(1000)
    assert min(seconds(80_000) for _ in range(2)) < 30 * min(seconds(10_000) for _ in range(3))
