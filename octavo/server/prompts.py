"""From request fields to token ids. Long texts are tokenized in a thread, so that running streams do not stall."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeVar

from octavo import limits
from octavo.errors import ClientError
from octavo.tokenizer.chat_messages import joined_parts, plain_messages
from octavo.tokenizer.chat_template import ChatTemplate
from octavo.tokenizer.tokenizer import Tokenizer

T = TypeVar("T")

LONG_TEXT_CHARS = 4000
"""Shorter texts are tokenized where they are: it takes less time than handing them over."""


class Prompt(NamedTuple):
    """One prompt. `text` is None when it was sent as ids."""

    text: str | None
    token_ids: list[int]

    def read_text(self, tokenizer: Tokenizer) -> str:
        """The text as the model gets it, special tokens spelled out."""
        return tokenizer.decode(self.token_ids, skip_special_tokens=False)


class Conversation(NamedTuple):
    """What a chat template is rendered from. `template` is one to use instead of the model's."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, Any] = {}
    template: str | None = None
    add_special_tokens: bool = False

    @property
    def last_text(self) -> str:
        """Content of the last message."""
        content = joined_parts(plain_messages(self.messages[-1:])[0])["content"]
        assert isinstance(content, str)
        return content


class PromptReader:
    """Tokenizes and checks the prompts of requests.

    Args:
        vocab_size: ids that the model knows.
        max_model_len: tokens that a request may have; a text that must have more is not even tokenized.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, vocab_size: int, max_model_len: int) -> None:
        self.tokenizer = tokenizer
        self._template = template
        self._knows_developer = any("developer" in source for source in template.sources.values())
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._compiled = lru_cache(maxsize=16)(template.with_source)  # of requests
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenize")

    async def completion(self, prompt: object, add_special_tokens: bool, *, bounded: bool) -> list[Prompt]:
        """Prompts of /v1/completions: a string, strings, ids, or lists of ids. All are good, or none is taken.

        Raises:
            ClientError: not such a thing, an empty prompt, an id outside the vocabulary.
        """
        given = _split(prompt)
        prompts = []
        for i, one in enumerate(given):
            path = f"prompt[{i}]" if len(given) > 1 else "prompt"
            if isinstance(one, str):
                token_ids = await self.encode(one, add_special_tokens, bounded=bounded)
                prompts.append(Prompt(one, token_ids))
            else:
                if bounded and len(one) > self._max_model_len:
                    raise ClientError(
                        f"{path} has {len(one)} tokens but a request may have {self._max_model_len}; shorten it, or "
                        "raise --max-model-len",
                        param="prompt",
                    )
                self.check_ids(one, path)
                prompts.append(Prompt(None, one))
            if not prompts[-1].token_ids:
                raise ClientError(f"{path} is empty; send at least one token", param="prompt")
        return prompts

    async def chat(self, conversation: Conversation, *, bounded: bool = False) -> list[int]:
        """Ids of a rendered conversation.

        Raises:
            ClientError: the model has no template, or its template refuses the messages.
        """
        messages = conversation.messages
        if not self._knows_developer:  # OpenAI's newer name of the system role
            messages = [{**m, "role": "system"} if m.get("role") == "developer" else m for m in messages]

        def render() -> list[int]:
            template = self._template if conversation.template is None else self._compiled(conversation.template)
            return template.render_ids(
                messages,
                tools=conversation.tools,
                documents=conversation.documents,
                add_generation_prompt=conversation.add_generation_prompt,
                continue_final_message=conversation.continue_final_message,
                chat_template_kwargs=conversation.variables,
                add_special_tokens=conversation.add_special_tokens,
            )

        if conversation.template is not None:  # to compile and try it takes time
            return await self._in_thread(render)
        num_chars = sum(len(str(message.get("content"))) for message in messages)
        token_ids = await self._run(num_chars, render, bounded)
        if not token_ids:
            raise ClientError("the messages render to an empty prompt; send some content", param="messages")
        return token_ids

    def variables(self, conversation: Conversation) -> dict[str, Any]:
        """What the template is told: what the request says, and else what the server does."""
        return {**self._template.variables, **conversation.variables}

    async def encode(self, text: str, add_special_tokens: bool, *, bounded: bool = False) -> list[int]:
        """Ids of a text. With `bounded`, one that is far beyond the context is refused without being tokenized."""
        return await self._run(
            len(text), lambda: self.tokenizer.encode(text, add_special_tokens=add_special_tokens), bounded
        )

    def check_ids(self, token_ids: list[Any], path: str) -> None:
        """Raise ClientError for what is not a token id of this model."""
        for token_id in token_ids:
            if type(token_id) is not int or not 0 <= token_id < self._vocab_size:
                raise ClientError(
                    f"{path} holds {str(token_id)[:80]} but token ids are whole numbers below {self._vocab_size}",
                    param=path.partition("[")[0],
                )

    async def _run(self, num_chars: int, work: Callable[[], T], bounded: bool) -> T:
        if num_chars < LONG_TEXT_CHARS:
            return work()

        def checked() -> T:
            if bounded and num_chars > self._max_model_len * self._longest_token:
                raise ClientError(
                    f"the prompt has {num_chars} characters, which is more than {self._max_model_len} tokens in any "
                    "case; shorten it",
                    param="prompt",
                )
            return work()

        return await self._in_thread(checked)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    @cached_property
    def _longest_token(self) -> int:
        """Most characters one token can stand for."""
        return max(map(len, self.tokenizer.backend.get_vocab()))

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def truncate(prompt: Prompt, limit: int | None, side: str, max_model_len: int) -> Prompt:
    """Keep `limit` tokens of a prompt, dropping from `side`; -1 keeps what the context holds."""
    if limit is None:
        return prompt
    limit = max_model_len - 1 if limit == -1 else limit
    if len(prompt.token_ids) <= limit:
        return prompt
    if limit == 0:
        raise ClientError("truncate_prompt_tokens is 0, which leaves no prompt", param="truncate_prompt_tokens")
    return Prompt(None, prompt.token_ids[-limit:] if side == "left" else prompt.token_ids[:limit])


def _split(prompt: object) -> list[str | list[Any]]:
    """One entry per prompt; what is inside lists of ids is not looked at."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if isinstance(prompt[0], str | list):
            limits.PROMPTS.check("prompt", len(prompt))
        if all(isinstance(one, str) for one in prompt) or all(isinstance(one, list) for one in prompt):
            return prompt
        if not any(isinstance(one, str | list) for one in prompt):
            return [prompt]
        raise ClientError("prompt mixes strings, ids and lists; send one kind", param="prompt")
    if prompt == []:
        raise ClientError("prompt is empty; send at least one token", param="prompt")
    raise ClientError("prompt must be a string, a list of strings, token ids, or lists of token ids", param="prompt")
