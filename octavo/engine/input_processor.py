"""From a prompt and parameters to the sequences the core runs: tokenizes, checks everything a caller can get wrong, and
fills in what was left open. Knows tokenizer and limits; no scheduler, no pages.
"""

import hashlib
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NotRequired, TypedDict, cast

import msgspec

from octavo.config import EngineConfig
from octavo.engine.options import parse_json_object
from octavo.errors import ClientError, ConfigError, UnsupportedError
from octavo.grammar.check import GrammarChecker
from octavo.grammar.vocabulary import make_tokens
from octavo.limits import INT64_MAX, INT64_MIN
from octavo.messages import BACKGROUND_PRIORITY, EngineRequest
from octavo.sampling_params import SamplingParams, check_whole
from octavo.tokenizer.tokenizer import Tokenizer


class TextPrompt(TypedDict):
    """A prompt as text; special tokens such as BOS are added as the tokenizer does."""

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt as token ids, taken as they are; `prompt` is its text, if known."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


Prompt = str | Sequence[int] | TextPrompt | TokensPrompt

PROMPT_FIELDS = ("prompt", "prompt_token_ids", "cache_salt")

DEFAULT_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
"""Keys of generation_config.json that are sampling defaults, and the parameter each one sets."""


class _ReadPrompt(NamedTuple):
    text: str | None
    token_ids: list[int]
    cache_salt: str | None


