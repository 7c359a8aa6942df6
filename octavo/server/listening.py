"""The server's socket: taken before anything that takes time, open to clients later. Imports no web framework."""

import errno
import os
import socket
import stat

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


def reserve_path(path: str) -> socket.socket:
    """A Unix socket that holds a path nobody can connect to yet. One that a server has left behind is replaced.

    Raises:
        ConfigError: the path is in use, or is no place for a socket.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode) and not _is_answered(path):
            os.unlink(path)
        made.bind(path)
    except OSError as err:
        made.close()
        cause = "is in use" if err.errno == errno.EADDRINUSE else f"cannot be used: {err.strerror or err}"
        raise ConfigError(f"--uds {path!r} {cause}; choose another path") from None
    return made


def url_of(sock: socket.socket, scheme: str) -> str:
    """How clients name it."""
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _is_answered(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.connect(path)
        except ConnectionRefusedError:
            return False
    return True


def open_to_clients(reserved: socket.socket) -> None:
    """Let clients connect from now on.

    Raises:
        ConfigError: another server was quicker.
    """
    if reserved.family != socket.AF_UNIX:
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
