"""POST /tokenize and /detokenize."""

import msgspec
from fastapi import APIRouter, Request, Response

from octavo.errors import ClientError
from octavo.server.body import body_schema, json_body
from octavo.server.prompts import Conversation
from octavo.server.refusals import check_template
from octavo.server.requests import DetokenizeRequest, TokenizeRequest
from octavo.server.responses import Text, Tokens, json_response
from octavo.server.serving import Serving, lifecycle_of
from octavo.server.tgi import SimpleToken

router = APIRouter()


@router.post("/tokenize", openapi_extra=body_schema(TokenizeRequest))
async def tokenize(request: Request, body: TokenizeRequest = json_body(TokenizeRequest)) -> Response:
    """Ids of a text, or of a conversation as chat would render it."""
    lifecycle = lifecycle_of(request)
    serving = lifecycle.serving()
    serving.check_model(body.model)
    check_template(body.chat_template, lifecycle.server.trust_request_chat_template)
    if body.inputs is not None:
        return _tgi_answer(serving, body)
    if (body.prompt is None) == (body.messages is None):
        raise ClientError("send either prompt or messages", param="prompt")
    if body.messages is not None:
        asks = body.add_generation_prompt
        token_ids = await serving.prompts.chat(
            Conversation(
                body.messages,
                tools=body.tools,
                add_generation_prompt=not body.continue_final_message if asks is None else asks,
                continue_final_message=body.continue_final_message,
                variables=body.chat_template_kwargs or {},
                template=body.chat_template or None,
                add_special_tokens=bool(body.add_special_tokens),
            )
        )
    else:
        token_ids = await serving.prompts.encode(body.prompt or "", body.add_special_tokens is not False)
    tokenizer = serving.prompts.tokenizer
    texts = [tokenizer.id_to_token(token_id) or "" for token_id in token_ids] if body.return_token_strs else None
    limit = serving.config.max_model_len
    return json_response(Tokens(count=len(token_ids), max_model_len=limit, tokens=token_ids, token_strs=texts))


def _tgi_answer(serving: Serving, body: TokenizeRequest) -> Response:
    """Every token with its place in the text, as TGI's clients expect of the same path."""
    if body.prompt is not None or body.messages is not None:
        raise ClientError("send one of prompt, messages and inputs", param="inputs")
    text = body.inputs or ""
    found = serving.prompts.tokenizer.backend.encode(text, add_special_tokens=body.add_special_tokens is not False)
    tokens = [
        SimpleToken(token_id, text[start:stop], start, stop)
        for token_id, (start, stop) in zip(found.ids, found.offsets, strict=True)
    ]
    return Response(msgspec.json.encode(tokens), media_type="application/json")


@router.post("/detokenize", openapi_extra=body_schema(DetokenizeRequest))
async def detokenize(request: Request, body: DetokenizeRequest = json_body(DetokenizeRequest)) -> Response:
    """Text of ids, special tokens included."""
    serving = lifecycle_of(request).serving()
    serving.check_model(body.model)
    serving.prompts.check_ids(body.tokens, "tokens")
    return json_response(Text(serving.prompts.tokenizer.decode(body.tokens, skip_special_tokens=False)))
