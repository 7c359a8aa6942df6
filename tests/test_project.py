"""Hygiene of the tree: what a reader may rely on in every file."""

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_LINES = 500
LONGER_FOR_A_REASON: set[str] = set()
"""Files that hold one idea and need more lines for it; name the idea beside the path."""


def tracked(*patterns: str) -> list[str]:
    """Files of the repository, or of the unpacked source archive where there is none."""
    listed = subprocess.run(
        ["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    found = listed or [str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.rglob(pattern)]
    return sorted(name for name in found if (ROOT / name).is_file())


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


SOURCES = [name for name in tracked("*.py", "*.pyi", "*.h", "*.cpp") if not name.startswith("tests/")]
TEXTS = [
    *SOURCES,
    *tracked("tests/*.py"),
    *tracked("*.md", "*.toml", "*.txt", "Makefile", "scripts/*", ".ci/*", "*.yaml", "*.yml", "*.sh"),
]


def test_every_module_says_what_it_is_for() -> None:
    assert [name for name in SOURCES if not says_what_it_is_for(name)] == []


def says_what_it_is_for(name: str) -> bool:
    """By its docstring or first comment; a .cpp may leave that to the header of the same name."""
    if name.endswith((".py", ".pyi")):
        return not read(name).strip() or ast.get_docstring(ast.parse(read(name))) is not None
    return read(name).startswith("//") or (name.endswith(".cpp") and (ROOT / name).with_suffix(".h").exists())


def test_no_file_outgrows_a_single_idea() -> None:
    long = {name for name in SOURCES if len(read(name).splitlines()) > MAX_LINES}
    assert long <= LONGER_FOR_A_REASON


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?<![\w.])/(root|work|home/\w+)/",  # a path of somebody's machine
        r"\b(TODO|FIXME|XXX)\b",
        r"\bNotImplementedError\b",
        r"pytest\.(skip|mark\.skip|mark\.xfail|importorskip)",
        r"pragma: no cover",
    ],
)
def test_nothing_unfinished_or_local_is_left(pattern: str) -> None:
    here = Path(__file__).relative_to(ROOT).as_posix()
    found = [
        f"{name}:{number}: {line.strip()}"
        for name in TEXTS
        if name != here
        for number, line in enumerate(read(name).splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert not found, "\n".join(found)


def test_package_inits_stay_empty_so_that_importing_one_module_is_cheap() -> None:
    for name in tracked("octavo/*__init__.py"):
        if name != "octavo/__init__.py":
            body = ast.parse(read(name)).body
            assert all(isinstance(node, ast.Expr) for node in body), name


def test_licence_is_there_and_declared() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    assert project["license"] == "Apache-2.0" and project["license-files"] == ["LICENSE"]
    assert "Apache License" in read("LICENSE")


def test_hard_dependencies_stay_few() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    assert len(project["dependencies"]) <= 20
    assert {"ray", "cuda", "bench", "dev"} <= set(project["optional-dependencies"])


def test_commands_that_people_and_ci_run_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    assert {"serve", "test"} <= targets
    for script in ("scripts/lint", "scripts/check", "scripts/test", "scripts/test-full", ".ci/run"):
        assert (ROOT / script).stat().st_mode & 0o100, f"{script} is not executable"
        assert "set -euo pipefail" in read(script)