class Submission(msgspec.Struct, frozen=True):
    """One checked request: what its caller will see of it again, and the sequences that the core runs for it."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: int
    arrival_time_s: float
    sequences: list[EngineRequest]


class InputProcessor:
    """Makes `Submission`s. Counts them, because an unseeded request takes its seed from its number.

    Args:
        max_request_tokens: most tokens (prompt and answer) that the KV pool can hold for one request, at most
            `max_model_len`.

    Attributes:
        eos_token_ids: tokens that end a text.
        grammars: checks what answers must match; those it knows already take no time in `process`.
    """

    def __init__(self, config: EngineConfig, tokenizer: Tokenizer, max_request_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = config.spec.vocab_size
        self._max_model_len = config.max_model_len
        self._max_request_tokens = max_request_tokens
        self._max_logprobs = self._vocab_size if config.model.max_logprobs == -1 else config.model.max_logprobs
        self._engine_seed = config.model.seed
        self._unscaled_length = unscaled_length(config.spec.hf_config)
        self._by_priority = config.scheduler.scheduling_policy == "priority"
        self.eos_token_ids = eos_token_ids(config, tokenizer)
        self.grammars = GrammarChecker(lambda: make_tokens(tokenizer, self._vocab_size, self.eos_token_ids))
        self._num_submissions = 0

    def process(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        tenant: str = "",
    ) -> Submission:
        """Check one request and split it into sequences.

        Raises:
            ClientError: the prompt is empty, malformed or too long, or a parameter does not fit the model.
        """
        arrival_time_s = time.monotonic()
        text, token_ids, salt = self._read_prompt(prompt)
        self._check_params(params)
        self._check_priority(priority)
        max_tokens = self._fit_max_tokens(len(token_ids), params)
        bad_words = self._bad_words_token_ids(params)
        self._check_choice_left(params, bad_words)
        grammar = self._grammar(params)
        seed = params.seed
        if seed is None:
            seed = derive_seed(self._engine_seed, self._num_submissions)
        self._num_submissions += 1
        sequences = [
            EngineRequest(
                request_id=request_id if params.n == 1 else f"{request_id}#{index}",
                prompt_token_ids=token_ids,
                # The prompt is the same for all samples, so one of them reports its logprobs.
                sampling=msgspec.structs.replace(
                    params,
                    n=1,
                    seed=seed,
                    max_tokens=max_tokens,
                    prompt_logprobs=params.prompt_logprobs if index == 0 else None,
                    structured_outputs=None,
                ),
                grammar=grammar,
                eos_token_ids=self.eos_token_ids,
                bad_words_token_ids=bad_words,
                seed=seed,
                sample_index=index,
                arrival_time_s=arrival_time_s,
                priority=priority,
                tenant=tenant,
                cache_salt=self._cache_key(cache_salt if cache_salt is not None else salt, len(token_ids)),
                fork_of=f"{request_id}#0" if index > 0 else None,
            )
            for index in range(params.n)
        ]
        return Submission(request_id, text, token_ids, params, seed, arrival_time_s, sequences)

    def _cache_key(self, salt: str | None, num_prompt_tokens: int) -> str | None:
        """The salt, and the prompt's length where keys and values depend on it."""
        if num_prompt_tokens <= self._unscaled_length:
            return salt
        return f"{num_prompt_tokens} tokens, {salt}"

    def _read_prompt(self, prompt: Prompt) -> "_ReadPrompt":
        fields = self._prompt_fields(prompt)
        text, ids = fields.get("prompt"), fields.get("prompt_token_ids")
        if text is not None and not isinstance(text, str):
            raise ClientError(f"prompt must be text, got {type(text).__name__}", param="prompt")
        if ids is None:
            if text is None:
                raise ClientError("the prompt has neither `prompt` nor `prompt_token_ids`", param="prompt")
            ids = self._tokenizer.encode(text)
        token_ids = self._check_token_ids(ids)
        if not token_ids:
            raise ClientError("the prompt is empty; send at least one token", param="prompt")
        salt = fields.get("cache_salt")
        if salt is not None and not isinstance(salt, str):
            raise ClientError(f"cache_salt must be text, got {type(salt).__name__}", param="cache_salt")
        return _ReadPrompt(text, token_ids, salt)

    def _prompt_fields(self, prompt: Prompt) -> dict[str, Any]:
        """Any form of a prompt as the fields of `TextPrompt` or `TokensPrompt`."""
        if isinstance(prompt, str):
            return {"prompt": prompt}
        if not isinstance(prompt, Mapping):
            return {"prompt_token_ids": prompt}
        for name in ("multi_modal_data", "prompt_embeds", "encoder_prompt"):
            if name in prompt:
                raise UnsupportedError(
                    f"{name} is not supported in this version; send text or token ids", param="prompt"
                )
        for name in prompt:
            if name not in PROMPT_FIELDS:
                raise ClientError(
                    f"a prompt has the unknown field {name!r}; known: {', '.join(PROMPT_FIELDS)}", param="prompt"
                )
        return cast(dict[str, Any], prompt)

    def _check_token_ids(self, ids: object) -> list[int]:
        if (
            not isinstance(ids, Sequence)
            or isinstance(ids, bytes)
            or not all(type(token_id) is int for token_id in ids)
        ):
            raise ClientError("prompt_token_ids must be a list of whole numbers", param="prompt")
        self._check_vocab("prompt", ids)
        return list(ids)

    def _check_vocab(self, param: str, ids: Iterable[int]) -> None:
        for token_id in ids:
            if not 0 <= token_id < self._vocab_size:
                raise ClientError(
                    f"{param} has the token id {token_id} but the vocabulary ends at {self._vocab_size - 1}; remove it",
                    param=param,
                )

    def _check_priority(self, priority: int) -> None:
        """A priority means something under one policy only; that work can wait, under all."""
        check_whole("priority", priority, INT64_MIN, INT64_MAX)
        if priority not in (0, BACKGROUND_PRIORITY) and not self._by_priority:
            raise ClientError(
                f"priority is {priority} but requests are served in order of arrival; "
                "leave it out, or start with --scheduling-policy priority",
                param="priority",
            )

    def _check_params(self, params: SamplingParams) -> None:
        if not isinstance(params, SamplingParams):
            raise ClientError(
                f"sampling_params must be SamplingParams, got {type(params).__name__}", param="sampling_params"
            )
        if params.stop and not params.detokenize:
            raise ClientError("stop strings are searched in text; set detokenize or use stop_token_ids", param="stop")
        self._check_vocab("stop_token_ids", params.stop_token_ids or ())
        self._check_vocab("allowed_token_ids", params.allowed_token_ids or ())
        self._check_vocab("logprob_token_ids", params.logprob_token_ids or ())
        self._check_vocab("logit_bias", params.logit_bias or ())
        for name, asked in (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)):
            if asked is None:
                continue
            count = self._vocab_size if asked == -1 else asked
            if count > self._max_logprobs:
                raise ClientError(
                    f"{name} is {asked} but the limit is {self._max_logprobs}; ask for fewer or raise --max-logprobs",
                    param=name,
                )

    def _fit_max_tokens(self, num_prompt_tokens: int, params: SamplingParams) -> int:
        """`max_tokens`, or if that is open all the room there is. Where the KV pool is smaller than max_model_len, an
        answer that would outgrow it ends with "length"; only a prompt that does not fit is refused.
        """
        room = self._max_request_tokens - num_prompt_tokens
        if room < 0 or (room == 0 and params.max_tokens != 0):
            raise ClientError(
                f"prompt has {num_prompt_tokens} tokens but prompt and answer together may have "
                f"{self._max_request_tokens}; shorten it or raise --max-model-len or --kv-cache-memory-bytes",
                param="prompt",
            )
        if params.max_tokens is None:
            if params.min_tokens > room:
                raise ClientError(
                    f"min_tokens is {params.min_tokens} but the prompt leaves room for {room}; lower it",
                    param="min_tokens",
                )
            return room
        if num_prompt_tokens + params.max_tokens > self._max_model_len:
            raise ClientError(
                f"prompt has {num_prompt_tokens} tokens and max_tokens is {params.max_tokens} but together they may be "
                f"{self._max_model_len}; shorten the prompt, lower max_tokens or raise --max-model-len",
                param="max_tokens",
            )
        return params.max_tokens

    def _bad_words_token_ids(self, params: SamplingParams) -> list[list[int]]:
        """Token sequences of each bad word, as it is written at the start of a text and after a space."""
        banned: list[list[int]] = []
        for word in params.bad_words or ():
            bare = word.lstrip() or word
            forms = [self._tokenizer.encode(form, add_special_tokens=False) for form in (bare, f" {bare}")]
            banned += [ids for index, ids in enumerate(forms) if ids and ids not in forms[:index]]
        return banned

    def _grammar(self, params: SamplingParams) -> str | None:
        if params.structured_outputs is None:
            return None
        if not self.eos_token_ids:
            raise ClientError(
                "structured output needs an end-of-sequence token, and the model has none", param="structured_outputs"
            )
        return self.grammars.check(params.structured_outputs)

    def _check_choice_left(self, params: SamplingParams, bad_words: list[list[int]]) -> None:
        """Refuse a request whose allowed tokens are all forbidden: nothing could ever be sampled."""
        if params.allowed_token_ids is None:
            return
        forbidden = {ids[0] for ids in bad_words if len(ids) == 1}
        if params.min_tokens > 0:
            forbidden.update(self.eos_token_ids, params.stop_token_ids or ())
        if forbidden.issuperset(params.allowed_token_ids):
            raise ClientError(
                "every id of allowed_token_ids is forbidden by bad_words or min_tokens; allow another",
                param="allowed_token_ids",
            )


