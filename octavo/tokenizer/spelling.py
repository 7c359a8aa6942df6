"""The bytes a token stands for, from the way its vocabulary spells them. Knows no text and no files.

Byte-level vocabularies spell every byte as one printable character (GPT-2's table). SentencePiece vocabularies spell
a space as U+2581 and a byte that has no token of its own as "<0xE4>". Which one it is follows from the decoder.
"""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from tokenizers import Tokenizer as Backend

from octavo.errors import ModelError

SPACE = "\u2581"


class Spelling(NamedTuple):
    """How token texts become bytes.

    Attributes:
        to_bytes: token text to its bytes.
        strips_first_space: the vocabulary puts a space before every text, which decoding takes away again.
    """

    to_bytes: Callable[[str], bytes]
    strips_first_space: bool


def spelling_of(backend: Backend) -> Spelling:
    """Read the spelling off a backend's decoder.

    Raises:
        ModelError: a decoder of another kind, which no generative model uses.
    """
    steps = _steps(json.loads(backend.decoder.__getstate__())) if backend.decoder is not None else []
    kinds = [step["type"] for step in steps]
    if "ByteLevel" in kinds:
        return Spelling(byte_level_bytes, strips_first_space=False)
    replaces = any(step["type"] == "Replace" and step["content"] == " " for step in steps)
    if not (replaces or "Metaspace" in kinds):
        raise ModelError(
            f"the tokenizer's decoder is {' + '.join(kinds) or 'missing'}; byte-level and SentencePiece are supported"
        )
    to_bytes = sentencepiece_bytes if "ByteFallback" in kinds else _spaced_bytes
    return Spelling(to_bytes, strips_first_space=any(_strips(step) for step in steps))


def byte_level_bytes(token: str) -> bytes:
    """Bytes of a token in GPT-2's alphabet; a token with any other character stands for itself."""
    try:
        return bytes(map(_ALPHABET.__getitem__, token))
    except KeyError:
        return token.encode()


def sentencepiece_bytes(token: str) -> bytes:
    """Bytes of a SentencePiece token; "<0xE4>" is one byte."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes.fromhex(token[3:5])
        except ValueError:
            pass
    return _spaced_bytes(token)


def byte_alphabet() -> dict[int, str]:
    """Byte to the character that spells it: itself where it prints, else the next free character from U+0100 on."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printing]
    return {byte: chr(byte) for byte in printing} | {byte: chr(0x100 + i) for i, byte in enumerate(others)}


_ALPHABET = {character: byte for byte, character in byte_alphabet().items()}


def _spaced_bytes(token: str) -> bytes:
    return token.replace(SPACE, " ").encode()


def _steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] == "Sequence":
        return [step for inner in decoder["decoders"] for step in _steps(inner)]
    return [decoder]


def _strips(step: dict[str, Any]) -> bool:
    if step["type"] == "Strip":
        return bool(step["content"] == " " and step["start"])
    return bool(step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")
