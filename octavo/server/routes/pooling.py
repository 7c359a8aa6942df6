"""Routes of models that turn text into numbers: embeddings, scores, classes. Bodies are read and checked in full; what
is missing is such a model: this version loads generative ones only, so every well-formed request is told so.
"""

from typing import Any, Literal, NoReturn

from fastapi import APIRouter, Request, Response
from pydantic import Field

from octavo import limits
from octavo.errors import ClientError, UnsupportedError
from octavo.server.body import body_schema, json_body
from octavo.server.prompts import Conversation
from octavo.server.requests import Body, Int
from octavo.server.serving import Serving, lifecycle_of

router = APIRouter()


class PoolingBody(Body):
    """What these requests have in common."""

    model: str | None = None
    truncate_prompt_tokens: Int | None = Field(None, ge=-1)
    truncation_side: Literal["left", "right"] = "right"
    add_special_tokens: bool = True
    use_activation: bool | None = None
    priority: Int | None = None
    cache_salt: str | None = Field(None, min_length=1, max_length=128)
    request_id: str | None = Field(None, min_length=1, max_length=128)


class TextBody(PoolingBody):
    """Texts, token ids or a conversation."""

    input: Any = None
    messages: list[dict[str, Any]] | None = Field(None, min_length=1)
    chat_template_kwargs: dict[str, Any] | None = None
    encoding_format: Literal["float", "base64", "bytes"] = "float"
    embed_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    endianness: Literal["native", "little", "big"] = "native"
    padding: bool | None = None


class EmbeddingRequest(TextBody):
    """Body of /v1/embeddings."""

    dimensions: Int | None = Field(None, ge=1)
    user: str | None = None


class PoolingRequest(TextBody):
    """Body of /pooling."""

    task: Literal["embed", "classify", "token_embed", "token_classify"] = "embed"
    dimensions: Int | None = Field(None, ge=1)


class ClassifyRequest(TextBody):
    """Body of /classify."""


class ScoreRequest(PoolingBody):
    """Body of /score: every query with its document, or one query with all of them. Older names are read too."""

    queries: str | list[str] | None = None
    documents: str | list[str] | None = None
    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    data_1: str | list[str] | None = None
    data_2: str | list[str] | None = None
    items: str | list[str] | None = None
    instruction: str | None = None
    max_tokens_per_query: Int | None = Field(None, ge=1)
    max_tokens_per_doc: Int | None = Field(None, ge=1)

    def pairs(self) -> tuple[list[str], list[str]]:
        """Queries and documents.

        Raises:
            ClientError: one side is missing or empty, or there are several of both in different numbers.
        """
        left = _one_of(self, "queries", "text_1", "data_1")
        right = _one_of(self, "documents", "items", "text_2", "data_2")
        if len(left) not in (1, len(right)):
            raise ClientError(
                f"{len(left)} queries and {len(right)} documents cannot be paired; send one query, or as many of both",
                param="queries",
            )
        return left, right


class RerankRequest(PoolingBody):
    """Body of /rerank."""

    query: str = Field(min_length=1)
    documents: list[str] = Field(min_length=1)
    top_n: Int | None = Field(None, ge=0)
    return_documents: bool = True
    instruction: str | None = None
    max_tokens_per_query: Int | None = Field(None, ge=1)
    max_tokens_per_doc: Int | None = Field(None, ge=1)


@router.post("/v1/embeddings", openapi_extra=body_schema(EmbeddingRequest))
async def embeddings(request: Request, body: EmbeddingRequest = json_body(EmbeddingRequest)) -> Response:
    """Vectors of texts."""
    return await _refuse_texts(request, body, "embeddings")


@router.post("/pooling", openapi_extra=body_schema(PoolingRequest))
async def pooling(request: Request, body: PoolingRequest = json_body(PoolingRequest)) -> Response:
    """What a pooling model makes of texts."""
    return await _refuse_texts(request, body, f"{body.task} outputs")


@router.post("/classify", openapi_extra=body_schema(ClassifyRequest))
async def classify(request: Request, body: ClassifyRequest = json_body(ClassifyRequest)) -> Response:
    """Classes of texts."""
    return await _refuse_texts(request, body, "classes")


@router.post("/score", openapi_extra=body_schema(ScoreRequest))
@router.post("/v1/score", openapi_extra=body_schema(ScoreRequest))
async def score(request: Request, body: ScoreRequest = json_body(ScoreRequest)) -> Response:
    """How well documents fit queries."""
    serving = _checked(request, body)
    left, right = body.pairs()
    limits.PROMPTS.check("documents", max(len(left), len(right)))
    _refuse(serving, "scores")


@router.post("/rerank", openapi_extra=body_schema(RerankRequest))
@router.post("/v1/rerank", openapi_extra=body_schema(RerankRequest))
@router.post("/v2/rerank", openapi_extra=body_schema(RerankRequest))
async def rerank(request: Request, body: RerankRequest = json_body(RerankRequest)) -> Response:
    """Documents by how well they fit a query."""
    serving = _checked(request, body)
    limits.PROMPTS.check("documents", len(body.documents))
    _refuse(serving, "scores")


def _checked(request: Request, body: PoolingBody) -> Serving:
    serving = lifecycle_of(request).serving()
    serving.check_model(body.model)
    return serving


async def _refuse_texts(request: Request, body: TextBody, what: str) -> Response:
    serving = _checked(request, body)
    if (body.input is None) == (body.messages is None):
        raise ClientError("send either input or messages", param="input")
    try:
        if body.messages is None:
            await serving.prompts.completion(
                body.input, body.add_special_tokens, bounded=body.truncate_prompt_tokens is None
            )
        else:
            conversation = Conversation(body.messages, variables=body.chat_template_kwargs or {})
            await serving.prompts.chat(conversation)
    except ClientError as err:
        if err.param == "prompt":
            err.param = "input"
        raise
    _refuse(serving, what)


def _refuse(serving: Serving, what: str) -> NoReturn:
    raise UnsupportedError(
        f"{serving.model_name} generates text and has no {what}, and this version loads no model that has them; send "
        "this request to a server of such a model",
        param="model",
    )


def _one_of(body: ScoreRequest, *names: str) -> list[str]:
    """The one of these fields that was sent, as a list."""
    sent = [name for name in names if getattr(body, name) is not None]
    if len(sent) != 1:
        got = " and ".join(sent) or "none"
        raise ClientError(f"send one of {', '.join(names)}; got {got}", param=names[0])
    value = getattr(body, sent[0])
    texts: list[str] = [value] if isinstance(value, str) else value
    if not texts or not all(texts):
        raise ClientError(f"{sent[0]} is empty, or holds an empty text", param=sent[0])
    return texts
