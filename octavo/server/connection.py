"""The connection side of uvicorn: a listening socket before anything else, and clients that never finish a request
cannot hold a connection.
"""

import asyncio
import errno
import socket
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from octavo.errors import ClientError, ConfigError
from octavo.server.errors import failure

BACKLOG = 2048

HEADER_TIMEOUT_S = 20.0
"""A connection on which a request does not come about for this long, or a header for this long, is closed."""


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket; port 0 takes a free one. A port that is only in TIME_WAIT is taken.

    Raises:
        ConfigError: the port is in use, or the address is not ours.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as err:
        raise ConfigError(f"--host is {host!r}, which is not an address: {err}") from None
    made = socket.socket(family, kind, proto)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError as err:
        made.close()
        if err.errno == errno.EADDRINUSE:
            raise ConfigError(f"port {port} on {host} is already in use; choose another with --port") from None
        raise ConfigError(f"cannot listen on {host}:{port}: {err.strerror}") from None
    return made


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's HTTP protocol, whichever is installed, with a limit on the time that a request may take to begin, and
    errors of the protocol itself in our envelope.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._await_request()

    def data_received(self, data: bytes) -> None:
        """Stop waiting once a request has come about; a part of one on a kept connection begins a wait."""
        super().data_received(data)
        if self._in_request():
            self._stop_waiting()
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
        if not (self._in_request() and self.cycle.response_started):
            body = failure(ClientError(msg)).json()
            head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
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
