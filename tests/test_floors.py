"""Imports run downward: a file uses lower floors and, on its own floor, packages further right. Read from the source,
so that an import nobody runs counts too.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1] / "octavo"

FLOORS = (
    ("octavo", "cli", "bench", "server", "llm"),
    ("engine",),
    ("executor",),
    ("worker",),
    ("models", "loader", "lora", "multimodal"),
    ("layers", "attention", "quantization"),
    ("kernels", "ops"),
    ("distributed", "platforms"),
    ("core", "tokenizer", "parsers", "grammar"),
    (
        "messages",
        "outputs",
        "sampling_params",
        "config",
        "files",
        "registry",
        "logging",
        "limits",
        "envs",
        "version",
        "errors",
    ),
)
"""From what people touch (F9) to the foundation (F0); "octavo" is the package's own __init__."""

RANK = {package: (-floor, place) for floor, packages in enumerate(FLOORS) for place, package in enumerate(packages)}
WITHOUT_TORCH = FLOORS[-2] + FLOORS[-1]
STRANGERS = {("worker", "core"), ("executor", "models"), ("executor", "core")}
"""Pairs that would run downward and still must not meet but through messages."""


class Import(NamedTuple):
    """One imported module, and whether the import stands inside a function."""

    module: str
    line: int
    in_function: bool


def imports(source: str) -> Iterator[Import]:
    """Every import of a file; `from octavo import envs` is an import of octavo.envs."""
    tree = ast.parse(source)
    nested = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "octavo.relative" if node.level else str(node.module)
            modules = [f"octavo.{name.name}" for name in node.names] if base == "octavo" else [base]
        else:
            continue
        yield from (Import(module, node.lineno, node in nested) for module in modules)


def violations(source: str, package: str) -> list[str]:
    """What is wrong with the imports of a file of `package`."""
    found = []
    for module, line, in_function in imports(source):
        top, _, rest = module.partition(".")
        target = rest.partition(".")[0]
        if top == "torch" and package in WITHOUT_TORCH:
            found.append(f"line {line}: {package} works without torch")
        if top != "octavo":
            continue
        if in_function:
            found.append(f"line {line}: our own {module} is imported inside a function")
        if target == package:
            continue
        if target not in RANK:
            found.append(f"line {line}: {module} has no floor; give its package one in FLOORS")
        elif RANK[target][0] > RANK[package][0]:
            found.append(f"line {line}: {package} imports {target}, a higher floor")
        elif RANK[target][0] == RANK[package][0] and RANK[target][1] < RANK[package][1]:
            found.append(f"line {line}: {package} imports {target}, to its left on the same floor")
        elif (package, target) in STRANGERS:
            found.append(f"line {line}: {package} and {target} meet only through messages")
    return found


def package_of(path: Path) -> str:
    """octavo/core/x.py and octavo/llm.py are core and llm; octavo/__init__.py is octavo."""
    first = path.relative_to(ROOT).parts[0].removesuffix(".py")
    return "octavo" if first == "__init__" else first


def test_every_import_runs_downward() -> None:
    wrong = [
        f"{path.relative_to(ROOT.parent)} {problem}"
        for path in sorted(ROOT.rglob("*.py"))
        for problem in violations(path.read_text(), package_of(path))
    ]
    assert not wrong, "\n".join(wrong)


def test_every_package_has_a_floor() -> None:
    assert {package_of(path) for path in ROOT.rglob("*.py")} <= set(RANK)


@pytest.mark.parametrize(
    ("package", "source", "complaint"),
    [
        ("core", "from octavo.engine.core import EngineCore", "higher floor"),
        ("envs", "import octavo.logging", "to its left"),
        ("logging", "from octavo import llm", "higher floor"),
        ("worker", "from octavo.core.scheduler import Scheduler", "only through messages"),
        ("core", "def f():\n    import torch", "without torch"),
        ("engine", "def f():\n    from octavo.core import scheduler", "inside a function"),
        (
            "engine",
            "class A:\n    def f(self):\n        return lambda: __import__('x')\n    import octavo.cli",
            "higher",
        ),
        ("engine", "from . import core", "no floor"),
        ("engine", "from octavo.newcomer import x", "no floor"),
    ],
)
def test_an_import_that_runs_upward_is_noticed(package: str, source: str, complaint: str) -> None:
    assert any(complaint in problem for problem in violations(source, package))


def test_an_import_that_runs_downward_is_fine() -> None:
    source = (
        "import torch\nfrom octavo import envs\nfrom octavo.core.scheduler import Scheduler\nimport octavo.engine.core"
    )
    assert violations(source, "engine") == []
