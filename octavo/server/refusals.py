"""Fields that ask for what this version does not do, or that contradict each other. Nothing is dropped silently."""

from octavo import limits
from octavo.errors import ClientError, UnsupportedError
from octavo.server.requests import Body, ChatRequest, EngineBody, GenerationRequest

_ELSEWHERE = "send it to /v1/chat/completions or /v1/completions"

REFUSED: dict[str, str] = {
    "suffix": "fill-in-the-middle is not supported by this version; put the model's own markers into the prompt",
    "prompt_embeds": "prompt embeddings are not supported by this version; send text or token ids",
    "use_beam_search": f"beam search is not done on this route; {_ELSEWHERE}",
    "length_penalty": f"beam search is not done on this route; {_ELSEWHERE}",
    "repetition_detection": f"answers are not searched for repetition on this route; {_ELSEWHERE}",
    "logprob_token_ids": f"logprobs of chosen ids are not told on this route; {_ELSEWHERE}",
    "logits_processors": "processors per request are not supported; use logit_bias, bad_words or allowed_token_ids",
    "functions": "functions is deprecated; send tools",
    "function_call": "function_call is deprecated; send tool_choice",
    "audio": "audio output is not supported by this version",
    "web_search_options": "web search is not supported",
    "prediction": "predicted output is not supported by this version",
    "mm_processor_kwargs": "images and audio are not supported by this version",
    "features": "images and audio are not supported by this version",
    "media_io_kwargs": "images and audio are not supported by this version",
    "thinking_token_budget": "thinking is not bounded by this field here; send it to /v1/chat/completions",
    "watermarking": "watermarks are not supported by this version",
    "kv_transfer_params": "KV transfer is not supported by this version",
    "ec_transfer_params": "encoder transfer is not supported by this version",
    "routed_experts_prompt_start": "routed experts are not reported by this version",
    "vllm_xargs": "custom arguments are not supported by this version",
}
"""Field -> why not, and what to do instead. Null, false and empty values ask for nothing and pass."""

NOT_WITH_BEAMS: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("stream", "logprobs"), (False,)),
    **dict.fromkeys(("temperature", "min_p", "presence_penalty", "frequency_penalty"), (0.0,)),
    **dict.fromkeys(("top_p", "repetition_penalty"), (1.0,)),
    **dict.fromkeys(("top_logprobs", "min_tokens"), (0,)),
    "top_k": (0, -1),
    "response_format": ({"type": "text"},),
    **dict.fromkeys(
        (
            "seed", "stop", "stop_token_ids", "bad_words", "logit_bias", "allowed_token_ids", "prompt_logprobs",
            "logprob_token_ids", "repetition_detection", "thinking_token_budget", "structured_outputs", "guided_json",
            "guided_regex", "guided_choice", "guided_grammar", "tools",
        ),
        (),
    ),
}  # fmt: skip
"""Field -> values that may be sent with `use_beam_search`: no token is drawn, and answers are known only at the end."""

TEMPLATE_ARGUMENTS = ("chat_template", "tokenize", "return_dict", "return_tensors")
"""Names that `chat_template_kwargs` must not carry past the checks above."""


CHECKED = ("best_of", "modalities")
"""Further fields that no model declares and that are looked at here."""


def check_supported(body: GenerationRequest) -> None:
    """Refuse what is too much, or not there.

    Raises:
        UnsupportedError, ClientError: `param` names the field.
    """
    extra = body.model_extra or {}
    if extra.get("best_of") not in (None, 1, body.n or 1):
        raise UnsupportedError("best_of is not supported; send n and choose among the answers", param="best_of")
    if extra.get("modalities") not in (None, [], ["text"]):
        raise UnsupportedError("modalities: only text is supported", param="modalities")
    if body.prompt_logprobs is not None and body.stream:
        raise ClientError("prompt_logprobs cannot be streamed; send stream: false", param="prompt_logprobs")
    if body.use_beam_search:
        check_beams(body)
    elif body.length_penalty not in (None, 1.0):
        raise ClientError(
            "length_penalty weighs beams; send use_beam_search: true, or leave it out", param="length_penalty"
        )


def check_beams(body: GenerationRequest) -> None:
    """What a search for the most likely answers leaves no room for; errors as above."""
    for field in sorted(body.model_fields_set & NOT_WITH_BEAMS.keys()):
        value, plain = getattr(body, field), (None, "", [], {}, *NOT_WITH_BEAMS[field])
        if not any(type(value) is type(other) and value == other for other in plain):
            raise UnsupportedError(
                f"{field} cannot be combined with use_beam_search, which looks for the most likely answers and knows "
                "them at the end; leave one of the two out",
                param=field,
            )


def check_refused(body: Body) -> None:
    """The rules for every body, whatever its route; errors as above."""
    for field, value in (body.model_extra or {}).items():
        if field in REFUSED and value not in (None, False, "", [], {}):
            raise UnsupportedError(f"{field}: {REFUSED[field]}", param=field)
    if isinstance(body, EngineBody) and body.stream_options is not None and not body.stream:
        raise ClientError("stream_options needs stream: true", param="stream_options")


def check_chat(body: ChatRequest) -> None:
    """The rules that only chat has."""
    limits.MESSAGES.check("messages", len(body.messages))
    limits.TOOLS.check("tools", len(body.tools or ()))
    limits.DOCUMENTS.check("documents", len(body.documents or ()))
    if body.top_logprobs is not None and not body.logprobs:
        raise ClientError("top_logprobs needs logprobs: true", param="top_logprobs")
    for name in TEMPLATE_ARGUMENTS:
        if name in (body.chat_template_kwargs or {}):
            raise ClientError(f"chat_template_kwargs must not hold {name}", param="chat_template_kwargs")


def check_template(template: str | None, trusted: bool) -> None:
    """Refuse a template that a request brings, unless --trust-request-chat-template says that it may."""
    if not template:
        return
    if not trusted:
        raise UnsupportedError(
            "chat_template: a template in a request is not trusted; start the server with --chat-template, or with "
            "--trust-request-chat-template",
            param="chat_template",
        )
    limits.TEMPLATE_CHARACTERS.check("chat_template", len(template))
