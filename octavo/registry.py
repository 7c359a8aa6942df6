"""Named things loaded on first use. A registry is a dict of "module:attribute" strings, so listing costs no import."""

from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from octavo.errors import ConfigError

T = TypeVar("T")

PLUGIN_GROUP = "octavo.plugins"
"""Entry points of this group name a function that takes nothing and calls `REGISTRY.add(...)`."""


class Registry(Generic[T]):
    """Maps a public name to a lazily imported object.

    Raises:
        ConfigError: when an unknown name is asked for; the message lists the known ones.
    """

    def __init__(self, kind: str, targets: dict[str, str]) -> None:
        self.kind = kind
        self._targets = dict(targets)

    def add(self, name: str, target: str) -> None:
        """Register `name` as "package.module:attribute"; replaces an earlier one."""
        self._targets[name] = target

    def load(self, name: str) -> T:
        """Import and return the object registered as `name`."""
        if name not in self._targets:
            raise ConfigError(f"unknown {self.kind} {name!r}; known: {', '.join(sorted(self._targets))}")
        found: T = load_object(self._targets[name])
        return found

    def __contains__(self, name: str) -> bool:
        return name in self._targets

    def __iter__(self) -> Iterator[str]:
        return iter(self._targets)


def load_object(target: str) -> Any:
    """Import and return what "package.module:attribute" names."""
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


def load_plugins() -> None:
    """Call every installed plug-in once; a plug-in that fails stops the start-up with its name."""
    for entry in entry_points(group=PLUGIN_GROUP):
        try:
            entry.load()()
        except Exception as err:  # foreign code: any failure must name the plug-in
            raise ConfigError(f"plug-in {entry.name!r} ({entry.value}) failed to load: {err}") from err
