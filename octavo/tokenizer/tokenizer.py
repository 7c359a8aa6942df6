"""Text to token ids and back, for a model folder or a .gguf file. Knows no chat, no request and no tensor.

Rules that hold for both kinds of file:
* Text of a special token inside a prompt becomes that token, as in Transformers; what a user types is not escaped.
* A lone surrogate, which UTF-8 cannot carry, counts as U+FFFD; a surrogate pair as its character. NUL is text.
* Decoding joins the bytes of all tokens and reads them as UTF-8; bytes that are not become U+FFFD.
"""

import codecs
import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer as Backend

from octavo.errors import ModelError
from octavo.tokenizer.folder import read_folder
from octavo.tokenizer.gguf import read_gguf
from octavo.tokenizer.parts import TokenizerParts
from octavo.tokenizer.spelling import spelling_of

_SURROGATE = re.compile("[\ud800-\udfff]")


def load_tokenizer(path: str | os.PathLike[str]) -> "Tokenizer":
    """The tokenizer of a model folder or a .gguf file.

    Raises:
        ModelError: files that are missing, damaged or of an unknown kind; names the file.
    """
    if os.path.isdir(path):
        return Tokenizer(read_folder(Path(path)))
    if os.path.isfile(path):
        return Tokenizer(read_gguf(path))
    raise ModelError(f"{os.fspath(path)}: no such folder or .gguf file to take a tokenizer from")


class Tokenizer:
    """Encodes and decodes; immutable once made, so any number of threads may use it.

    Attributes:
        backend: the `tokenizers` object underneath.
        vocab_size: one more than the largest id, added tokens included; the model's logits may be wider.
        special_ids: tokens that `skip_special_tokens` leaves out.
        special_tokens: role ("bos_token") to token text, as chat templates see them.
        chat_templates: name to jinja source; `chat_template` is the one named "default".
        strips_first_space: SentencePiece with a dummy prefix: the first space of a text is not the user's.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        backend = parts.backend
        backend.no_padding()
        backend.no_truncation()
        added = backend.get_added_tokens_decoder()
        self.backend: Backend = backend
        self.vocab_size: int = max(backend.get_vocab_size(with_added_tokens=True), max(added, default=-1) + 1)
        self.special_tokens = dict(parts.special_tokens)
        self.special_ids = frozenset(
            [token_id for token_id, token in added.items() if token.special]
            + [
                token_id
                for text in parts.special_tokens.values()
                if (token_id := backend.token_to_id(text)) is not None
            ]
        )
        self.bos_token_id = self._role_id("bos_token")
        self.eos_token_id = self._role_id("eos_token")
        self.chat_templates = dict(parts.chat_templates)
        self.chat_template: str | None = self.chat_templates.get("default")
        self._to_bytes, self.strips_first_space = spelling_of(backend)
        self._bytes: dict[int, bytes] = {}

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`; `add_special_tokens` adds what the model expects around a prompt (BOS, say)."""
        return self.encode_batch([text], add_special_tokens=add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        """Ids of each text, on several cores and without holding the GIL."""
        encodings = self.backend.encode_batch_fast(
            [_without_surrogates(text) for text in texts], add_special_tokens=add_special_tokens
        )
        return [encoding.ids for encoding in encodings]

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of a whole sequence. Bytes that are not UTF-8 become U+FFFD, one per broken character."""
        return "".join(self.token_pieces(token_ids, skip_special_tokens=skip_special_tokens))

    def token_pieces(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> list[str]:
        """What each token adds to the text; joined they are `decode`. A character belongs to the token that ends it."""
        decoder = TextDecoder(strips_first_space=self.strips_first_space)
        pieces = [
            "" if skip_special_tokens and token_id in self.special_ids else decoder.add(self.token_bytes(token_id))
            for token_id in token_ids
        ]
        rest = decoder.finish()
        if rest:
            pieces[-1] += rest
        return pieces

    def id_to_token(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it ("Ġhello"), None for an id without a token."""
        return self.backend.id_to_token(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds to the text; b"" for an id without a token."""
        known = self._bytes.get(token_id)
        if known is None:
            token = self.backend.id_to_token(token_id)
            known = b"" if token is None else self._token_bytes(token_id, token)
            self._bytes[token_id] = known
        return known

    def token_text(self, token_id: int) -> str:
        r"""A token as logprobs show it: its text, never empty. Part of a character is `bytes:\xf0\x9f` (so different
        tokens stay different), and an id without a token is `<token 151999>`.
        """
        raw = self.token_bytes(token_id)
        if not raw:
            return f"<token {token_id}>"
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write tokenizer.json and tokenizer_config.json, from which Transformers makes the same tokenizer."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        self.backend.save(str(target / "tokenizer.json"))
        config: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast", **self.special_tokens}
        config["clean_up_tokenization_spaces"] = False
        if self.chat_templates:
            named = [{"name": name, "template": source} for name, source in self.chat_templates.items()]
            config["chat_template"] = self.chat_template if list(self.chat_templates) == ["default"] else named
        text = json.dumps(config, ensure_ascii=False, indent=2)
        (target / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")

    def _role_id(self, role: str) -> int | None:
        token = self.special_tokens.get(role)
        return None if token is None else self.backend.token_to_id(token)

    def _token_bytes(self, token_id: int, token: str) -> bytes:
        # An added token is plain text, though it may be made of characters that spell bytes.
        if token_id in self.special_ids:
            return token.encode()
        return self._to_bytes(token)


class TextDecoder:
    """Bytes to text, piece by piece: a character appears when its last byte is there, never as a broken half."""

    def __init__(self, *, strips_first_space: bool = False) -> None:
        self._begun = b""  # a character's first bytes
        self._strips = strips_first_space

    def add(self, raw: bytes) -> str:
        """The characters that `raw` completes."""
        return self._decode(raw, final=False)

    def finish(self) -> str:
        """What the end of the text completes: U+FFFD once if the last character is cut, else nothing."""
        return self._decode(b"", final=True)

    def _decode(self, raw: bytes, final: bool) -> str:
        data = self._begun + raw
        text, num_used = codecs.utf_8_decode(data, "replace", final)
        self._begun = data[num_used:]
        if self._strips and text:
            self._strips = False
            return text.removeprefix(" ")
        return text


def _without_surrogates(text: str) -> str:
    if not _SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
