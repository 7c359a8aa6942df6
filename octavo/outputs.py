"""What callers of the Python API get back; field names are vLLM's. Knows no engine."""

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "abort", "error", "repetition"]


@dataclass(slots=True)
class Logprob:
    """Natural-log probability of one token at one position.

    Attributes:
        logprob: <= 0, from the model's raw logits (float32) unless `--logprobs-mode` says otherwise.
        rank: 1 is the most likely token of the vocabulary; None for a token that was asked for by its id.
        decoded_token: its text; may be part of a character. None without `detokenize`.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


TokenLogprobs = dict[int, Logprob]
"""Token id to logprob at one position: the sampled (or prompt) token and the most likely ones."""


@dataclass(slots=True)
class CompletionOutput:
    """One sample of one request. `error` says why when finish_reason is "error"."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    seed: int | None = None
    error: str | None = None


@dataclass(slots=True)
class RequestMetrics:
    """Times of one request in seconds of `time.monotonic()`; 0 while unknown."""

    arrival_time_s: float = 0.0
    scheduled_time_s: float = 0.0
    first_token_time_s: float = 0.0
    finished_time_s: float = 0.0
    num_preemptions: int = 0


@dataclass(slots=True)
class RequestOutput:
    """All samples of one request. `prompt_logprobs[0]` is None: nothing precedes the first token."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    num_cached_tokens: int = 0


@dataclass(slots=True)
class BeamSearchSequence:
    """One finished beam: `tokens` holds prompt and answer, `cum_logprob` sums the answer's logprobs."""

    tokens: list[int]
    cum_logprob: float
    text: str = ""
    finish_reason: FinishReason | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """The best beams of one prompt, best first."""

    sequences: list[BeamSearchSequence]
