"""A tokenizer from the metadata of a GGUF file. Reads no tensors.

Byte-level BPE ("gpt2") brings tokens, merges and the name of its pre-tokenizer (`pretokenizers.py`). SentencePiece
("llama") brings pieces and scores; its merges are recovered (`merges.py`). Ids equal those of Transformers for the
same file, except where the file says more than Transformers reads: `add_space_prefix`, pre-tokenizer names it does
not know (SmolLM's single digits), NFC and whole-word lookup of the original tokenizer, special tokens that a
byte-level vocabulary spells with characters outside its alphabet (DeepSeek).
"""

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from octavo.errors import ModelError
from octavo.files.gguf_header import read_gguf_header
from octavo.logging import get_logger
from octavo.registry import load_object
from octavo.tokenizer.parts import TokenizerParts, mark_special, surround
from octavo.tokenizer.pretokenizers import RECIPES, Recipe
from octavo.tokenizer.spelling import SPACE

logger = get_logger(__name__)

MERGES_OF = "octavo.tokenizer.merges:merges_of"
"""Needs NumPy, which a server that reads no SentencePiece vocabulary does without."""

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
"""Values of `tokenizer.ggml.token_type`. The last two are matched whole in text; control tokens are also special."""

_ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",  # sic: the format's own spelling
    "pad_token": "padding_token_id",
    "mask_token": "mask_token_id",
}
_SENTENCEPIECE_ROLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
"""For files that do not say."""


