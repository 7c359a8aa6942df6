"""The forms of Text Generation Inference's own API: fields and answers. Knows no route and no engine.

Its tokens join to its text: the special ones (an end token) are flagged, and part of the tokens alone.
"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import Field

from octavo.errors import ClientError
from octavo.outputs import CompletionOutput, TokenLogprobs
from octavo.sampling_params import SamplingParams, StructuredOutputsParams
from octavo.server.logprobs import most_likely
from octavo.server.requests import Body, Float, Int
from octavo.tokenizer.tokenizer import TextDecoder, Tokenizer

MAX_BEST_OF = 16
DEFAULT_NEW_TOKENS = 100

# ---------------------------------------------------------------- what is asked


class Grammar(Body):
    """What the answer must match."""

    type: Literal["json", "json_schema", "regex"]
    value: Any


class GenerateParameters(Body):
    """How to generate; names and defaults are TGI's."""

    best_of: Int | None = Field(None, ge=1, le=MAX_BEST_OF)
    temperature: Float | None = Field(None, gt=0)
    repetition_penalty: Float | None = Field(None, gt=0)
    frequency_penalty: Float | None = Field(None, ge=-2, le=2)
    top_k: Int | None = Field(None, gt=0)
    top_p: Float | None = Field(None, gt=0, le=1)
    typical_p: Float | None = Field(None, gt=0, le=1)
    do_sample: bool = False
    max_new_tokens: Int | None = Field(None, ge=1)
    return_full_text: bool = False
    stop: list[str] = []
    truncate: Int | None = Field(None, ge=1)
    watermark: bool = False
    details: bool = False
    decoder_input_details: bool = False
    seed: Int | None = Field(None, ge=0)
    top_n_tokens: Int | None = Field(None, ge=0)
    grammar: Grammar | None = None
    adapter_id: str | None = None


class TgiRequest(Body):
    """Body of /generate and /generate_stream."""

    inputs: str
    parameters: GenerateParameters = Field(default_factory=lambda: GenerateParameters.model_validate({}))


class CompatRequest(TgiRequest):
    """Body of POST /."""

    stream: bool = False


def sampling_params(asked: GenerateParameters, *, stream: bool, room: int) -> SamplingParams:
    """What the engine is to do. As in TGI the answer is greedy unless something asks for sampling.

    Args:
        room: tokens that the prompt leaves in the context; bounds a `max_new_tokens` that was not asked for.

    Raises:
        ClientError: fields that contradict each other, or that this server does not do.
    """
    _check(asked, stream)
    warped = (asked.temperature or 1.0) != 1.0 or asked.top_k is not None or (asked.top_p or 1.0) < 1.0
    samples = asked.do_sample or warped
    limit = asked.max_new_tokens
    return SamplingParams(
        n=asked.best_of or 1,
        temperature=asked.temperature or 1.0 if samples else 0.0,
        top_k=asked.top_k or 0 if samples else 0,
        top_p=asked.top_p or 1.0 if samples else 1.0,
        repetition_penalty=asked.repetition_penalty or 1.0,
        frequency_penalty=asked.frequency_penalty or 0.0,
        seed=asked.seed,
        stop=asked.stop,
        include_stop_str_in_output=True,
        max_tokens=limit if limit is not None else max(1, min(DEFAULT_NEW_TOKENS, room)),
        logprobs=asked.top_n_tokens or 0 if asked.details or stream or (asked.best_of or 1) > 1 else None,
        prompt_logprobs=0 if asked.decoder_input_details and asked.details else None,
        structured_outputs=None if asked.grammar is None else _structured(asked.grammar),
    )


def _structured(grammar: Grammar) -> StructuredOutputsParams:
    """What the answer must match; a schema may come with a name around it."""
    value = grammar.value
    if grammar.type == "regex":
        return StructuredOutputsParams(regex=value)
    if grammar.type == "json_schema" and isinstance(value, dict) and "schema" in value:
        value = value["schema"]
    return StructuredOutputsParams(json=value)


def _check(asked: GenerateParameters, stream: bool) -> None:
    if (asked.best_of or 1) > 1:
        if stream:
            raise ClientError("best_of cannot be streamed; leave it out", param="parameters.best_of")
        if not asked.do_sample:
            raise ClientError("best_of needs do_sample: true, or all are the same", param="parameters.best_of")
    if asked.decoder_input_details and stream:
        raise ClientError("decoder_input_details cannot be streamed", param="parameters.decoder_input_details")
    if asked.watermark:
        raise ClientError("watermarks are not supported; leave watermark out", param="parameters.watermark")
    if (asked.typical_p or 1.0) < 1.0:
        raise ClientError("typical_p is not supported; use top_p or min_p of /v1/completions",
                          param="parameters.typical_p")  # fmt: skip
    if asked.adapter_id is not None:
        raise ClientError("adapters are not supported by this version", param="parameters.adapter_id")


