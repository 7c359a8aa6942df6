"""Which chat template an engine uses: the one of --chat-template, or the model's own. Knows no messages."""

from pathlib import Path

from octavo.config import EngineConfig
from octavo.engine.options import parse_json_object
from octavo.errors import ConfigError
from octavo.tokenizer.chat_template import ChatTemplate
from octavo.tokenizer.tokenizer import Tokenizer


def make_template(config: EngineConfig, tokenizer: Tokenizer) -> ChatTemplate:
    """The chat template. A model without one is an error only once somebody chats with it.

    Raises:
        ConfigError: --chat-template names no file and is no template, or it is not valid jinja; the variables are not
            a JSON object.
    """
    model = config.model
    given = model.chat_template
    template = ChatTemplate(
        tokenizer.chat_templates if given is None else given if "{" in given else _read(given),
        tokenizer,
        content_format=model.chat_template_content_format,
        variables=parse_json_object("default_chat_template_kwargs", model.default_chat_template_kwargs),
    )
    if given is not None and template.error is not None:
        raise ConfigError(f"--chat-template: {template.error}")
    return template


def _read(path: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"--chat-template {path!r} cannot be read: {err}") from None
