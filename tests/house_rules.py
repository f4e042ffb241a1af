"""Check the rules of CONTRIBUTING.md that a script can check: print each violation and exit with 1 if there is any."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PRODUCT = ("proto", "server", "pilot", "agents", "client")
MAX_MODULE_LINES = 800
MAX_FUNCTION_LINES = 60
MAX_MODULES_IN_FOLDER = 17


def main(root: Path) -> int:
    """Check the product below `root`."""
    modules = {
        path.relative_to(root): path.read_text()
        for package in PRODUCT
        for path in sorted((root / package).rglob("*.py"))
        if "_pb2" not in path.name and "migrations" not in path.parts
    }
    trees = {path: ast.parse(text) for path, text in modules.items()}
    violations = [
        *(
            f"{path}: {length} lines"
            for path, text in modules.items()
            if (length := text.count("\n")) > MAX_MODULE_LINES
        ),
        *long_functions(trees),
        *full_folders(list(modules)),
        *repeated_classes(trees),
        *(f"{path}: no docstring" for path, tree in trees.items() if ast.get_docstring(tree) is None),
    ]
    print(*violations, sep="\n", end="\n" if violations else "")
    return 1 if violations else 0


def long_functions(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Yield functions over the limit; decorators and docstring count."""
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                length = node.end_lineno - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    yield f"{path}:{node.lineno}: {node.name} has {length} lines"


def full_folders(modules: list[Path]) -> Iterator[str]:
    """Yield folders with too many modules; `__init__` is not counted."""
    folders = defaultdict[Path, int](int)
    for path in modules:
        folders[path.parent] += path.name != "__init__.py"
    yield from (f"{folder}: {count} modules" for folder, count in folders.items() if count > MAX_MODULES_IN_FOLDER)


def repeated_classes(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Yield public class names that several modules define."""
    places = defaultdict[str, list[Path]](list)
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path)
    yield from (f"{name}: defined in {', '.join(map(str, at))}" for name, at in places.items() if len(at) > 1)


if __name__ == "__main__":
    sys.exit(main(Path(__file__).parents[1]))
