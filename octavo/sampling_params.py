"""What a caller may ask of generation. Knows no model, tokenizer or tensor."""

import math
from typing import Any

import msgspec

from octavo import limits
from octavo.errors import ClientError
from octavo.limits import INT64_MAX, INT64_MIN

GREEDY_BELOW = 1e-5
"""A temperature below this is greedy: the most likely token, lowest id on ties."""

MAX_LOGIT_BIAS = 100.0


STRUCTURED_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
"""What an answer can be made to match; a request names one of them."""


class StructuredOutputsParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What the answer must match: exactly one kind, and how JSON is written.

    Args:
        json: a JSON schema, as a dict or as text.
        regex: a regular expression for the whole answer.
        choice: the answer is one of these strings.
        grammar: a context-free grammar in Lark's or GBNF's notation.
        json_object: any JSON object.
        structural_tag: text with tagged parts that match a schema each: `{"structures": [{"begin", "schema", "end"}],
            "triggers": [...]}`, as a dict or as JSON text.
        disable_any_whitespace: JSON without blanks between its parts.
        disable_additional_properties: JSON objects have the properties of the schema and no others.
        whitespace_pattern: a regular expression for the blanks between parts of JSON, of bounded length.

    Raises:
        ClientError: no kind or several, or a value of a wrong type; `param` names the field.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        for name, types in _STRUCTURED_TYPES.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, types):
                known = " or ".join(_TYPE_NAMES[kind] for kind in types)
                raise _structured_error(name, f"{name} must be {known}, got {type(value).__name__}")
        if self.json_object is False:
            self.json_object = None
        kinds = [name for name in STRUCTURED_KINDS if getattr(self, name) is not None]
        if len(kinds) != 1:
            named = " and ".join(kinds) or "none"
            raise ClientError(
                f"structured_outputs needs exactly one of {', '.join(STRUCTURED_KINDS)}; it has {named}",
                param="structured_outputs",
            )
        if self.choice is not None:
            self._check_choice(self.choice)

    @property
    def kind(self) -> str:
        """The one of STRUCTURED_KINDS that is set."""
        return next(name for name in STRUCTURED_KINDS if getattr(self, name) is not None)

    @staticmethod
    def _check_choice(choice: list[Any]) -> None:
        if not choice:
            raise _structured_error("choice", "choice is empty, so nothing could be answered; name at least one string")
        for index, text in enumerate(choice):
            if not isinstance(text, str):
                raise _structured_error("choice", f"choice[{index}] is {text!r:.80}; each choice must be a string")


_STRUCTURED_TYPES: dict[str, tuple[type, ...]] = {
    "json": (str, dict),
    "regex": (str,),
    "choice": (list,),
    "grammar": (str,),
    "json_object": (bool,),
    "structural_tag": (str, dict),
    "disable_any_whitespace": (bool,),
    "disable_additional_properties": (bool,),
    "whitespace_pattern": (str,),
}
_TYPE_NAMES: dict[type, str] = {str: "text", dict: "an object", list: "a list", bool: "true or false"}


def _structured_error(name: str, message: str) -> ClientError:
    return ClientError(message, param=f"structured_outputs.{name}")


class RepetitionDetectionParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """When an answer counts as stuck: its last tokens are one pattern, several times over.

    Args:
        max_pattern_size: most tokens of a pattern; 0 is off.
        min_pattern_size: fewest tokens of a pattern; 0 is 1.
        min_count: how many times in a row, 2 or more.

    Raises:
        ClientError: a value is out of range; `param` names the field.
    """

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0

    def __post_init__(self) -> None:
        name = "repetition_detection."
        check_whole(f"{name}max_pattern_size", self.max_pattern_size, 0, limits.PATTERN_TOKENS.value)
        if self.max_pattern_size:
            check_whole(f"{name}min_pattern_size", self.min_pattern_size, 0, self.max_pattern_size)
            check_whole(f"{name}min_count", self.min_count, 2, 2**31 - 1)


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Parameters of one request, with vLLM's names and defaults.

    Args:
        n: samples per prompt, 1 or more.
        presence_penalty: -2..2, subtracted from the logit of every token already generated.
        frequency_penalty: -2..2, as above, times how often it was generated.
        repetition_penalty: > 0; 1 is off. Prompt and output tokens count.
        temperature: >= 0; below 1e-5 is greedy.
        top_p: in [0, 1]; 0 is greedy.
        top_k: 0 or -1 is off; larger than the vocabulary is off too.
        min_p: in [0, 1]; 1 is greedy.
        seed: replays a sampled answer; None draws one from the engine seed and reports it.
        stop: strings that end the text.
        stop_token_ids: ids that end the text.
        bad_words: strings that never appear.
        include_stop_str_in_output: keep the stop string in the text.
        ignore_eos: go on after the end-of-sequence token.
        max_tokens: most tokens to generate; None is up to the context length; 0 only scores the prompt.
        min_tokens: end-of-sequence and stop ids cannot be sampled before this many tokens.
        logprobs: how many of the most likely tokens to report per position; 0 is the sampled one alone, -1 all.
        prompt_logprobs: the same for the prompt; the prefix cache is not read for such a request.
        logprob_token_ids: report these ids per position, in place of the most likely tokens; at most 128.
        detokenize: False returns ids only, for logprobs too.
        skip_special_tokens: leave special tokens out of the text.
        kept_special_token_ids: special tokens that stay in the text all the same.
        spaces_between_special_tokens: accepted for compatibility; fast tokenizers have no such choice.
        logit_bias: token id to a number in -100..100 that is added to its logit.
        allowed_token_ids: only these may be sampled.
        structured_outputs: what the answer must match.
        repetition_detection: end an answer that repeats itself, with finish reason "repetition".

    Raises:
        ClientError: a value is out of range; `param` names the field.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: list[str] | str | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    kept_special_token_ids: list[int] | None = None
    spaces_between_special_tokens: bool = True
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    repetition_detection: RepetitionDetectionParams | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            self.stop = [self.stop]
        self.stop = _list("stop", self.stop)
        self.stop_token_ids = _list("stop_token_ids", self.stop_token_ids)
        self.bad_words = _list("bad_words", self.bad_words)
        if self.allowed_token_ids is not None:
            self.allowed_token_ids = _list("allowed_token_ids", self.allowed_token_ids)
        self.logprob_token_ids = list(dict.fromkeys(_list("logprob_token_ids", self.logprob_token_ids))) or None
        if self.top_k == -1:
            self.top_k = 0
        self._check()

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken, so that no random number is drawn."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1 or self.top_p == 0.0 or self.min_p == 1.0

    @property
    def wants_logprobs(self) -> bool:
        """Whether anything is reported of the probabilities of the answer's tokens."""
        return self.logprobs is not None or self.logprob_token_ids is not None

    @property
    def num_shown_logprobs(self) -> int:
        """How many of the tokens reported at a position an answer lists, most likely first; -1 is all of them."""
        return -1 if self.logprob_token_ids is not None else self.logprobs or 0

    def _check(self) -> None:
        check_whole("n", self.n, 1, limits.CHOICES.value)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _number("repetition_penalty", self.repetition_penalty, 1e-6, 1e6)
        _number("temperature", self.temperature, 0.0, 1e4)
        _number("top_p", self.top_p, 0.0, 1.0)
        check_whole("top_k", self.top_k, 0, INT64_MAX)
        _number("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            check_whole("seed", self.seed, INT64_MIN, INT64_MAX)
        if self.max_tokens is not None:
            check_whole("max_tokens", self.max_tokens, 0, 2**31 - 1)
        check_whole("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ClientError(
                f"min_tokens is {self.min_tokens} but max_tokens is {self.max_tokens}; lower min_tokens",
                param="min_tokens",
            )
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                check_whole(name, value, -1, 2**31 - 1)
        if not all(isinstance(s, str) and s for s in self.stop or []):
            raise ClientError("stop holds an empty string; remove it", param="stop")
        if not all(isinstance(s, str) and s for s in self.bad_words or []):
            raise ClientError("bad_words holds an empty string; remove it", param="bad_words")
        for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
            for token_id in getattr(self, name) or []:
                check_whole(name, token_id, 0, 2**31 - 1)
        limits.LOGPROB_TOKEN_IDS.check("logprob_token_ids", len(self.logprob_token_ids or ()))
        if self.logprob_token_ids and self.max_tokens == 0:
            raise ClientError(
                "logprob_token_ids are reported where a token is generated, and max_tokens is 0; raise it, or send "
                "prompt_logprobs",
                param="logprob_token_ids",
            )
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise ClientError(
                "allowed_token_ids is empty, so nothing could be sampled; omit it", param="allowed_token_ids"
            )
        _instance("structured_outputs", self.structured_outputs, StructuredOutputsParams)
        _instance("repetition_detection", self.repetition_detection, RepetitionDetectionParams)
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, dict):
                raise ClientError(
                    f"logit_bias must map token ids to numbers, got {type(self.logit_bias).__name__}",
                    param="logit_bias",
                )
            self.logit_bias = {_token_id(k): _bias(v) for k, v in self.logit_bias.items()}


class BeamSearchParams(msgspec.Struct, kw_only=True):
    """Parameters of a beam search; the answer is the `beam_width` best sequences by length-normalized logprob.

    Args:
        beam_width: 1..16384.
        max_tokens: most tokens to generate, 1 or more.
        length_penalty: -10..10; above 0 favours long answers.
        include_stop_str_in_output: keep the end-of-sequence token.
        skip_special_tokens, kept_special_token_ids: as in `SamplingParams`, for the text of served answers.

    Raises:
        ClientError: a value is out of range; `param` names the field.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    kept_special_token_ids: list[int] | None = None

    def __post_init__(self) -> None:
        check_whole("beam_width", self.beam_width, 1, limits.CHOICES.value)
        check_whole("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _number("length_penalty", self.length_penalty, -10.0, 10.0)


def check_whole(param: str, value: Any, low: int, high: int) -> None:
    """Raise ClientError unless `value` is a whole number in low..high."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ClientError(f"{param} must be a whole number, got {value!r}", param=param)
    if not low <= value <= high:
        raise ClientError(f"{param} is {value} but must be between {low} and {high}", param=param)


def _number(param: str, value: Any, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ClientError(f"{param} must be a number, got {value!r}", param=param)
    if not math.isfinite(value) or not low <= value <= high:
        raise ClientError(f"{param} is {value} but must be between {low:g} and {high:g}", param=param)


def _instance(param: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind | None):
        raise ClientError(f"{param} must be {kind.__name__}, got {type(value).__name__}", param=param)


def _list(param: str, value: Any) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    raise ClientError(f"{param} must be a list, got {type(value).__name__}", param=param)


def _token_id(key: Any) -> int:
    try:
        token_id = int(key)
    except (TypeError, ValueError):
        raise ClientError(f"logit_bias has the key {key!r}, which is not a token id", param="logit_bias") from None
    if not 0 <= token_id < 2**31:
        raise ClientError(f"logit_bias has the key {str(key)[:80]!r}, which is not a token id", param="logit_bias")
    return token_id


def _bias(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ClientError(f"logit_bias has the value {value!r}, which is not a finite number", param="logit_bias")
    return max(-MAX_LOGIT_BIAS, min(MAX_LOGIT_BIAS, float(value)))
