"""Which chat template an engine uses: the one of --chat-template, or the model's own. Knows no messages."""

from pathlib import Path

from octavo.config import EngineConfig
from octavo.engine.options import parse_json_object
from octavo.errors import ConfigError
from octavo.tokenizer.chat_template import ChatTemplate, syntax_error
from octavo.tokenizer.tokenizer import Tokenizer


def make_template(config: EngineConfig, tokenizer: Tokenizer) -> ChatTemplate:
    """The chat template. A model without one is an error only once somebody chats with it.

    Raises:
        ConfigError: --chat-template names no file and is no template, or it is not valid jinja; the variables are not
            a JSON object.
    """
    model = config.model
    source = given_template(model.chat_template)
    return ChatTemplate(
        tokenizer.chat_templates if source is None else source,
        tokenizer,
        content_format=model.chat_template_content_format,
        variables=parse_json_object("default_chat_template_kwargs", model.default_chat_template_kwargs),
    )


def given_template(option: str | None) -> str | None:
    """Text of the template that --chat-template names, None if it names none.

    Raises:
        ConfigError: it names no file and is no template, or it is not valid jinja.
    """
    if option is None:
        return None
    source = option if "{" in option else _read(option)
    wrong = syntax_error(source)
    if wrong is not None:
        raise ConfigError(f"--chat-template: {wrong}")
    return source


def _read(path: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"--chat-template {path!r} cannot be read: {err}") from None
