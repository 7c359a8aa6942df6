"""Which chat template an engine uses: the one of --chat-template, or the model's own. Knows no messages."""

from pathlib import Path

from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.tokenizer.chat_template import ChatTemplate
from octavo.tokenizer.tokenizer import Tokenizer


def make_template(config: EngineConfig, tokenizer: Tokenizer) -> ChatTemplate:
    """The chat template. A model without one is an error only once somebody chats with it.

    Raises:
        ConfigError: --chat-template names no file and is no template, or it is not valid jinja.
    """
    given = config.model.chat_template
    if given is None:
        return ChatTemplate(tokenizer.chat_templates, tokenizer)
    source = given if "{" in given else _read(given)
    template = ChatTemplate(source, tokenizer)
    if template.error is not None:
        raise ConfigError(f"--chat-template: {template.error}")
    return template


def _read(path: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"--chat-template {path!r} cannot be read: {err}") from None
