"""/v1/files: upload, list, retrieve, read, delete."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request, Response
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException
from starlette.responses import FileResponse
from starlette.types import Message

from octavo.errors import ClientError
from octavo.server.collection import owner_of
from octavo.server.errors import ContentTypeError, SlowBodyError, TooLargeError
from octavo.server.files import RETENTION_S, FileObject
from octavo.server.middleware import BODY_TIMEOUT_S
from octavo.server.responses import Deleted, json_response
from octavo.server.store import store_of

router = APIRouter()

FORM_BYTES = 64 << 10
"""Beside the file itself."""

CHUNK_BYTES = 1 << 20
MIN_LIFETIME_S, MAX_LIFETIME_S = 3600, RETENTION_S

UPLOAD_SCHEMA: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": ["batch"]},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {
                            "type": "integer", "minimum": MIN_LIFETIME_S, "maximum": MAX_LIFETIME_S
                        },
                    },
                }
            }
        },
    }
}  # fmt: skip


class FileList(msgspec.Struct, kw_only=True):
    """Answer of GET /v1/files."""

    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


@router.post("/v1/files", openapi_extra=UPLOAD_SCHEMA)
async def upload(request: Request) -> Response:
    """Keep a file for a batch."""
    store = store_of(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise ContentTypeError(
            f"Content-Type is {kind[:80]!r}; send multipart/form-data with the fields file and purpose"
        )
    bounded = _Bounded(request, store.files.max_file_bytes + FORM_BYTES)
    try:
        async with Request(request.scope, bounded.receive).form(max_files=1, max_fields=8) as form:
            file, lifetime_s = _read_form(form)
            made = await store.files.upload(_parts(file), file.filename or "upload", owner_of(request), lifetime_s)
    except MultiPartException as err:
        raise ClientError(f"the form cannot be read: {err.message}", param="file") from None
    return json_response(made)


@router.get("/v1/files")
async def files(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    after: str | None = None,
    order: Literal["asc", "desc"] = "desc",
    purpose: str | None = None,
) -> Response:
    """The files of this client."""
    items, has_more = store_of(request).files.objects.page(
        owner_of(request),
        limit=limit,
        after=after,
        newest_first=order == "desc",
        wanted=lambda file: purpose in (None, file.purpose),
    )
    first, last = (items[0].id, items[-1].id) if items else (None, None)
    return json_response(FileList(data=items, first_id=first, last_id=last, has_more=has_more))


@router.get("/v1/files/{file_id}")
async def file(request: Request, file_id: str) -> Response:
    """What is known of a file."""
    return json_response(store_of(request).files.objects.get(file_id, owner_of(request), param="file_id"))


@router.get("/v1/files/{file_id}/content")
async def content(request: Request, file_id: str) -> Response:
    """The bytes of a file."""
    files = store_of(request).files
    found = files.objects.get(file_id, owner_of(request), param="file_id")
    return FileResponse(files.path(found.id), media_type="application/octet-stream")


@router.delete("/v1/files/{file_id}")
async def delete(request: Request, file_id: str) -> Response:
    """Remove a file."""
    store = store_of(request)
    found = store.files.objects.get(file_id, owner_of(request), param="file_id")
    user = store.batches.user_of(found.id)
    if user is not None:
        raise ClientError(f"{found.id} is being read by {user}; cancel that batch first", param="file_id")
    store.files.delete(found.id)
    return json_response(Deleted(id=found.id, object="file"))


class _Bounded:
    """A request's body within limits of size and of the time between two pieces."""

    def __init__(self, request: Request, max_bytes: int) -> None:
        self._receive = request.receive
        self._max_bytes = max_bytes
        self._size = 0

    async def receive(self) -> Message:
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                message = await self._receive()
        except TimeoutError:
            raise SlowBodyError(f"no part of the body arrived within {BODY_TIMEOUT_S:g} s") from None
        self._size += len(message.get("body", b""))
        if self._size > self._max_bytes:
            raise TooLargeError(
                f"the form is larger than {self._max_bytes} bytes; split the file, or raise --max-file-bytes"
            )
        return message


def _read_form(form: FormData) -> tuple[UploadFile, int]:
    """The file and how long it is to be kept."""
    file, purpose = form.get("file"), form.get("purpose")
    if not isinstance(file, UploadFile):
        raise ClientError("the form has no file; send one in the field file", param="file")
    if purpose != "batch":
        raise ClientError(f"purpose is {str(purpose)[:80]!r} but only batch is known here", param="purpose")
    if form.get("expires_after[anchor]", "created_at") != "created_at":
        raise ClientError("expires_after.anchor must be created_at", param="expires_after.anchor")
    seconds = str(form.get("expires_after[seconds]", RETENTION_S))
    if not seconds.isdecimal() or not MIN_LIFETIME_S <= int(seconds) <= MAX_LIFETIME_S:
        raise ClientError(
            f"expires_after.seconds is {seconds[:80]!r} but must be between {MIN_LIFETIME_S} and {MAX_LIFETIME_S}",
            param="expires_after.seconds",
        )
    return file, int(seconds)


async def _parts(file: UploadFile) -> AsyncIterator[bytes]:
    while part := await file.read(CHUNK_BYTES):
        yield part
