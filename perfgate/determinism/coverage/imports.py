"""Which files of a repository a Python file imports, directly or through others; read from syntax, nothing is executed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_FILE_NAME = re.compile(r"[\w+-]+(\.[\w+-]+)+")


def reachable(root: Path, start: str) -> tuple[str, ...]:
    """``start`` and every file it reaches by relative imports, imports inside functions included; sorted POSIX paths.

    Relative imports only: they can't leave the package, so a declaration doesn't claim the library that it uses. A file that
    lies beside one of them and whose name is a string in it (a table of tile sizes, CUDA source) counts as reached.
    """
    found: set[Path] = set()
    waiting = [root / start]
    while waiting:
        file = waiting.pop()
        if file in found or not file.is_file():
            continue
        found.add(file)
        waiting.extend(_imported(file))
    return tuple(sorted(file.relative_to(root).as_posix() for file in found if file.is_relative_to(root)))


def _imported(file: Path) -> Iterator[Path]:
    if file.suffix != ".py":
        return
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _FILE_NAME.fullmatch(node.value):
            yield file.with_name(node.value)
        if isinstance(node, ast.ImportFrom) and node.level:
            base = file.parents[node.level - 1]
            module = base.joinpath(*node.module.split(".")) if node.module else base
            yield from _files_of(module)
            for alias in node.names:
                yield from _files_of(module / alias.name)


def _files_of(module: Path) -> Iterator[Path]:
    yield module.with_name(module.name + ".py")
    yield module / "__init__.py"
