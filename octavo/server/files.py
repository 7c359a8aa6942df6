"""Files that clients upload, and that batches write: bytes in a folder, what is known of them in its database.

The folder belongs to one server at a time. Without `--files-dir` it is a temporary one, which ends with the server.
"""

import fcntl
import os
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import msgspec

from octavo.errors import ClientError, ConfigError
from octavo.server.collection import Collection, open_database
from octavo.server.errors import TooLargeError

MAX_FILES = 10_000
RETENTION_S = 30 * 24 * 3600
"""How long a file is kept that says nothing else."""


class FileObject(msgspec.Struct, kw_only=True):
    """A file, in OpenAI's form."""

    id: str
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    object: Literal["file"] = "file"
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"] = "processed"


class FileStore:
    """Owns the folder.

    Args:
        folder: None makes a temporary one.
        max_file_bytes: of one upload.
        max_total_bytes: of all files together.

    Raises:
        ConfigError: the folder cannot be used, or another server uses it.
    """

    def __init__(self, folder: str | None, max_file_bytes: int, max_total_bytes: int) -> None:
        self._temporary = None if folder else tempfile.TemporaryDirectory(prefix="octavo-files-")
        self.folder = Path(folder or self._temporary.name)  # type: ignore[union-attr]
        self.max_file_bytes = max_file_bytes
        self._max_total_bytes = max_total_bytes
        self._lock = _lock(self.folder)
        self.database = open_database(self.folder / "octavo.db")
        self.objects: Collection[FileObject] = Collection(self.database, "file", "file", FileObject)
        for leftover in self.folder.glob("*.part"):
            leftover.unlink(missing_ok=True)
        self.remove_expired()

    def path(self, file_id: str) -> Path:
        """Where the bytes of a file lie."""
        return self.folder / file_id

    async def upload(self, parts: AsyncIterator[bytes], filename: str, owner: str, lifetime_s: int) -> FileObject:
        """Keep what arrives.

        Raises:
            ClientError: it is larger than a file may be, or there is no room; nothing of it stays.
        """
        self.remove_expired()
        file_id = new_id("file")
        partial = self.folder / f"{file_id}.part"
        free, size = self._room(), 0
        try:
            with partial.open("wb") as file:
                async for part in parts:
                    size += len(part)
                    if size > self.max_file_bytes:
                        raise TooLargeError(
                            f"the file is larger than {self.max_file_bytes} bytes; split it, or raise --max-file-bytes"
                        )
                    if size > free:
                        raise ClientError(
                            f"all files together may have {self._max_total_bytes} bytes and {free} are left; delete "
                            "some, or raise --max-files-bytes",
                            param="file",
                        )
                    file.write(part)
            os.replace(partial, self.path(file_id))
        finally:
            partial.unlink(missing_ok=True)
        return self.register(file_id, filename, "batch", owner, lifetime_s)

    def register(
        self,
        file_id: str,
        filename: str,
        purpose: Literal["batch", "batch_output"],
        owner: str,
        lifetime_s: int = RETENTION_S,
    ) -> FileObject:
        """Make bytes that are in place a file."""
        now = int(time.time())
        size = self.path(file_id).stat().st_size
        made = FileObject(
            id=file_id, bytes=size, created_at=now, expires_at=now + lifetime_s, filename=filename, purpose=purpose
        )
        self.objects.put(made, owner, now + lifetime_s)
        return made

    def delete(self, file_id: str) -> None:
        """Remove a file and its bytes."""
        self.objects.delete(file_id)
        self.path(file_id).unlink(missing_ok=True)

    def remove_expired(self) -> None:
        """Remove files whose time is over."""
        for file in self.objects.take_expired():
            self.path(file.id).unlink(missing_ok=True)

    def close(self) -> None:
        """Let another server have the folder."""
        self.database.close()
        os.close(self._lock)
        if self._temporary is not None:
            self._temporary.cleanup()

    def _room(self) -> int:
        """Bytes that may still be written."""
        files = [file for _, file in self.objects.everyones()]
        if len(files) >= MAX_FILES:
            raise ClientError(f"{len(files)} files are kept and the limit is {MAX_FILES}; delete some", param="file")
        return max(0, self._max_total_bytes - sum(file.bytes for file in files))


def new_id(prefix: str) -> str:
    """An id that nobody guesses."""
    return f"{prefix}-{uuid.uuid4().hex}"


def _lock(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as err:
        raise ConfigError(f"--files-dir {folder} cannot be used: {err.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise ConfigError(f"--files-dir {folder} is in use by another server; give each its own") from None
    return lock
