"""What every reader of tokenizer files hands over. Knows no file format."""

from dataclasses import dataclass, field

from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Roles a token may have; chat templates see the tokens under these names."""


@dataclass(frozen=True)
class TokenizerParts:
    """A backend that encodes as the model was trained, and the facts that it does not hold.

    Attributes:
        special_tokens: role ("bos_token") to the text of a token in the vocabulary.
        chat_templates: name ("default", "tool_use") to jinja source.
    """

    backend: Backend
    special_tokens: dict[str, str] = field(default_factory=dict)
    chat_templates: dict[str, str] = field(default_factory=dict)


def mark_special(backend: Backend, special_tokens: dict[str, str]) -> None:
    """Have the tokens with a role matched whole in text, and skipped by decoding."""
    backend.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special_tokens.values()])


def surround(backend: Backend, bos: str | None, eos: str | None) -> None:
    """Make encoding put `bos` before and `eos` after every text; None adds nothing."""
    template = [*([bos] if bos else []), "$A", *([eos] if eos else [])]
    special_tokens = {token: backend.token_to_id(token) for token in (bos, eos) if token}
    backend.post_processor = processors.TemplateProcessing(
        single=template, pair=[*template, "$B:1"], special_tokens=list(special_tokens.items())
    )