# ---------------------------------------------------------------- what is answered

FinishReason = Literal["length", "eos_token", "stop_sequence"]


class Token(msgspec.Struct):
    """One token of the answer."""

    id: int
    text: str
    logprob: float | None
    special: bool


class PrefillToken(msgspec.Struct):
    """One token of the prompt; the first has no logprob."""

    id: int
    text: str
    logprob: float | None


class Sequence(msgspec.Struct, kw_only=True):
    """One of the best_of answers that is not the best."""

    generated_text: str
    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillToken]
    tokens: list[Token]
    top_tokens: list[list[Token]] | UnsetType = UNSET


class Details(msgspec.Struct, kw_only=True):
    """How the answer came about."""

    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillToken]
    tokens: list[Token]
    top_tokens: list[list[Token]] | UnsetType = UNSET
    best_of_sequences: list[Sequence] | UnsetType = UNSET


class Generated(msgspec.Struct, kw_only=True):
    """Answer of /generate."""

    generated_text: str
    details: Details | UnsetType = UNSET


class StreamDetails(msgspec.Struct):
    """What the last event of a stream tells."""

    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    input_length: int


class StreamEvent(msgspec.Struct, kw_only=True):
    """One token; the last one comes with the whole text."""

    index: int
    token: Token
    top_tokens: list[Token] | UnsetType = UNSET
    generated_text: str | None = None
    details: StreamDetails | None = None


class Info(msgspec.Struct, kw_only=True):
    """Answer of /info."""

    model_id: str
    model_sha: str | None = None
    model_dtype: str
    model_device_type: str
    model_pipeline_tag: str = "text-generation"
    max_concurrent_requests: int
    max_best_of: int = MAX_BEST_OF
    max_stop_sequences: int
    max_input_tokens: int
    max_total_tokens: int
    validation_workers: int = 1
    max_client_batch_size: int = 1
    router: str = "octavo"
    version: str
    sha: str | None = None
    docker_label: str | None = None


class SimpleToken(msgspec.Struct):
    """One token of /tokenize, and the characters of the text it stands for."""

    id: int
    text: str
    start: int
    stop: int


def finish_reason(sample: CompletionOutput) -> FinishReason:
    """Why a sample ended."""
    if sample.finish_reason == "length":
        return "length"
    return "stop_sequence" if isinstance(sample.stop_reason, str) else "eos_token"


class TokenWriter:
    """Writes the tokens of one growing sample, each once, with what it adds to the text.

    Args:
        strips_first_space: as in `TextDecoder`.
        num_top: likely tokens beside each.
    """

    def __init__(self, tokenizer: Tokenizer, *, strips_first_space: bool, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._decoder = TextDecoder(strips_first_space=strips_first_space)
        self._num_top = num_top
        self._num_tokens = 0
        self._num_chars = 0

    def take(self, sample: CompletionOutput) -> list[tuple[Token, list[Token]]]:
        """Tokens that are new, each with the most likely ones at its place."""
        new = range(self._num_tokens, len(sample.token_ids))
        self._num_tokens = len(sample.token_ids)
        logprobs = sample.logprobs or []
        taken = [self._next(sample.token_ids[i], logprobs[i] if i < len(logprobs) else {}) for i in new]
        if sample.finish_reason is not None and taken:
            self._settle(taken, sample)
        return taken

    def _next(self, token_id: int, entries: TokenLogprobs) -> tuple[Token, list[Token]]:
        special = token_id in self._tokenizer.special_ids
        text = (
            self._tokenizer.token_text(token_id)
            if special
            else self._decoder.add(self._tokenizer.token_bytes(token_id))
        )
        self._num_chars += 0 if special else len(text)
        own = entries[token_id].logprob if token_id in entries else None
        top = [self._shown(other, entries) for other in most_likely(entries, self._num_top)] if self._num_top else []
        return Token(token_id, text, own, special), top

    def _settle(self, taken: list[tuple[Token, list[Token]]], sample: CompletionOutput) -> None:
        """A stop string may end the text inside the last token, and a cut character becomes U+FFFD."""
        tokens = [token for token, _ in taken]
        last = next((token for token in reversed(tokens) if not token.special), tokens[-1])
        start = self._num_chars - (0 if last.special else len(last.text))
        if sample.text[start:] != ("" if last.special else last.text):
            last.text, last.special = sample.text[start:], False

    def _shown(self, token_id: int, entries: TokenLogprobs) -> Token:
        special = token_id in self._tokenizer.special_ids
        return Token(token_id, self._tokenizer.token_text(token_id), entries[token_id].logprob, special)