def eos_token_ids(config: EngineConfig, tokenizer: Tokenizer) -> list[int]:
    """Tokens that end a text: the model's, or if it names none the tokenizer's."""
    if config.spec.eos_token_ids or tokenizer.eos_token_id is None:
        return list(config.spec.eos_token_ids)
    return [tokenizer.eos_token_id]


def derive_seed(engine_seed: int, submission_index: int) -> int:
    """Seed of an unseeded request (design rule I5): a hash of the engine's seed and the request's number.

    It has 53 bits: JSON readers whose numbers are doubles keep those exactly, and can send the seed back.
    """
    digest = hashlib.blake2b(f"{engine_seed}/{submission_index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 11


def unscaled_length(hf_config: dict[str, Any]) -> float:
    """Longest prompt whose pages hold the same whatever its length; infinite but for `dynamic` ropes."""
    rope = hf_config["rope_parameters"]
    kinds = [rope] if "rope_type" in rope else rope.values()
    dynamic = any(kind["rope_type"] == "dynamic" for kind in kinds)
    return hf_config["max_position_embeddings"] if dynamic else math.inf


def default_sampling_params(config: EngineConfig) -> dict[str, int | float]:
    """Sampling defaults of the model, by the names of `SamplingParams`, as --generation-config and
    --override-generation-config have it.

    Raises:
        ConfigError: the override is not a JSON object of known keys.
    """
    override = parse_json_object("override_generation_config", config.model.override_generation_config)
    for key in override:
        if key not in DEFAULT_NAMES:
            raise ConfigError(
                f"--override-generation-config has the unknown key {key!r}; known: {', '.join(DEFAULT_NAMES)}"
            )
    chosen = dict(config.spec.generation_config) if config.model.generation_config == "auto" else {}
    chosen.update(override)
    return {name: chosen[key] for key, name in DEFAULT_NAMES.items() if chosen.get(key) is not None}
