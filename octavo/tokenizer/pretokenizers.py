"""How each `tokenizer.ggml.pre` name splits text before byte-level BPE. The name is all that a GGUF file says.

The splits are those of the models' own tokenizer.json files, as `tokenizers` runs them; where a name has no published
file the regexes of llama.cpp apply (https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp).
Differences from llama.cpp, which are the original tokenizers' behaviour: NFC normalization where the model has it.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Punctuation, Split

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SIGNS_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

LLAMA3 = rf"{CONTRACTIONS}|{WORDS}|\p{{N}}{{1,3}}|{SIGNS_AND_SPACE}"
QWEN2 = rf"{CONTRACTIONS}|{WORDS}|\p{{N}}|{SIGNS_AND_SPACE}"
MINICPM5 = rf"{CONTRACTIONS}|{WORDS}|\p{{N}}+|{SIGNS_AND_SPACE}"
QWEN35 = (
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SEED_CODER = rf"{CONTRACTIONS}|{WORDS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
EXAONE_MOE = (
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)

UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = r"[^\r\n\p{L}\p{N}]?"
CASED_SIGNS_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = rf"{CASED}{UPPER}*{LOWER}+|{CASED}{UPPER}+{LOWER}*|\p{{N}}|{CASED_SIGNS_AND_SPACE}"
GPT4O = (
    rf"{CASED}{UPPER}*{LOWER}+{CONTRACTIONS}?|{CASED}{UPPER}+{LOWER}*{CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}|{CASED_SIGNS_AND_SPACE}"
)

# The cased letters. Escaped where a character equals another one after normalization, as editors and tools like to do.
DEEPSEEK_LETTERS = (
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d"
    r"ℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
)
DEEPSEEK_SIGNS = r"\s?[!-/:-~！-／：-～‘-‟　-。]+"
DEEPSEEK_HAN = r"[一-龥ࠀ-一가-퟿]+"
DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"


class Recipe(NamedTuple):
    """What a name stands for.

    Attributes:
        steps: makes the splitting steps; each works on the pieces of the one before.
        nfc: text is NFC-normalized first.
        whole_words: a word that is a token is taken at once, merges or not (`ignore_merges`).
        adds_bos: prompts start with BOS unless the file says otherwise.
    """

    steps: Callable[[], list[PreTokenizer]]
    nfc: bool = False
    whole_words: bool = False
    adds_bos: bool = False


def _split(*regexes: str) -> list[PreTokenizer]:
    splits = [Split(Regex(regex), behavior="isolated") for regex in regexes]
    return [*splits, ByteLevel(add_prefix_space=False, use_regex=False)]


def _gpt2() -> list[PreTokenizer]:
    return [ByteLevel(add_prefix_space=False, use_regex=True)]


def _single_digits() -> list[PreTokenizer]:
    return [Digits(individual_digits=True), *_gpt2()]


def _falcon() -> list[PreTokenizer]:
    threes = Split(Regex("[0-9][0-9][0-9]"), behavior="isolated")
    return [Punctuation(behavior="contiguous"), *_gpt2(), Digits(individual_digits=False), threes]


def _named(recipe: Recipe, *names: str) -> dict[str, Recipe]:
    return dict.fromkeys(names, recipe)


RECIPES: dict[str, Recipe] = {
    **_named(Recipe(_gpt2), "gpt-2", "phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "gigachat", "a.x-4.0"),
    **_named(Recipe(_gpt2), "mellum", "modern-bert", "exaone4", "jais", "trillion", "granite-docling"),
    **_named(Recipe(_gpt2, nfc=True), "olmo", "mpt"),
    **_named(Recipe(_single_digits), "smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"),
    **_named(Recipe(_single_digits, nfc=True), "command-r"),
    **_named(
        Recipe(partial(_split, LLAMA3), whole_words=True, adds_bos=True),
        *("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
    ),
    **_named(Recipe(partial(_split, LLAMA3)), "dbrx", "smaug-bpe", "chatglm-bpe", "glm4"),
    **_named(Recipe(partial(_split, TEKKEN), whole_words=True, adds_bos=True), "tekken"),
    **_named(Recipe(partial(_split, QWEN2), nfc=True), "qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"),
    **_named(Recipe(partial(_split, QWEN2)), "stablelm2", "hunyuan", "solar-open", "grok-2"),
    **_named(Recipe(partial(_split, QWEN35), nfc=True), "qwen35"),
    **_named(Recipe(partial(_split, GPT4O)), "gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"),
    **_named(
        Recipe(
            partial(
                _split,
                *(r"[\r\n]", DEEPSEEK_LETTERS, DEEPSEEK_SIGNS, r"\s+$", DEEPSEEK_HAN, r"\p{N}+"),
            )
        ),
        "deepseek-llm",
    ),
    **_named(
        Recipe(partial(_split, r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_HAN, r"\p{N}")),
        "deepseek-coder",
    ),
    **_named(
        Recipe(partial(_split, r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3)),
        *("deepseek-v3", "hunyuan-dense", "joyai-llm"),
    ),
    **_named(Recipe(_falcon), "falcon"),
    **_named(Recipe(partial(_split, BLOOM)), "bloom", "poro-chat", "gpt3-finnish"),
    **_named(Recipe(partial(_split, BLOOM, r"\p{N}")), "viking"),
    **_named(Recipe(partial(_split, BAILING)), "bailingmoe", "bailingmoe2", "llada-moe"),
    **_named(Recipe(partial(_split, SEED_CODER)), "seed-coder"),
    **_named(Recipe(partial(_split, EXAONE_MOE)), "exaone-moe"),
    **_named(Recipe(partial(_split, r"\p{N}{1,3}", MINICPM5), whole_words=True), "minicpm5"),
    **_named(Recipe(partial(_split, r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")), "default"),
}
"""By `tokenizer.ggml.pre`. "default" is llama.cpp's, for files that name no model."""
