"""From request fields to `SamplingParams`: what the request leaves open comes from the model's defaults."""

from collections.abc import Mapping
from typing import Any

from octavo.errors import ClientError
from octavo.sampling_params import SamplingParams
from octavo.server.requests import MAX_STOP_STRINGS, ChatRequest, CompletionRequest, GenerationRequest

DEFAULT_COMPLETION_TOKENS = 16

SAME_NAME = (
    "n", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "seed", "stop", "stop_token_ids", "bad_words", "include_stop_str_in_output", "ignore_eos", "min_tokens",
    "prompt_logprobs", "skip_special_tokens", "spaces_between_special_tokens", "logit_bias", "allowed_token_ids",
)  # fmt: skip
"""Fields that are parameters as they are."""

MAX_BAD_WORDS = 128
MAX_CHOICES = 16384


def completion_params(body: CompletionRequest, defaults: Mapping[str, Any], room: int) -> SamplingParams:
    """Parameters of /v1/completions. With `echo`, logprobs cover the prompt too.

    Args:
        defaults: by parameter name.
        room: tokens that the longest prompt leaves in the context; bounds a `max_tokens` that was not asked for.

    Raises:
        ClientError: a value is out of range; `param` names the field.
    """
    values = _same_name(body, defaults)
    values["max_tokens"] = (
        body.token_limit if body.token_limit is not None else _at_most(DEFAULT_COMPLETION_TOKENS, room)
    )
    values["logprobs"] = body.logprobs
    if body.echo and body.logprobs is not None and body.prompt_logprobs is None:
        values["prompt_logprobs"] = body.logprobs
    return SamplingParams(**values)


def chat_params(body: ChatRequest, defaults: Mapping[str, Any], room: int) -> SamplingParams:
    """Parameters of /v1/chat/completions; arguments and errors as above."""
    values = _same_name(body, defaults)
    values["max_tokens"] = (
        body.token_limit if body.token_limit is not None else _at_most(defaults.get("max_tokens"), room)
    )
    if body.logprobs:
        values["logprobs"] = body.top_logprobs or 0
    return SamplingParams(**values)


def check_num_choices(num_prompts: int, n: int) -> None:
    """Bound what one request may start."""
    if num_prompts * n > MAX_CHOICES:
        raise ClientError(f"{num_prompts} prompts with n {n} are more than {MAX_CHOICES} choices; lower n", param="n")


def check_sequences(stop: str | list[str] | None, bad_words: list[str] | None) -> None:
    """Bound the texts that are searched for at every token."""
    if isinstance(stop, list) and len(stop) > MAX_STOP_STRINGS:
        raise ClientError(f"stop has {len(stop)} strings but the limit is {MAX_STOP_STRINGS}", param="stop")
    if len(bad_words or ()) > MAX_BAD_WORDS:
        raise ClientError(f"bad_words has {len(bad_words or ())} but the limit is {MAX_BAD_WORDS}", param="bad_words")


def _same_name(body: GenerationRequest, defaults: Mapping[str, Any]) -> dict[str, Any]:
    check_sequences(body.stop, body.bad_words)
    asked = {name: getattr(body, name) for name in SAME_NAME}
    values = {name: value if value is not None else defaults.get(name) for name, value in asked.items()}
    return {name: value for name, value in values.items() if value is not None}


def _at_most(tokens: int | None, room: int) -> int | None:
    """`tokens`, or what fits; a prompt that leaves no room is refused by the engine, with both numbers."""
    return tokens if tokens is None or room < 1 else min(tokens, room)
