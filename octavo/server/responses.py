"""What the routes answer, as plain structs: msgspec writes one in about a microsecond, which a token stream needs.

NaN and infinities are written as null. A field set to UNSET is left out.
"""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from octavo.outputs import FinishReason


class PromptTokensDetails(msgspec.Struct):
    """Where the prompt's keys and values came from."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    """What the sampled tokens were for."""

    reasoning_tokens: int


class Usage(msgspec.Struct):
    """Tokens of a whole request: each prompt once, every sample."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class RequestTimes(msgspec.Struct):
    """Where the time of a request went, in milliseconds; null for what has not been.

    Attributes:
        time_to_first_token_ms: from arrival, the first of all prompts and samples.
        generation_time_ms: from the first token to the end.
        queue_time_ms: from arrival until the engine took it up.
        mean_itl_ms: mean time between two tokens of a sample.
        tokens_per_second: of all samples together, after the first token.
    """

    time_to_first_token_ms: float | None
    generation_time_ms: float | None
    queue_time_ms: float | None
    mean_itl_ms: float | None
    tokens_per_second: float | None


# ---------------------------------------------------------------- logprobs


class TopLogprob(msgspec.Struct):
    """One likely token. `bytes` is exact; `token` may hold U+FFFD where the bytes are part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    """One token of a chat answer, with the most likely ones at its place, most likely first."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """Chat form; tokens that are no part of the text (the end-of-turn token) have no entry."""

    content: list[TokenLogprob]


class CompletionLogprobs(msgspec.Struct):
    """Completions form: four parallel lists, one entry per token; `"".join(tokens)` is the text."""

    text_offset: list[int] = []
    token_logprobs: list[float | None] = []
    tokens: list[str] = []
    top_logprobs: list[dict[str, float] | None] = []


class PromptLogprob(msgspec.Struct):
    """One token at one place of the prompt."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]
"""Per prompt token: token id to logprob, for the actual token and the most likely ones; None for the first."""


# ---------------------------------------------------------------- completions


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One sample; the same in a stream, where `text` is what is new."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    seed: int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType | None = UNSET


class Completion(msgspec.Struct, kw_only=True):
    """Answer of /v1/completions, and one chunk of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    metrics: RequestTimes | UnsetType = UNSET


# ---------------------------------------------------------------- chat


class FunctionCall(msgspec.Struct):
    """A function, and its arguments as JSON text; in a stream, what is new of them."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCall(msgspec.Struct, kw_only=True):
    """A call. In a stream `index` says which one; id, type and name come once."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionCall


class ChatMessage(msgspec.Struct):
    """The assistant's turn. Thinking is there under both names that clients know, or not at all."""

    role: str
    content: str | None
    refusal: str | None = None
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatDelta(msgspec.Struct):
    """What is new of the assistant's turn; the role comes first, once."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    """One sample."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | Literal["tool_calls"] | None
    stop_reason: int | str | None = None
    seed: int | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    """News of one sample."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | Literal["tool_calls"] | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    seed: int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    """Answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    metrics: RequestTimes | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType | None = UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    """One chunk of a chat stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    metrics: RequestTimes | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET


# ---------------------------------------------------------------- tokens in, tokens out


class GenerationChoice(msgspec.Struct, kw_only=True):
    """One sample; the same in a stream, where the ids are what is new."""

    index: int
    token_ids: list[int]
    text: str | UnsetType = UNSET
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    seed: int | UnsetType | None = UNSET


class Generation(msgspec.Struct, kw_only=True):
    """Answer of /inference/v1/generate, and one chunk of its stream."""

    request_id: str
    model: str
    system_fingerprint: str
    choices: list[GenerationChoice]
    prompt_logprobs: PromptLogprobs | UnsetType | None = UNSET
    usage: Usage | UnsetType | None = UNSET
    metrics: RequestTimes | UnsetType = UNSET


# ---------------------------------------------------------------- the small routes


class ModelCard(msgspec.Struct, kw_only=True):
    """One served name."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "octavo"
    root: str
    parent: str | None = None
    max_model_len: int
    permission: list[None] = []


class ModelList(msgspec.Struct, kw_only=True):
    """Answer of /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class Tokens(msgspec.Struct, kw_only=True):
    """Answer of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Text(msgspec.Struct):
    """Answer of /detokenize."""

    prompt: str


class Deleted(msgspec.Struct, kw_only=True):
    """Answer of a DELETE."""

    id: str
    object: str
    deleted: bool = True


class Health(msgspec.Struct):
    """Answer of the probes."""

    status: str


class VersionInfo(msgspec.Struct):
    """Answer of /version."""

    version: str


class Load(msgspec.Struct):
    """Answer of /load."""

    server_load: int


def json_response(body: msgspec.Struct) -> Response:
    """200 with `body` as JSON."""
    return Response(msgspec.json.encode(body), media_type="application/json")
