"""What the routes accept: the fields of OpenAI's API and vLLM's extras. Declares and bounds; knows no engine.

A field that asks for something this version does not do is refused (`refusals.py`); one that nobody knows is named in
the answer's headers, or refused (`unknown_fields.py`).
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from octavo.limits import INT64_MAX, INT64_MIN


def _not_bool(value: Any) -> Any:
    """JSON's true is not 1; Python would take it for one."""
    if isinstance(value, bool):
        raise ValueError("Input should be a number")
    return value


Int = Annotated[int, BeforeValidator(_not_bool), Field(ge=INT64_MIN, le=INT64_MAX)]
Float = Annotated[float, BeforeValidator(_not_bool)]


class Body(BaseModel):
    """A JSON object in which null means: not said."""

    # Built by the first request of its kind, in some milliseconds; all of them together would hold the start up.
    model_config = ConfigDict(extra="allow", defer_build=True, allow_inf_nan=False, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        return {name: value for name, value in data.items() if value is not None} if isinstance(data, dict) else data


class StreamOptions(Body):
    """What a stream tells besides text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class RepetitionDetection(Body):
    """When an answer counts as stuck; bounded where it is used."""

    max_pattern_size: Int = 0
    min_pattern_size: Int = 0
    min_count: Int = 0


class EngineBody(Body):
    """What every request for generated tokens may say, whatever else its route knows."""

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    stream_interval: Int | None = Field(None, ge=1)
    priority: Int | None = None
    cache_salt: str | None = Field(None, min_length=1, max_length=128, pattern=r"^[^@/\\\x00]+$")
    request_id: str | None = Field(None, min_length=1, max_length=128, pattern=r"^[!-~]+$")
    return_metrics: bool | None = False


class SamplingBody(EngineBody):
    """How tokens are chosen, for routes that say it in OpenAI's words and vLLM's. None means: not said, the model's
    default applies.
    """

    temperature: Float | None = None
    top_p: Float | None = None
    top_k: Int | None = None
    min_p: Float | None = None
    presence_penalty: Float | None = None
    frequency_penalty: Float | None = None
    repetition_penalty: Float | None = None
    seed: Int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Int] | None = None
    ignore_eos: bool | None = None
    min_tokens: Int | None = None
    structured_outputs: dict[str, Any] | None = None


SAMPLING_FIELDS = tuple(SamplingBody.__annotations__)
"""Those that `SamplingBody` adds."""


class GenerationRequest(SamplingBody):
    """What chat and completions have in common."""

    n: Int | None = None
    use_beam_search: bool | None = False
    length_penalty: Float | None = None
    max_tokens: Int | None = Field(None, ge=0)
    max_completion_tokens: Int | None = Field(None, ge=0)
    bad_words: list[str] | None = None
    include_stop_str_in_output: bool | None = None
    prompt_logprobs: Int | None = None
    logprob_token_ids: list[Int] | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    logit_bias: dict[str, Float] | None = None
    allowed_token_ids: list[Int] | None = None
    repetition_detection: RepetitionDetection | None = None
    response_format: dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    truncate_prompt_tokens: Int | None = Field(None, ge=-1)
    truncation_side: Literal["left", "right"] = "left"
    echo: bool | None = False
    return_tokens_as_token_ids: bool | None = False
    return_token_ids: bool | None = False
    return_prompt_text: bool | None = False

    @property
    def token_limit(self) -> int | None:
        """Most tokens to generate; the newer field wins."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "minItems": 1, "items": {"type": "string"}},
        {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
        {
            "type": "array",
            "minItems": 1,
            "items": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
        },
    ]
}


class CompletionRequest(GenerationRequest):
    """Body of /v1/completions. `prompt` is checked by `prompts.py`: a union of lists would be tried form by form."""

    prompt: Annotated[Any, WithJsonSchema(PROMPT_SCHEMA)] = None
    logprobs: Int | None = None
    add_special_tokens: bool = True


class ChatRequest(GenerationRequest):
    """Body of /v1/chat/completions."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    logprobs: bool | None = False
    top_logprobs: Int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = True
    reasoning_effort: str | None = None
    include_reasoning: bool = True
    thinking_token_budget: Int | None = Field(None, ge=0)
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    add_special_tokens: bool = False
    documents: list[dict[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class GenerateRequest(EngineBody):
    """Body of /inference/v1/generate. `token_ids` and `sampling_params` are checked where they are used."""

    token_ids: list[Any] = Field(min_length=1)
    sampling_params: dict[str, Any]
    output_mode: Literal["tokens", "text"] = "tokens"


class TokenizeRequest(Body):
    """Body of /tokenize: `prompt`, or `messages` as for chat; or TGI's `inputs`, answered in its form."""

    model: str | None = None
    prompt: str | None = None
    inputs: str | None = None
    parameters: dict[str, Any] | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = False


class DetokenizeRequest(Body):
    """Body of /detokenize."""

    model: str | None = None
    tokens: list[Int]
