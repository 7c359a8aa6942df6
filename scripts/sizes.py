"""Print how large the code is: lines per folder, and the files and functions that have outgrown the rest."""

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
SUFFIXES = {".py", ".h", ".cpp"}
LONG_FILE, LONG_FUNCTION = 500, 60


def source_files() -> list[Path]:
    """Our code, tests last."""
    return [
        path
        for top in ("octavo", "csrc", "tests")
        for path in sorted((ROOT / top).rglob("*"))
        if path.suffix in SUFFIXES
    ]


def functions(path: Path) -> list[tuple[int, str]]:
    """(lines, place) of each function of a Python file, its docstring not counted."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[min(1, len(node.body) - 1)] if ast.get_docstring(node) else node
            lines = (node.end_lineno or node.lineno) - first.lineno + 1
            found.append((lines, f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"))
    return found


def main() -> None:
    """Print the three tables."""
    lines = {path: len(path.read_text().splitlines()) for path in source_files()}
    folders: Counter[str] = Counter()
    for path, count in lines.items():
        folders["/".join(path.relative_to(ROOT).parts[:-1][:2])] += count
    print("lines per folder")
    for folder, count in sorted(folders.items()):
        print(f"  {count:6d}  {folder}")
    for top in ("octavo", "csrc", "tests"):
        print(f"  {sum(count for path, count in lines.items() if path.is_relative_to(ROOT / top)):6d}  all of {top}")
    print(f"longest files (aim: under {LONG_FILE})")
    for path in sorted(lines, key=lines.__getitem__, reverse=True)[:8]:
        print(f"  {lines[path]:6d}  {path.relative_to(ROOT)}")
    print(f"longest functions without their docstring (aim: a screen, {LONG_FUNCTION})")
    code = [path for path in lines if path.suffix == ".py" and not path.is_relative_to(ROOT / "tests")]
    for count, place in sorted((entry for path in code for entry in functions(path)), reverse=True)[:8]:
        print(f"  {count:6d}  {place}")


if __name__ == "__main__":
    main()
