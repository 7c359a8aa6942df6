"""From request fields to `SamplingParams`: what the request leaves open comes from the model's defaults."""

from collections.abc import Mapping
from typing import Any

from octavo import limits
from octavo.errors import ClientError
from octavo.sampling_params import BeamSearchParams, RepetitionDetectionParams, SamplingParams
from octavo.server.requests import ChatRequest, CompletionRequest, GenerationRequest
from octavo.server.structured import structured_params

DEFAULT_COMPLETION_TOKENS = 16

SAME_NAME = (
    "n", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "seed", "stop", "stop_token_ids", "bad_words", "include_stop_str_in_output", "ignore_eos", "min_tokens",
    "prompt_logprobs", "logprob_token_ids", "skip_special_tokens", "spaces_between_special_tokens", "logit_bias",
    "allowed_token_ids",
)  # fmt: skip
"""Fields that are parameters as they are."""


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
    return _params(values)


def chat_params(body: ChatRequest, defaults: Mapping[str, Any], room: int) -> SamplingParams:
    """Parameters of /v1/chat/completions; arguments and errors as above."""
    values = _same_name(body, defaults)
    values["max_tokens"] = (
        body.token_limit if body.token_limit is not None else _at_most(defaults.get("max_tokens"), room)
    )
    if body.logprobs:
        values["logprobs"] = body.top_logprobs or 0
    return _params(values)


def beam_params(
    body: GenerationRequest, params: SamplingParams, num_prompts: int, room: int
) -> BeamSearchParams | None:
    """How to search for the answers, if that is asked for: `n` is the width.

    Raises:
        ClientError: a value is out of range; `param` names the field.
    """
    if not body.use_beam_search:
        return None
    limits.BEAMS.check("n", num_prompts * params.n)
    return BeamSearchParams(
        beam_width=params.n,
        max_tokens=params.max_tokens if params.max_tokens is not None else max(1, room),
        ignore_eos=params.ignore_eos,
        length_penalty=1.0 if body.length_penalty is None else body.length_penalty,
        include_stop_str_in_output=params.include_stop_str_in_output,
        skip_special_tokens=params.skip_special_tokens,
        kept_special_token_ids=params.kept_special_token_ids,
    )


def check_num_choices(num_prompts: int, n: int) -> None:
    """Bound what one request may start."""
    limits.CHOICES.check("n", num_prompts * n)


def check_sizes(asked: GenerationRequest | SamplingParams) -> None:
    """Bound what is looked at for every token."""
    stop = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    limits.STOP_STRINGS.check("stop", len(stop))
    limits.STOP_CHARACTERS.check("stop", max(map(len, stop), default=0))
    limits.STOP_TOKEN_IDS.check("stop_token_ids", len(asked.stop_token_ids or ()))
    limits.BAD_WORDS.check("bad_words", len(asked.bad_words or ()))
    limits.BAD_WORD_CHARACTERS.check("bad_words", max(map(len, asked.bad_words or ()), default=0))
    limits.LOGIT_BIAS.check("logit_bias", len(asked.logit_bias or ()))
    limits.ALLOWED_TOKEN_IDS.check("allowed_token_ids", len(asked.allowed_token_ids or ()))


def _same_name(body: GenerationRequest, defaults: Mapping[str, Any]) -> dict[str, Any]:
    check_sizes(body)
    asked = {name: getattr(body, name) for name in SAME_NAME}
    values = {name: value if value is not None else defaults.get(name) for name, value in asked.items()}
    values["structured_outputs"] = structured_params(body)
    if body.repetition_detection is not None:
        said = {name: getattr(body.repetition_detection, name) for name in RepetitionDetectionParams.__struct_fields__}
        values["repetition_detection"] = RepetitionDetectionParams(**said)
    return {name: value for name, value in values.items() if value is not None}


def _params(values: dict[str, Any]) -> SamplingParams:
    if values.get("logprob_token_ids") and values.get("logprobs") is None:
        raise ClientError(
            "logprob_token_ids says which logprobs to report, and none are asked for; send logprobs too",
            param="logprob_token_ids",
        )
    return SamplingParams(**values)


def _at_most(tokens: int | None, room: int) -> int | None:
    """`tokens`, or what fits; a prompt that leaves no room is refused by the engine, with both numbers."""
    return tokens if tokens is None or room < 1 else min(tokens, room)
