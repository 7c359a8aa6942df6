"""The catalogue's models, whole, against Transformers' own reading of the same GGUF files in float32."""

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from octavo.engine.resolve import make_config
from octavo.llm import LLM
from octavo.loader.catalogue import pull
from octavo.outputs import RequestOutput
from octavo.sampling_params import SamplingParams
from octavo.tokenizer.tokenizer import Tokenizer
from tests.loader.gguf_files import transformers_state

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

SMOL, GEMMA = "smollm2-135m-instruct", "gemma-3-270m"
GEMMA_WINDOW = 512

TIE = 1e-3
"""Two float32 computations may choose differently only where the reference itself sees less than this between them."""

TEXTS = (
    "The capital of France is",
    "Water boils at 100 degrees Celsius, and it freezes at",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Once upon a time, in a village by the sea, there lived an old man who",
    "Q: What is the largest planet of the solar system?\nA:",
    "Zutaten: 200 g Mehl, 3 Eier, 1 Prise Salz. Zubereitung:",
)

LENGTHS = (10, 23, 60, 150, 320, 511, 512, 513, 600, 700)
"""Prompt lengths in tokens, on both sides of Gemma's window."""


class Reference:
    """Transformers' own float32 reading of a catalogue model."""

    def __init__(self, name: str) -> None:
        config, state = transformers_state(pull(name))
        self.model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
        missing, unexpected = self.model.load_state_dict(state, strict=False)
        assert (missing, unexpected) == (["lm_head.weight"], [])
        self.model.tie_weights()

    def logits(self, token_ids: Sequence[int], last: int = 1) -> Tensor:
        """[last, vocab]: what follows each of the last tokens."""
        with torch.inference_mode():
            ids = torch.tensor([list(token_ids)])
            return self.model(ids, use_cache=False, logits_to_keep=last).logits[0]

    def assert_greedy(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Each token is what the reference would say after the ones before it, so both answer the same."""
        logits = self.logits([*prompt, *answer[:-1]], len(answer))
        said = logits.gather(1, torch.tensor(answer)[:, None]).squeeze(1)
        behind = logits.max(-1).values - said
        assert behind.max() < TIE, f"token {int(behind.argmax())} is {behind.max():.4f} behind the reference's choice"


@pytest.fixture(scope="module")
def gemma_reference() -> Reference:
    return Reference(GEMMA)


@pytest.fixture(scope="module")
def gemma() -> Iterator[LLM]:
    """Float32, with raw logits in the place of logprobs."""
    with open_llm(GEMMA, logprobs_mode="raw_logits", max_logprobs=-1) as llm:
        yield llm


def open_llm(name: str, **options: Any) -> LLM:
    return LLM(name, **{"device": "cpu", "dtype": "float32", "max_model_len": 2048, "max_num_seqs": 8, **options})


def run(llm: LLM, prompts: Sequence[Sequence[int]], max_tokens: int, **params: Any) -> list[RequestOutput]:
    greedy = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **params)
    return llm.generate([list(prompt) for prompt in prompts], greedy, use_tqdm=False)


def answers(llm: LLM, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in run(llm, prompts, max_tokens)]


def raw_logits(output: RequestOutput) -> Tensor:
    """[vocab] of the first token of an answer that was asked for all of them."""
    logprobs = output.outputs[0].logprobs
    assert logprobs is not None
    entries = logprobs[0]
    return torch.tensor([entries[token_id].logprob for token_id in range(len(entries))])


def chronicle(seed: int) -> Iterator[str]:
    """Sentences without end that nobody has learnt by heart."""
    choose = random.Random(seed)
    who = ("the miller", "a young clerk", "Captain Orlov", "the tall nun", "an old fox", "the harbour pilot")
    did = ("carried", "sold", "painted", "lost", "counted", "hid", "mended")
    what = ("lamps", "apples", "maps of the coast", "letters", "copper coins", "horses", "clocks")
    where = ("behind the church", "on the pier", "near the salt works", "under the bridge", "in the market")
    for day in itertools.count(1):
        number = choose.randint(2, 99)
        yield f" On day {day} {choose.choice(who)} {choose.choice(did)} {number} {choose.choice(what)}"
        yield f" {choose.choice(where)}, and the wind turned to the {choose.choice(('north', 'south', 'east'))}."


def long_prompt(tokenizer: Tokenizer, num_tokens: int, seed: int = 0, first: str = "", last: str = "") -> list[int]:
    """`first`, as much of a chronicle as fits, and `last`, in exactly so many tokens."""
    head, tail = tokenizer.encode(first), tokenizer.encode(last, add_special_tokens=False)
    text = "".join(itertools.islice(chronicle(seed), num_tokens))
    middle = tokenizer.encode(text, add_special_tokens=False)
    return [*head, *middle[: num_tokens - len(head) - len(tail)], *tail]


# ---------------------------------------------------------------- greedy answers


def test_smollm2_answers_as_transformers_does() -> None:
    with open_llm(SMOL) as llm:
        prompts = [llm.tokenizer.encode(text) for text in TEXTS]
        (question,) = llm.chat([{"role": "user", "content": TEXTS[4]}], SamplingParams(max_tokens=0), use_tqdm=False)
        prompts += [question.prompt_token_ids, long_prompt(llm.tokenizer, 300)]
        said = answers(llm, prompts, 64)
    reference = Reference(SMOL)
    for prompt, answer in zip(prompts, said, strict=True):
        assert len(answer) == 64
        reference.assert_greedy(prompt, answer)


def test_gemma_answers_as_transformers_does_also_past_its_window(gemma: LLM, gemma_reference: Reference) -> None:
    prompts = [gemma.tokenizer.encode(text) for text in TEXTS[:5]]
    prompts += [long_prompt(gemma.tokenizer, length, seed=length) for length in (GEMMA_WINDOW - 30, 600, 700)]
    for prompt, answer in zip(prompts, answers(gemma, prompts, 64), strict=True):
        assert len(answer) == 64
        gemma_reference.assert_greedy(prompt, answer)


# ---------------------------------------------------------------- WGT-04: numbers, in every type


@pytest.fixture(scope="module")
def prompts(gemma: LLM) -> list[list[int]]:
    return [long_prompt(gemma.tokenizer, length, seed=length) for length in LENGTHS]


@pytest.fixture(scope="module")
def expected(prompts: list[list[int]], gemma_reference: Reference) -> list[Tensor]:
    """[vocab] after each prompt."""
    return [gemma_reference.logits(prompt)[0] for prompt in prompts]


def test_wgt_04_float32_logits_of_gemma_are_those_of_transformers(
    gemma: LLM, prompts: list[list[int]], expected: list[Tensor]
) -> None:
    for prompt, logits in zip(prompts, expected, strict=True):
        got = raw_logits(run(gemma, [prompt], 1, logprobs=-1)[0])
        assert torch.cosine_similarity(got, logits, dim=0) > 0.99999
        assert got.argmax() == logits.argmax()
        torch.testing.assert_close(got, logits, atol=1e-2, rtol=0)


@pytest.mark.parametrize("asked", ["bfloat16", "float16"])
def test_wgt_04_half_precision_keeps_gemmas_first_choice(
    asked: str, prompts: list[list[int]], expected: list[Tensor]
) -> None:
    """Gemma overflows in float16, which is raised to what the machine is faster at."""
    taken = make_config(model=GEMMA, device="cpu", dtype=asked).dtype
    assert taken == "bfloat16" if asked == "bfloat16" else taken in ("bfloat16", "float32")
    with open_llm(GEMMA, dtype=asked) as llm:
        said = answers(llm, prompts, 4)
    agreed = [answer[0] == int(logits.argmax()) for answer, logits in zip(said, expected, strict=True)]
    assert sum(agreed) >= 9
    assert 0 not in {token_id for answer in said for token_id in answer}


# ---------------------------------------------------------------- PFX-04: a fact three windows ago

FACT, OTHER_FACT = "The password of the lighthouse is Marigold.", "The password of the lighthouse is Elephant."
QUESTION = " The password of the lighthouse is"


def test_pfx_04_pages_that_left_the_window_change_nothing(gemma: LLM, gemma_reference: Reference) -> None:
    prompt = long_prompt(gemma.tokenizer, 1500, first=FACT, last=QUESTION)
    said = [answers(gemma, [prompt], 20)[0] for _ in range(4)]
    with open_llm(GEMMA, enable_prefix_caching=False) as llm:
        said += answers(llm, [prompt], 20)
    # A full group of 100 pages holds the request; a sliding group of 100 would too, so it gets what one sequence's
    # window and one step need: 41 pages, each of them used more than twice.
    with open_llm(GEMMA, kv_cache_memory_bytes="100M", max_num_seqs=1, max_num_batched_tokens=128) as llm:
        full, sliding = sorted(llm.facts.num_blocks, reverse=True)
        assert sliding < 1500 // 16 // 2 < 1520 // 16 < full
        said += answers(llm, [prompt], 20)
    assert said == [said[0]] * 6
    gemma_reference.assert_greedy(prompt, said[0])


def test_pfx_04_what_stands_first_is_seen_by_the_last_token(gemma: LLM, gemma_reference: Reference) -> None:
    pair = [long_prompt(gemma.tokenizer, 1500, first=fact, last=QUESTION) for fact in (FACT, OTHER_FACT)]
    beyond = long_prompt(gemma.tokenizer, 800, first=FACT)
    moved = [*beyond, *long_prompt(gemma.tokenizer, 1500 - len(beyond), seed=1, last=QUESTION)[1:]]
    logits = [raw_logits(output) for output in run(gemma, [*pair, moved], 1, logprobs=-1)]
    differs = (logits[0] - logits[1]).abs().max()
    assert differs > 0.1
    for prompt, got in zip([*pair, moved], logits, strict=True):
        torch.testing.assert_close(got, gemma_reference.logits(prompt)[0], atol=1e-2, rtol=0)
