"""A conversation rendered to the text or ids a chat model was trained on. Knows no HTTP and no model.

Templates are jinja programs that come with models. They run as in Transformers (same environment, same helpers), in
a sandbox with limits (`template_sandbox.py`). What a message looks like to a template is decided in
`chat_messages.py`.

Rules:
* Special tokens are the template's business: the text is encoded without adding BOS again.
* Content made of parts is given to the template as it is if the template iterates over parts, else as one string.
* `continue_final_message` ends the prompt with exactly the content of the last message, trailing blanks included,
  whether or not the template trims a finished message. (Blanks before the text are the template's to trim.)
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import jinja2
import jinja2.ext

from octavo import limits
from octavo.errors import ClientError
from octavo.tokenizer.chat_messages import joined_parts, plain_messages, typed_parts
from octavo.tokenizer.template_sandbox import ENVIRONMENT, within
from octavo.tokenizer.tokenizer import Tokenizer

MAX_CHARACTERS = limits.RENDERED_CHARACTERS.default
"""Largest text a template may produce; the largest contexts are a tenth of this."""
MAX_SECONDS = float(limits.RENDER_SECONDS.default)
"""Longest time a template may run."""
PROBE_SECONDS = 0.5
"""The same for the trial runs that find out what a template can read."""

# Marks the end of the content that is to be continued. Private-use characters, so that no user text and no trimming
# or escaping filter touches it.
_END_MARK = "\ue0c0octavo:end\ue0c1"
_PROBE = "octavo-probe"
ContentFormat = Literal["auto", "string", "openai"]

_RESERVED = frozenset(["messages", "tools", "documents", "add_generation_prompt"])


def syntax_error(source: str) -> str | None:
    """What is wrong with the text of a template, None if it compiles."""
    try:
        ENVIRONMENT.parse(source)
    except jinja2.TemplateSyntaxError as err:
        return f"the chat template is not valid jinja: line {err.lineno}: {err.message}"
    return None


class ChatTemplate:
    """A compiled template, or several by name ("default", "tool_use").

    Args:
        source: jinja text, or texts by name; None for a model without one, which is an error only once it is used.
        tokenizer: encodes the text and names the special tokens.
        content_format: "string" gives the template every content as one string, "openai" as a list of parts; "auto"
            finds out which it reads.
        variables: what the template gets where a conversation does not say otherwise.

    Attributes:
        variables: as given.
        error: what is wrong with the template, None if it compiles. Lets a start-up refuse a template of the user's.
        sources: the jinja texts by name.
    """

    def __init__(
        self,
        source: str | Mapping[str, str] | None,
        tokenizer: Tokenizer,
        *,
        content_format: ContentFormat = "auto",
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._content_format = content_format
        self.variables = dict(variables or {})
        self.error: str | None = None
        self._templates: dict[str, _Compiled] = {}
        named = {"default": source} if isinstance(source, str) else dict(source or {})
        if not named:
            self.error = "the model has no chat template; start with --chat-template FILE, or use /v1/completions"
        self.sources = named
        for name, text in named.items():
            wrong = syntax_error(text)
            if wrong is None:
                self._templates[name] = _Compiled(text, tokenizer.special_tokens, content_format)
            self.error = wrong or self.error

    def with_source(self, source: str) -> "ChatTemplate":
        """Another template, used in the same way.

        Raises:
            ClientError: it does not compile.
        """
        made = ChatTemplate(source, self.tokenizer, content_format=self._content_format, variables=self.variables)
        if made.error is not None:
            raise ClientError(made.error, param="chat_template")
        return made

    def render_ids(
        self, messages: Sequence[Mapping[str, Any]], /, *, add_special_tokens: bool = False, **options: Any
    ) -> list[int]:
        """Token ids of the prompt; takes what `render` takes.

        Args:
            add_special_tokens: also those that the tokenizer adds to a plain text, whatever the template wrote.
        """
        return self.tokenizer.encode(self.render(messages, **options), add_special_tokens=add_special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> str:
        """Text of the prompt.

        Args:
            messages: in the form of OpenAI's API.
            tools: function definitions in the form of OpenAI's API.
            add_generation_prompt: end with the header of the answer.
            continue_final_message: end inside the last message, so that the answer continues it.
            documents: for templates that cite sources.
            chat_template_kwargs, kwargs: further variables of the template ("enable_thinking").

        Raises:
            ClientError: there is no usable template, the template refuses the conversation, or the options do not
                fit; `param` names the field.
        """
        variables = _plain("chat_template_kwargs", {**self.variables, **(chat_template_kwargs or {}), **kwargs})
        _check_options(variables, add_generation_prompt, continue_final_message)
        template = self._choose(tools)
        conversation = plain_messages(messages)
        if continue_final_message:
            _mark_end(conversation[-1])
        variables["tools"] = _plain("tools", tools)
        variables["documents"] = _plain("documents", documents)
        variables["add_generation_prompt"] = add_generation_prompt
        text = template.render(template.shaped(conversation), variables, MAX_SECONDS)
        return _cut_at_mark(text) if continue_final_message else text

    def _choose(self, tools: Sequence[Mapping[str, Any]] | None) -> "_Compiled":
        if self.error is not None:
            raise ClientError(self.error, param="messages")
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        if name not in self._templates:
            raise ClientError(
                f"the model has only the chat templates {', '.join(self._templates)} and none for plain chat; "
                "start with --chat-template FILE",
                param="messages",
            )
        return self._templates[name]


class _Compiled:
    """One template: how it wants content, and how it runs."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], content_format: ContentFormat) -> None:
        self._template = ENVIRONMENT.from_string(source)
        self._special_tokens = dict(special_tokens)
        self._content_format = content_format
        self._roles_with_parts: dict[str, bool] = {}
        self._takes_text = (
            content_format != "auto" or self._comes_through("user", _PROBE) or not self._takes_parts("user")
        )

    def shaped(self, conversation: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The conversation with every content in a form the template can read."""
        return [self._shaped(message) for message in conversation]

    def _shaped(self, message: dict[str, Any]) -> dict[str, Any]:
        if self._content_format != "auto":
            return joined_parts(message) if self._content_format == "string" else typed_parts(message)
        if not self._takes_text:
            return typed_parts(message)
        content = message["content"]
        if isinstance(content, list) and len(content) > 1 and self._takes_parts(message["role"]):
            return message
        return joined_parts(message)

    def _takes_parts(self, role: str) -> bool:
        """Whether all of a content made of parts, in a message of this role, comes out as its text."""
        if role not in self._roles_with_parts:
            parts = [{"type": "text", "text": _PROBE}, {"type": "text", "text": _PROBE}]
            self._roles_with_parts[role] = self._comes_through(role, parts)
        return self._roles_with_parts[role]

    def _comes_through(self, role: str, content: str | list[dict[str, str]]) -> bool:
        """Whether the smallest conversation with this content renders, and holds its texts and not its structure."""
        message, user = {"role": role, "content": content}, {"role": "user", "content": content}
        conversation = {"user": [user], "system": [message, user], "assistant": [user, message]}.get(role, [])
        variables = {"tools": None, "documents": None, "add_generation_prompt": False}
        try:
            text = self.render(conversation, variables, PROBE_SECONDS)
        except ClientError:
            return False
        if isinstance(content, str):
            return text.count(_PROBE) == len(conversation) > 0
        dumped = "'type': 'text'" in text or '"type": "text"' in text
        return not dumped and text.count(_PROBE) == len(conversation) * len(content) > 0

    def render(self, conversation: list[dict[str, Any]], variables: dict[str, Any], seconds: float) -> str:
        """Run the template within its limits."""
        try:
            with within(seconds):
                return "".join(self._pieces(conversation, variables))
        except ClientError:
            raise
        except Exception as err:  # the template is foreign code, and whatever it raises is about these messages
            raise ClientError(f"the chat template refused the conversation: {err}", param="messages") from err

    def _pieces(self, conversation: list[dict[str, Any]], variables: dict[str, Any]) -> Iterator[str]:
        left = MAX_CHARACTERS
        for piece in self._template.generate({**self._special_tokens, **variables, "messages": conversation}):
            left -= len(piece)
            if left < 0:
                raise ClientError(
                    f"the chat template produces more than {MAX_CHARACTERS} characters; send less", param="messages"
                )
            yield piece


def _check_options(variables: Mapping[str, Any], add_generation_prompt: bool, continue_final_message: bool) -> None:
    taken = sorted(_RESERVED & variables.keys())
    if taken:
        raise ClientError(
            f"chat_template_kwargs may not hold {', '.join(taken)}; use the request field of that name",
            param="chat_template_kwargs",
        )
    if continue_final_message and add_generation_prompt:
        raise ClientError(
            "continue_final_message and add_generation_prompt exclude each other; set add_generation_prompt to false",
            param="continue_final_message",
        )


def _plain(param: str, value: Any) -> Any:
    """A copy made of JSON types alone: nothing a template could call."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError) as err:
        raise ClientError(f"{param} is not JSON: {err}", param=param) from err


def _mark_end(message: dict[str, Any]) -> None:
    """Put the mark behind the text of a message."""
    content = message["content"]
    if isinstance(content, str):
        message["content"] = content + _END_MARK
    elif content:
        content[-1]["text"] += _END_MARK
    else:
        content.append({"type": "text", "text": _END_MARK})


def _cut_at_mark(text: str) -> str:
    end = text.rfind(_END_MARK)
    if end < 0:
        raise ClientError(
            "continue_final_message is set but the chat template leaves the end of the last message out",
            param="continue_final_message",
        )
    return text[:end]
