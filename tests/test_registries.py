"""Every string of every registry names something that can be imported."""

import pkgutil
from importlib import import_module

import pytest

import octavo
from octavo.registry import Registry


def registries() -> dict[str, Registry[object]]:
    """All registries of the package, by where they are; found by importing everything."""
    found: dict[int, tuple[str, Registry[object]]] = {}
    for info in pkgutil.walk_packages(octavo.__path__, "octavo."):
        if info.name.endswith("_runner"):  # scripts for other engines' interpreters
            continue
        for name, value in vars(import_module(info.name)).items():
            if isinstance(value, Registry):
                found.setdefault(id(value), (f"{info.name}.{name}", value))
    return dict(found.values())


REGISTRIES = registries()


def test_the_registries_that_people_extend_are_found() -> None:
    names = {place.rpartition(".")[2] for place in REGISTRIES}
    assert {"MODELS", "PLATFORMS", "IMPLS", "EXECUTORS"} <= names


@pytest.mark.parametrize(("place", "name"), [(place, name) for place, found in REGISTRIES.items() for name in found])
def test_registered_name_can_be_imported(place: str, name: str) -> None:
    assert REGISTRIES[place].load(name) is not None


def test_a_string_that_names_nothing_is_noticed() -> None:
    registry: Registry[object] = Registry("thing", {"a": "octavo.errors:Nothing", "b": "octavo.nowhere:x"})
    with pytest.raises(AttributeError):
        registry.load("a")
    with pytest.raises(ModuleNotFoundError):
        registry.load("b")
