"""GET /tokenizer_info and /server_info: what runs here, for tools and bug reports. No secrets, no requests."""

from typing import Any, Literal

import msgspec
from fastapi import APIRouter, Request, Response

from octavo.errors import NotFoundError
from octavo.server.serving import lifecycle_of
from octavo.version import VERSION

router = APIRouter()

SECRET = ("api_key", "api_key_file")


@router.get("/tokenizer_info")
async def tokenizer_info(request: Request) -> Response:
    """Special tokens, sizes and chat template, under the names of a tokenizer_config.json."""
    lifecycle = lifecycle_of(request)
    if not lifecycle.server.enable_tokenizer_info_endpoint:
        raise NotFoundError("/tokenizer_info is off; start the server with --enable-tokenizer-info-endpoint")
    serving = lifecycle.serving()
    tokenizer = serving.prompts.tokenizer
    templates = tokenizer.chat_templates
    return _json(
        {
            **tokenizer.special_tokens,
            "vocab_size": serving.config.spec.vocab_size,
            "model_max_length": serving.config.max_model_len,
            "chat_template": templates.get("default") if set(templates) <= {"default"} else templates,
        }
    )


@router.get("/server_info")
async def server_info(request: Request, config_format: Literal["text", "json"] = "text") -> Response:
    """The resolved configuration, as text or as objects."""
    lifecycle = lifecycle_of(request)
    config = lifecycle.serving().config
    options = msgspec.to_builtins(lifecycle.server)
    server = {name: value for name, value in options.items() if name not in SECRET}
    as_text = config_format == "text"
    return _json(
        {
            "version": VERSION,
            "vllm_config": str(config) if as_text else msgspec.to_builtins(config),
            "server": str(server) if as_text else server,
        }
    )


def _json(body: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
