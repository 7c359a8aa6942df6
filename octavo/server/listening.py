"""The listening socket, made before anything that takes time. Imports no web framework, so that it comes first."""

import errno
import socket

from octavo.errors import ConfigError

BACKLOG = 2048
"""Connections that may wait, also while the server is still starting."""


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
