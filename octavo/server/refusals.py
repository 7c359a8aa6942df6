"""Fields that ask for what this version does not do, or that contradict each other. Nothing is dropped silently."""

from octavo import limits
from octavo.errors import ClientError, UnsupportedError
from octavo.server.requests import ChatRequest, EngineBody, GenerationRequest

REFUSED: dict[str, str] = {
    "suffix": "fill-in-the-middle is not supported by this version; put the model's own markers into the prompt",
    "prompt_embeds": "prompt embeddings are not supported by this version; send text or token ids",
    "use_beam_search": "beam search is not served over HTTP; call LLM.beam_search, or send n and temperature",
    "logits_processors": "processors per request are not supported; use logit_bias, bad_words or allowed_token_ids",
    "functions": "functions is deprecated; send tools",
    "function_call": "function_call is deprecated; send tool_choice",
    "audio": "audio output is not supported by this version",
    "web_search_options": "web search is not supported",
    "prediction": "predicted output is not supported by this version",
    "mm_processor_kwargs": "images and audio are not supported by this version",
    "features": "images and audio are not supported by this version",
    "media_io_kwargs": "images and audio are not supported by this version",
    "thinking_token_budget": "there is no thinking in a completion; send it to /v1/chat/completions",
    "watermarking": "watermarks are not supported by this version",
    "kv_transfer_params": "KV transfer is not supported by this version",
    "ec_transfer_params": "encoder transfer is not supported by this version",
    "routed_experts_prompt_start": "routed experts are not reported by this version",
    "vllm_xargs": "custom arguments are not supported by this version",
}
"""Field -> why not, and what to do instead. Null, false and empty values ask for nothing and pass."""

TEMPLATE_ARGUMENTS = ("chat_template", "tokenize", "return_dict", "return_tensors")
"""Names that `chat_template_kwargs` must not carry past the checks above."""


CHECKED = ("best_of", "modalities")
"""Further fields that no model declares and that are looked at here."""


def check_supported(body: GenerationRequest) -> None:
    """Refuse what is too much, or not there.

    Raises:
        UnsupportedError, ClientError: `param` names the field.
    """
    check_refused(body)
    extra = body.model_extra or {}
    if extra.get("best_of") not in (None, 1, body.n or 1):
        raise UnsupportedError("best_of is not supported; send n and choose among the answers", param="best_of")
    if extra.get("modalities") not in (None, [], ["text"]):
        raise UnsupportedError("modalities: only text is supported", param="modalities")
    if body.prompt_logprobs is not None and body.stream:
        raise ClientError("prompt_logprobs cannot be streamed; send stream: false", param="prompt_logprobs")


def check_refused(body: EngineBody) -> None:
    """The rules for every body; errors as above."""
    for field, value in (body.model_extra or {}).items():
        if field in REFUSED and value not in (None, False, "", [], {}):
            raise UnsupportedError(f"{field}: {REFUSED[field]}", param=field)
    if body.stream_options is not None and not body.stream:
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
