"""uvicorn as we run it: clients that never finish a request cannot hold a connection. Knows no route."""

import asyncio
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from octavo import envs, limits
from octavo.config import ServerConfig
from octavo.errors import ClientError, ConfigError
from octavo.logging import adopt
from octavo.server.error_forms import OPENAI
from octavo.server.errors import HeadersTooLargeError, failure

HEADER_TIMEOUT_S = float(limits.HEADER_SECONDS.default)
"""A connection on which a request does not come about for this long, or a header for this long, is closed."""

FLUSH_S = 5
"""How long answers may take to reach their clients once the server stops."""


class HttpServer(uvicorn.Server):
    """uvicorn, without its signal handlers: whoever runs it has his own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def make_http_server(app: FastAPI, server: ServerConfig) -> HttpServer:
    """uvicorn for `app`; give its `serve` the socket.

    Raises:
        ConfigError: the certificate, its key or the certificates for clients cannot be used.
    """
    for name in ("uvicorn.error", "uvicorn.access"):
        adopt(name, server.uvicorn_log_level)
    paths = (server.disable_access_log_for_endpoints or "").split(",")
    logging.getLogger("uvicorn.access").filters = [_QuietPaths(path.strip() for path in paths)]
    config = uvicorn.Config(
        app,
        http=Connection,
        log_config=None,
        log_level=server.uvicorn_log_level,
        access_log=not server.disable_uvicorn_access_log,
        lifespan="on",
        server_header=False,
        timeout_keep_alive=int(envs.KEEP_ALIVE.get()),
        timeout_graceful_shutdown=FLUSH_S,
        ssl_keyfile=server.ssl_keyfile,
        ssl_certfile=server.ssl_certfile,
        ssl_ca_certs=server.ssl_ca_certs,
        ssl_cert_reqs=server.ssl_cert_reqs,
    )
    try:
        config.load()
    except OSError as err:  # ssl.SSLError is one
        names = f"--ssl-certfile {server.ssl_certfile}, --ssl-keyfile {server.ssl_keyfile}"
        raise ConfigError(f"{names}: {err}") from None
    return HttpServer(config)


class _QuietPaths(logging.Filter):
    """Leaves answers of some paths out of the access log."""

    def __init__(self, paths: Iterable[str]) -> None:
        super().__init__()
        self._paths = frozenset(paths)

    def filter(self, record: logging.LogRecord) -> bool:
        arguments = record.args  # (client, method, path with query, HTTP version, status)
        if not isinstance(arguments, tuple) or len(arguments) < 3:
            return True
        return str(arguments[2]).partition("?")[0] not in self._paths


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's HTTP protocol, whichever is installed, with a limit on the time that a request may take to begin, and
    errors of the protocol itself in our envelope.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_timer: asyncio.TimerHandle | None = None
        self._num_header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._await_request()

    def data_received(self, data: bytes) -> None:
        """Stop waiting once a request has come about; a part of one on a kept connection begins a wait."""
        if not self._in_request():  # not every parser has a bound of its own
            self._num_header_bytes += len(data)
        super().data_received(data)
        if self._in_request():
            self._num_header_bytes = 0
            self._stop_waiting()
        elif self._num_header_bytes > 2 * limits.HEADER_BYTES.value:
            self._refuse(HeadersTooLargeError(f"the headers are larger than {limits.HEADER_BYTES.value} bytes"))
        elif self._header_timer is None:
            self._await_request()

    def eof_received(self) -> None:
        """The client has sent all it will. In the middle of a body that is an error it may still want to read."""
        if self._in_request() and self.cycle.more_body and not self.cycle.response_started:
            self.send_400_response("the connection ended before the body did")
        super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more to wait for."""
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not an HTTP request."""
        self._refuse(ClientError(msg))

    def _refuse(self, err: ClientError) -> None:
        if not (self._in_request() and self.cycle.response_started):
            body = OPENAI.json(failure(err))
            status = f"{err.status} {HTTPStatus(err.status).phrase}"
            head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n"
            self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()

    def _in_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_request(self) -> None:
        self._header_timer = self.loop.call_later(HEADER_TIMEOUT_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
