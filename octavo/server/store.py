"""What outlives a request: files, batches and stored responses. Opened when first needed, closed with the app."""

from functools import cached_property

from fastapi import Request
from starlette.types import ASGIApp

from octavo.server.batches import Batches
from octavo.server.files import FileStore
from octavo.server.response_store import ResponseStore
from octavo.server.serving import Lifecycle


class Store:
    """Opens the folder at once if there is one to go on with, and with the first request otherwise.

    Args:
        app: has the routes that lines of batches name.

    Raises:
        ConfigError: `--files-dir` cannot be used.
    """

    def __init__(self, lifecycle: Lifecycle, app: ASGIApp) -> None:
        self._lifecycle = lifecycle
        self._app = app
        if lifecycle.server.files_dir is not None:
            assert self.batches  # goes on with those that are open
        if lifecycle.server.response_store is not None:
            assert self.responses

    @cached_property
    def files(self) -> FileStore:
        """Uploaded files."""
        server = self._lifecycle.server
        return FileStore(server.files_dir, server.max_file_bytes, server.max_files_bytes)

    @cached_property
    def batches(self) -> Batches:
        """Batches over them."""
        return Batches(self.files, self._app, self._lifecycle, self._lifecycle.server.batch_concurrency)

    @cached_property
    def responses(self) -> ResponseStore:
        """Responses that clients may come back to."""
        server = self._lifecycle.server
        return ResponseStore(server.response_store, server.response_store_size, server.response_store_ttl)

    async def close(self) -> None:
        """Stop what runs and let go of files."""
        if "responses" in self.__dict__:
            await self.responses.close()
        if "batches" in self.__dict__:
            await self.batches.close()
        if "files" in self.__dict__:
            self.files.close()


def store_of(request: Request) -> Store:
    """The app's store."""
    store: Store = request.app.state.store
    return store
