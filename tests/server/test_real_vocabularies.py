"""The SMP-05, STR-01, STR-02, LPB-04, LPB-05, TPL and WGT-03 cases as they are written: with the vocabularies of the
catalogue's models. Slow: the files are fetched once.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from octavo.llm import LLM
from octavo.loader.catalogue import pull
from octavo.tokenizer.tokenizer import load_tokenizer
from tests.script_model import script_tensors, write_llama
from tests.server.test_cases_chat_template import part, rendered, user
from tests.server.test_cases_logprobs import chat_content
from tests.server.test_cases_streaming import text_of
from tests.server.world import World, finish_reasons, joined, serve_app

pytestmark = pytest.mark.slow

SMOLLM2, GEMMA = "smollm2-135m-instruct", "gemma-3-270m"
VOCAB_SIZE = 49152
EOS = 2
EMOJI = [10813, 242, 218]
SCRIPT = [*EMOJI, 143, 233, 28589]
TEXT = "\U0001f600ď中"


def smollm2_script(folder: Path, script: list[int], runners_up: dict[int, list[int]] | None = None) -> Path:
    """A script model with the SmolLM2 vocabulary and template."""
    load_tokenizer(str(pull(SMOLLM2))).save(folder)
    tensors = script_tensors(VOCAB_SIZE, {None: script}, EOS, runners_up or {})
    return write_llama(folder, tensors, context_length=2048, eos=EOS)


@pytest.fixture(scope="module")
def emoji(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with serve_app(smollm2_script(tmp_path_factory.mktemp("emoji"), SCRIPT)) as world:
        yield world


@pytest.fixture(scope="module")
def smollm2() -> Iterator[World]:
    with serve_app(Path(SMOLLM2), threads=2) as world:
        yield world


@pytest.mark.parametrize("chat", [False, True])
def test_str_01_and_02_with_pieces_of_smollm2(emoji: World, chat: bool) -> None:
    for max_tokens, text in ((20, TEXT), (1, "\ufffd"), (2, "\ufffd"), (3, "\U0001f600")):
        body = {"max_tokens": max_tokens, "stream_options": {"include_usage": True}}
        if chat:
            whole, chunks = emoji.chat(max_tokens=max_tokens), emoji.stream_chat(**body)
        else:
            whole, chunks = emoji.complete("hi", max_tokens=max_tokens), emoji.stream_complete("hi", **body)
        assert text_of(whole) == joined(chunks) == text
        assert finish_reasons(chunks) == [whole["choices"][0]["finish_reason"]]
        assert whole["usage"]["completion_tokens"] == chunks[-1]["usage"]["completion_tokens"] == min(max_tokens, 7)


def test_lpb_04_with_bytes_of_smollm2(tmp_path: Path) -> None:
    folder = smollm2_script(tmp_path, [111, *SCRIPT], {0: [112, 113, 114, 115]})
    tokenizer = load_tokenizer(str(folder))
    with serve_app(folder) as world:
        for stream in (False, True):
            text, entries = chat_content(world, stream, top_logprobs=5, max_tokens=20)
            first = entries[0]["top_logprobs"]
            assert [top["bytes"] for top in first] == [list(tokenizer.token_bytes(i)) for i in range(111, 116)]
            assert len({tuple(top["bytes"]) for top in first}) == 5
            raw = b"".join(bytes(entry["bytes"]) for entry in entries)
            assert raw.decode("utf-8", "replace") == text == "\ufffd" + TEXT
            assert entries[-1]["token"] == "中" and entries[-1]["bytes"] == [228, 184, 173]


def test_lpb_05_with_the_prompt_of_lm_eval(smollm2: World) -> None:
    prompt = "\n1. Carol has 20"
    for max_tokens in (0, 1, 5):
        answer = smollm2.complete(prompt, echo=True, logprobs=1, max_tokens=max_tokens)
        choice = answer["choices"][0]
        assert "".join(choice["logprobs"]["tokens"]) == choice["text"] and choice["text"].startswith(prompt)
        assert len(choice["logprobs"]["tokens"]) == answer["usage"]["total_tokens"]


def test_smp_05_bad_words_ban_the_whole_word_and_no_shared_piece(smollm2: World) -> None:
    body = {"max_tokens": 10, "ignore_eos": True, "return_token_ids": True}
    biased = smollm2.complete("This is", bad_words=["exaggerated"], logit_bias={"24098": 100}, **body)["choices"][0]
    assert 24098 not in biased["token_ids"] and "exaggerated" not in biased["text"]
    allowed = smollm2.complete("This is", bad_words=["exaggerated"], allowed_token_ids=[888], max_tokens=3)
    assert text_of(allowed) == "exexex"
    city = "Repeat after me: New York, New York, New York, New"
    assert text_of(smollm2.complete(city, max_tokens=1)) == " York"
    banned = text_of(smollm2.complete(city, bad_words=["New York"], max_tokens=20))
    assert "New York" not in city[-3:] + banned
    for prompt in ("I live in", "The city is"):
        for bias in ("New", " New"):
            new = smollm2.ok("/tokenize", prompt=bias)["tokens"][0]
            text = text_of(smollm2.complete(prompt, bad_words=["New York"], logit_bias={str(new): 30}, max_tokens=8))
            assert "New" in text and "New York" not in text
    assert smollm2.complete("x", bad_words=["\u0001"], max_tokens=2)["choices"]


def test_tpl_01_and_03_with_the_smollm2_template(smollm2: World) -> None:
    assert (
        smollm2.chat("Hello world", max_tokens=8)["usage"]["prompt_tokens"]
        == smollm2.chat([part("Hello world")], max_tokens=8)["usage"]["prompt_tokens"]
    )
    prompt = rendered(smollm2, user([part("first"), part("second")]))
    assert prompt.index("first") < prompt.index("second") and "'type'" not in prompt
    assert prompt.startswith("<|im_start|>system\n")
    for content in ("OK!", "OK! ", "OK!\n", ""):
        messages = [*user("hi"), {"role": "assistant", "content": content}]
        assert rendered(smollm2, messages, continue_final_message=True).endswith(f"assistant\n{content}")
        answer = text_of(smollm2.chat(messages=messages, continue_final_message=True, max_tokens=4))
        echoed = text_of(smollm2.chat(messages=messages, continue_final_message=True, max_tokens=4, echo=True))
        assert echoed == content + answer


def test_tpl_04_smollm2_starts_with_one_bos_in_chat_and_none_in_raw_text(smollm2: World) -> None:
    chat = smollm2.chat("hi", return_token_ids=True, max_tokens=1)
    ids = chat["prompt_token_ids"]
    assert ids[0] == 1 and ids[1] != 1 and chat["usage"]["prompt_tokens"] == len(ids)
    theirs = AutoTokenizer.from_pretrained(pull(SMOLLM2).parent, gguf_file=pull(SMOLLM2).name)
    assert ids == theirs.apply_chat_template(user("hi"), add_generation_prompt=True, return_dict=False)
    with LLM(SMOLLM2, max_model_len=512) as llm:
        assert llm.chat(user("hi"), use_tqdm=False)[0].prompt_token_ids == ids
    raw = smollm2.complete("hi", return_token_ids=True, max_tokens=1)["choices"][0]["prompt_token_ids"]
    assert raw == load_tokenizer(str(pull(SMOLLM2))).encode("hi") and 1 not in raw


def test_tpl_04_gemma_starts_with_one_bos_everywhere(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(
        "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}{% endfor %}"
    )
    with serve_app(Path(GEMMA), threads=2, chat_template=str(template), max_model_len=512) as world:
        chat = world.chat("hi", return_token_ids=True, max_tokens=1)
        raw = world.complete("hi", return_token_ids=True, max_tokens=1)
    with LLM(GEMMA, chat_template=str(template), max_model_len=512) as llm:
        ours = llm.chat(user("hi"), use_tqdm=False)[0].prompt_token_ids
    for ids in (chat["prompt_token_ids"], raw["choices"][0]["prompt_token_ids"], ours):
        assert ids[0] == 2 and ids.count(2) == 1
    file = pull(GEMMA)
    theirs = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    expected = theirs.apply_chat_template(user("hi"), chat_template=template.read_text(), return_dict=False)
    assert chat["prompt_token_ids"] == ours == expected
    assert chat["usage"]["prompt_tokens"] == len(ours)


def test_wgt_03_both_loaders_tokenize_the_same_over_http(tmp_path: Path, smollm2: World) -> None:
    strings = ["12345", " \U0001f600", "Ω", "don't stop\n\n\tx", "Café déjà vu — 123", "<|im_end|>"]
    with serve_app(smollm2_script(tmp_path, SCRIPT)) as from_folder:
        for text in strings:
            ids = smollm2.ok("/tokenize", prompt=text)["tokens"]
            assert ids == from_folder.ok("/tokenize", prompt=text)["tokens"]
            assert smollm2.ok("/detokenize", tokens=ids)["prompt"] == text
    assert smollm2.ok("/tokenize", prompt="12345")["count"] == 5
    assert smollm2.ok("/tokenize", prompt=" \U0001f600")["tokens"] == [40303, 218]
    assert smollm2.ok("/tokenize", prompt="Ω")["tokens"] == [153, 119]
    assert smollm2.ok("/tokenize", prompt="<|im_end|>")["tokens"] == [EOS]
