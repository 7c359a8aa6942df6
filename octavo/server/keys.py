"""Who may do what: API keys, their scopes, and the file of their hashes. Knows no HTTP.

A key file has one key a line, `NAME SCOPES sha256:SALT:DIGEST`, as `octavo key new` writes it; the key itself is in no
file.
Keys are 256 random bits, so there is nothing to guess for which a slow hash would be needed, and a fast one keeps wrong
keys from costing much.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from octavo.errors import ConfigError
from octavo.logging import get_logger

logger = get_logger(__name__)

PREFIX = "sk-octavo-"
MAX_KEYS = 10_000


class Scope(StrEnum):
    """What a key is good for."""

    INFER = "infer"
    ADMIN = "admin"


class Key(NamedTuple):
    """One key, as far as the server knows it. `name` is who uses it: requests of one name share one queue."""

    name: str
    scopes: frozenset[Scope]
    salt: bytes
    digest: bytes

    def matches(self, presented: bytes) -> bool:
        """Whether it is this one, in a time that tells nothing."""
        return hmac.compare_digest(_digest(self.salt, presented), self.digest)

    def line(self) -> str:
        """Its line in a key file."""
        return f"{self.name} {','.join(sorted(self.scopes))} sha256:{self.salt.hex()}:{self.digest.hex()}"


def hashed(name: str, key: str, scopes: Iterable[Scope]) -> Key:
    """What to remember of a key."""
    salt = secrets.token_bytes(16)
    return Key(name, frozenset(scopes), salt, _digest(salt, key.encode()))


def new_key() -> str:
    """A key that nobody has."""
    return PREFIX + secrets.token_urlsafe(32)


class KeyRing:
    """The keys that are good now.

    Args:
        keys: given in plain, good for everything.
        path: a key file, read again by `reload`.

    Raises:
        ConfigError: the file cannot be read.
    """

    def __init__(self, keys: Iterable[str] = (), path: str | None = None) -> None:
        self._path = path
        self._given = [hashed(f"api-key-{i}", key, Scope) for i, key in enumerate(keys, 1)]
        self._keys = self._given + _read(path)

    def __bool__(self) -> bool:
        """Whether a key is needed at all. With a key file one is, also while it is empty."""
        return bool(self._keys) or self._path is not None

    def find(self, presented: bytes) -> Key | None:
        """The key that is presented, if it is one. All are compared, however early one matches."""
        found = [key for key in self._keys if key.matches(presented)]
        return found[0] if found else None

    def reload(self) -> None:
        """Read the key file again. One that cannot be read changes nothing, and is logged."""
        try:
            self._keys = self._given + _read(self._path)
        except ConfigError as err:
            logger.error("keys stay as they are: %s", err)
        else:
            logger.info("%d API keys are good now", len(self._keys))


def _digest(salt: bytes, key: bytes) -> bytes:
    return hashlib.sha256(salt + key).digest()


def _read(path: str | None) -> list[Key]:
    if path is None:
        return []
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"--api-key-file {path!r} cannot be read: {err}") from None
    found = [
        _parse(path, number, line)
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if len(found) > MAX_KEYS:
        raise ConfigError(f"--api-key-file {path!r} has {len(found)} keys but the limit is {MAX_KEYS}")
    names = [key.name for key in found]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"--api-key-file {path!r} has the name {repeated!r} twice; rename one")
    return found


def _parse(path: str, number: int, line: str) -> Key:
    """One line. Errors do not quote it: somebody may have put a key there."""
    try:
        name, scopes, secret = line.split()
        kind, salt, digest = secret.split(":")
        key = Key(name, frozenset(map(Scope, scopes.split(","))), bytes.fromhex(salt), bytes.fromhex(digest))
        if kind != "sha256" or len(key.digest) != 32 or len(key.salt) < 8:
            raise ValueError
    except ValueError:
        raise ConfigError(
            f"--api-key-file {path!r}, line {number}: not NAME SCOPES sha256:SALT:DIGEST with scopes among "
            f"{', '.join(Scope)}; make lines with `octavo key new NAME`"
        ) from None
    return key
