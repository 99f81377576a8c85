"""The kernel files of a repository: listed, filtered by bytes, then judged."""

from __future__ import annotations

import ast
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from perfgate.determinism.coverage.changes import tracked_and_new
from perfgate.determinism.coverage.config import CoverageConfig
from perfgate.determinism.coverage.cuda_text import SUFFIXES, kernel_sites
from perfgate.determinism.coverage.syntax import Site, Unparsable, call_sites

CODE = SUFFIXES | {".py", ".c", ".pyx", ".ptx", ".mlir"}
# what may lie in a kernel directory without being part of a kernel; a table of tile sizes is one: it changes time and bits
PROSE = {".md", ".rst", ".txt", ".png", ".svg", ".jpg", ".gif", ".pdf"}
_NOT_OURS = {"__pycache__", "node_modules", "build", "dist"}


@dataclass(frozen=True)
class Scan:
    """``kernels`` maps a kernel file to the site that makes it one (line 0: it lies in a kernel directory)."""

    files: int
    kernels: dict[str, Site]
    unreadable: dict[str, str]  # files that may be kernel files and can't be judged, with the reason


def scan(config: CoverageConfig) -> Scan:
    """Looks at every code file below the roots, and at every file in the kernel directories that is not prose."""
    with _uncollected():
        return _scan(config)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without cyclic garbage collection, which otherwise walks every syntax tree again and takes most of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _scan(config: CoverageConfig) -> Scan:
    kernels: dict[str, Site] = {}
    unreadable: dict[str, str] = {}
    count = 0
    for path in _files(config):
        count += 1
        try:
            content = (config.root / path).read_bytes()
            sites = _sites(path, content, config)
        except (OSError, Unparsable) as error:
            unreadable[path] = str(error)
            continue
        if sites:
            kernels[path] = sites[0]
        elif _below(path, config.kernel_directories) and not _empty(path, content):
            kernels[path] = Site(0, "", "it lies in a kernel directory")
    return Scan(count, kernels, unreadable)


def _sites(path: str, content: bytes, config: CoverageConfig) -> list[Site]:
    if path.endswith(".py"):
        return call_sites(content, config.patterns) if config.patterns.may_match(content) else []
    return kernel_sites(content) if PurePosixPath(path).suffix in SUFFIXES else []


def _files(config: CoverageConfig) -> Iterator[str]:
    listed = tracked_and_new(config.root)
    for path in sorted(set(_walked(config.root) if listed is None else listed)):
        suffix, name = PurePosixPath(path).suffix, PurePosixPath(path).name
        code = suffix in CODE and _below(path, config.roots)
        kernel = _below(path, config.kernel_directories) and suffix not in PROSE and not name.startswith((".", "LICENSE"))
        wanted = (code or kernel) and not any(fnmatchcase(path, glob) for glob in config.exclude)
        if wanted and (config.root / path).is_file():  # git lists a deleted file until the deletion is staged
            yield path


def _walked(root: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and name not in _NOT_OURS and not (Path(folder) / name / "pyvenv.cfg").exists()
        ]
        for name in names:
            yield (Path(folder) / name).relative_to(root).as_posix()


def _below(path: str, folders: tuple[str, ...]) -> bool:
    return any(folder in (".", path) or path.startswith(f"{folder}/") for folder in folders)


def _empty(path: str, content: bytes) -> bool:
    """Whether the file holds nothing, or is an ``__init__.py`` that holds nothing but a docstring and comments."""
    if not content.strip():
        return True
    if not path.endswith("__init__.py"):
        return False
    try:
        body = ast.parse(content).body
    except (SyntaxError, ValueError):
        return False
    return all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in body)
