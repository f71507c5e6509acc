"""The size table: Python files over 400 lines and functions over 60 lines fail.

Prints the largest of both. Run it from the repository's root.
"""

import ast
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

FILE_LINES = 400
FUNCTION_LINES = 60
SHOWN = 8


class Size(NamedTuple):
    lines: int
    where: str


def python_files() -> list[Path]:
    """Every Python file under version control."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "*.py"], check=True, capture_output=True, text=True
    )
    return [path for name in listed.stdout.split("\0") if name and (path := Path(name)).exists()]


def functions_of(path: Path, tree: ast.Module) -> list[Size]:
    """Length of each function, its decorators left out, its docstring counted."""
    return [
        Size(
            (node.end_lineno or node.lineno) - node.lineno + 1, f"{path}:{node.lineno} {node.name}"
        )
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def show(title: str, sizes: list[Size], most: int) -> int:
    """Print the largest; return how many are too large."""
    sizes.sort(reverse=True)
    too_large = [size for size in sizes if size.lines > most]
    middle = sizes[len(sizes) // 2].lines
    print(f"{title}: {len(sizes)}, median {middle} lines, at most {most} allowed")
    for size in sizes[: max(SHOWN, len(too_large))]:
        print(f"  {size.lines:4}  {size.where}{'   TOO LARGE' if size.lines > most else ''}")
    return len(too_large)


def main() -> int:
    files: list[Size] = []
    functions: list[Size] = []
    for path in python_files():
        text = path.read_text(encoding="utf-8")
        files.append(Size(len(text.splitlines()), str(path)))
        functions += functions_of(path, ast.parse(text, str(path)))
    too_large = show("files", files, FILE_LINES) + show("functions", functions, FUNCTION_LINES)
    print(f"{sum(size.lines for size in files):,} lines of Python in all")
    return 1 if too_large else 0


if __name__ == "__main__":
    sys.exit(main())
