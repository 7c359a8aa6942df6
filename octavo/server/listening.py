"""The server's socket: taken before anything that takes time, open to clients later. Imports no web framework."""

import errno
import socket

from octavo.errors import ConfigError

BACKLOG = 2048
"""Connections that may wait."""


def reserve(host: str, port: int) -> socket.socket:
    """A TCP socket that holds an address nobody can connect to yet; port 0 takes a free one.

    Raises:
        ConfigError: the port is in use or held by another server that starts, or the address is not ours.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as err:
        raise ConfigError(f"--host is {host!r}, which is not an address: {err}") from None
    made = socket.socket(family, kind, proto)
    try:
        try:
            made.bind(address)  # not to be shared: a second one fails although this one does not listen
        except OSError as err:
            if err.errno != errno.EADDRINUSE:
                raise
            # Connections of a server that has just ended hold the port for a minute, but do not mind.
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
    except OSError as err:
        made.close()
        raise _refusal(host, port, err) from None
    return made


def open_to_clients(reserved: socket.socket) -> None:
    """Let clients connect from now on.

    Raises:
        ConfigError: another server was quicker.
    """
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # for whoever comes next
    try:
        reserved.listen(BACKLOG)
    except OSError as err:
        host, port = reserved.getsockname()[:2]
        raise _refusal(host, port, err) from None


def _refusal(host: str, port: int, err: OSError) -> ConfigError:
    if err.errno == errno.EADDRINUSE:
        return ConfigError(f"port {port} on {host} is already in use; choose another with --port")
    return ConfigError(f"cannot listen on {host}:{port}: {err.strerror}")