def read_gguf(path: str | os.PathLike[str]) -> TokenizerParts:
    """Read the tokenizer of a .gguf file.

    Raises:
        ModelError: the file is damaged, has no tokenizer or one of an unknown kind; names file and key.
    """
    with _garbage_collection_paused():
        return _Metadata(os.fspath(path), read_gguf_header(path).metadata).parts()


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Half a million merges are as many tuples, which the collector would walk through again and again (0.6 s)."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Metadata:
    """The tokenizer keys of one file."""

    def __init__(self, path: str, metadata: dict[str, Any]) -> None:
        self.path = path
        self.metadata = metadata
        texts: list[str] = self._array("tokens", str)
        self.tokens = [text or f"[EMPTY_{token_id}]" for token_id, text in enumerate(texts)]  # llama.cpp's name for it
        self.types: list[int] = self._array("token_type", int, optional=True) or [NORMAL] * len(texts)
        if not self.tokens or len(self.types) != len(self.tokens):
            raise self._error(f"{len(self.tokens)} tokens and {len(self.types)} token types; both must be there")

    def parts(self) -> TokenizerParts:
        """Build what the model kind names."""
        kind = self._get("model")
        if kind == "gpt2":
            recipe = self._recipe()
            return self._finish(self._byte_level(recipe), adds_bos=recipe.adds_bos, defaults={})
        if kind == "llama":
            if self._get("pre", default="default") != "default":
                raise self._unknown_pre(["default"])
            return self._finish(self._sentencepiece(), adds_bos=True, defaults=_SENTENCEPIECE_ROLES)
        raise self._error(
            f"tokenizer.ggml.model is {kind!r}; gpt2 (byte-level BPE) and llama (SentencePiece) are supported. "
            "Pass --tokenizer with the folder of the original model"
        )

    def _recipe(self) -> Recipe:
        name = self._get("pre")
        if name is None:
            logger.warning(
                "%s: tokenizer.ggml.pre is missing, so text is split by the default rules, which may not be the "
                "model's; pass --tokenizer with the folder of the original model, or convert it again",
                self.path,
            )
            name = "default"
        if name not in RECIPES:
            raise self._unknown_pre(sorted(RECIPES))
        return RECIPES[name]

    def _byte_level(self, recipe: Recipe) -> Backend:
        merges = [merge.partition(" ")[::2] for merge in self._array("merges", str)]
        backend = self._bpe(merges, ignore_merges=recipe.whole_words)
        if recipe.nfc:
            backend.normalizer = normalizers.NFC()
        backend.pre_tokenizer = pre_tokenizers.Sequence(recipe.steps())
        backend.decoder = decoders.ByteLevel()
        return backend

    def _sentencepiece(self) -> Backend:
        scores: Sequence[float] = self._array("scores", float, int)
        if len(scores) != len(self.tokens):
            raise self._error(f"{len(self.tokens)} tokens but {len(scores)} scores")
        architecture = str(self.metadata.get("general.architecture"))
        if architecture.startswith("gemma"):
            self._spell_gemma_spaces()
            scores = range(0, -len(self.tokens), -1)  # ids, not scores, follow the merge order
        backend = self._bpe(load_object(MERGES_OF)(self.tokens, scores), byte_fallback=True, fuse_unk=True)
        prefix = bool(self._get("add_space_prefix", default=not architecture.startswith("gemma")))
        if architecture == "phi3" and prefix:
            # Its own tokenizer.json puts the space before the text's own spaces, which Metaspace does not.
            backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
        else:
            scheme = "first" if prefix else "never"
            backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=False)
        strip = [decoders.Strip(" ", 1, 0)] if prefix else []
        backend.decoder = decoders.Sequence(
            [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
        )
        return backend

    def _spell_gemma_spaces(self) -> None:
        """Runs of spaces are stored as user-defined tokens made of spaces, but the text they meet has U+2581."""
        for token_id, token in enumerate(self.tokens):
            if not token.strip(" "):
                self.tokens[token_id], self.types[token_id] = SPACE * len(token), NORMAL

    def _bpe(self, merges: list[tuple[str, str]], **options: bool) -> Backend:
        vocabulary = {token: token_id for token_id, token in enumerate(self.tokens)}
        if len(vocabulary) != len(self.tokens):
            double = next(token for token_id, token in enumerate(self.tokens) if vocabulary[token] != token_id)
            raise self._error(
                f"token {double!r} appears twice, as {self.tokens.index(double)} and {vocabulary[double]}"
            )
        try:
            return Backend(models.BPE(vocab=vocabulary, merges=merges, **options))
        except Exception as err:  # the library raises nothing narrower
            raise self._error(f"tokens and merges do not fit: {err}") from err

    def _finish(self, backend: Backend, *, adds_bos: bool, defaults: dict[str, str]) -> TokenizerParts:
        """Add special tokens, and BOS and EOS around prompts."""
        special_tokens = {role: token for role, token in (defaults | self._roles()).items() if token in self.tokens}
        backend.add_special_tokens(self._added(CONTROL))
        backend.add_tokens(self._added(USER_DEFINED))
        mark_special(backend, special_tokens)
        bos = special_tokens.get("bos_token") if self._get("add_bos_token", default=adds_bos) else None
        eos = special_tokens.get("eos_token") if self._get("add_eos_token", default=False) else None
        surround(backend, bos, eos)
        return TokenizerParts(backend, special_tokens, self._chat_templates())

    def _added(self, token_type: int) -> list[AddedToken]:
        return [
            AddedToken(token, normalized=False, special=token_type == CONTROL)
            for token, kind in zip(self.tokens, self.types, strict=True)
            if kind == token_type
        ]

    def _roles(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for role, key in _ROLES.items():
            token_id = self._get(key)
            if token_id is None or token_id in (-1, 0xFFFFFFFF):  # both are written for "none"
                continue
            if not isinstance(token_id, int) or not 0 <= token_id < len(self.tokens):
                raise self._error(f"tokenizer.ggml.{key} is {token_id!r} but there are {len(self.tokens)} tokens")
            found[role] = self.tokens[token_id]
        return found

    def _chat_templates(self) -> dict[str, str]:
        prefix = "tokenizer.chat_template"
        named = {
            key.removeprefix(f"{prefix}."): str(value)
            for key, value in self.metadata.items()
            if key.startswith(f"{prefix}.")
        }
        default = self.metadata.get(prefix)
        return named if default is None else {"default": str(default)} | named

    def _get(self, key: str, default: Any = None) -> Any:
        return self.metadata.get(f"tokenizer.ggml.{key}", default)

    def _array(self, key: str, *kinds: type, optional: bool = False) -> list[Any]:
        found = self._get(key)
        if found is None and optional:
            return []
        if not isinstance(found, list) or not all(issubclass(kind, kinds) for kind in set(map(type, found))):
            raise self._error(f"tokenizer.ggml.{key} must be an array of {kinds[0].__name__}")
        return found

    def _unknown_pre(self, known: list[str]) -> ModelError:
        return self._error(
            f"tokenizer.ggml.pre is {self._get('pre')!r}, which is unknown for {self._get('model')}, and a guess would "
            f"change every prompt; pass --tokenizer with the folder of the original model. Known: {', '.join(known)}"
        )

    def _error(self, message: str) -> ModelError:
        return ModelError(f"{self.path}: {message}")
