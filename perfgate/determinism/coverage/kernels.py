"""The registered kernels: from a TOML file, or from the ops' own declarations."""

from __future__ import annotations

import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfgate.determinism.coverage.config import CoverageConfig
from perfgate.determinism.coverage.imports import reachable
from perfgate.determinism.coverage.patterns import KINDS
from perfgate.errors import UsageError
from perfgate.registry import Op

_KEYS = {"name": str, "sources": list, "tests": list, "kind": str, "notes": str, "exempt_reason": str}


@dataclass(frozen=True)
class Kernel:
    """One registered kernel. Paths are POSIX, relative to the repository's root."""

    name: str
    sources: tuple[str, ...]
    tests: tuple[str, ...]
    kind: str
    notes: str
    exempt_reason: str
    declared: str  # the file that registers it
    line: int = 0


def registered(config: CoverageConfig) -> list[Kernel]:
    """Every registered kernel. Raises :class:`UsageError` for a registry that can't be read or is malformed."""
    return from_ops(config) if config.registry == "ops" else from_toml(config.root, config.registry)


def from_toml(root: Path, path: str) -> list[Kernel]:
    """``version = 1`` and ``[[kernel]]`` tables with name, sources, tests, kind, notes, exempt_reason; no other keys."""
    try:
        text = (root / path).read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"no registry {path}: {error.strerror}", "create it with version = 1 and [[kernel]] tables") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no TOML: {error}") from error
    if content.get("version") != 1 or set(content) - {"version", "kernel"} or not isinstance(content.get("kernel", []), list):
        raise UsageError(f"{path} needs version = 1 and nothing but [[kernel]] tables")
    entries = content.get("kernel", [])
    problems = [problem for number, entry in enumerate(entries, 1) for problem in _problems(entry, number)]
    names = [entry.get("name") for entry in entries if isinstance(entry, dict)]
    problems += [f"{name!r} is registered twice" for name in dict.fromkeys(names) if names.count(name) > 1]
    if problems:
        raise UsageError(f"{path}: " + "; ".join(problems), f"kinds are {', '.join(KINDS)}")
    return [
        Kernel(
            entry["name"],
            tuple(entry["sources"]),
            tuple(entry.get("tests", ())),
            entry["kind"],
            entry.get("notes", ""),
            entry.get("exempt_reason", ""),
            path,
            _line_of(text, entry["name"]),
        )
        for entry in entries
    ]


def _problems(entry: Any, number: int) -> list[str]:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not entry["name"]:
        return [f"kernel {number} has no name"]
    name = entry["name"]
    found = [f"{name}: unknown key {key!r}" for key in entry if key not in _KEYS]
    found += [
        f"{name}: {key} is not a {kind.__name__}"
        for key, kind in _KEYS.items()
        if key in entry and type(entry[key]) is not kind
    ]
    if not found:
        lists = [*entry.get("sources", []), *entry.get("tests", [])]
        found += [
            f"{name}: {path!r} is no path" for path in lists if not isinstance(path, str) or not path or path.startswith("/")
        ]
        found += [f"{name}: no sources"] if not entry.get("sources") else []
        found += [f"{name}: unknown kind {entry.get('kind')!r}"] if entry.get("kind") not in KINDS else []
    return found


def _line_of(text: str, name: str) -> int:
    lines = enumerate(text.splitlines(), 1)
    return next((number for number, line in lines if line.strip().startswith("name") and f'"{name}"' in line), 0)


def from_ops(config: CoverageConfig) -> list[Kernel]:
    """The ops declared in this repository: each with its ``ops.py`` and every file of the repository that it imports.

    Bundled ops and those of installed packages count only where their declaration lies in this repository.
    """
    from perfgate.discover import load

    kernels = []
    for op in load([str(config.root / path) for path in config.workloads]):
        file = _declaration(op)
        if not file.is_relative_to(config.root):
            continue
        if op.kind not in KINDS:
            raise UsageError(f"op {op.name} has unknown kind {op.kind!r}", f"kinds are {', '.join(KINDS)}")
        source = file.relative_to(config.root).as_posix()
        sources = reachable(config.root, source)
        kernels.append(Kernel(op.name, sources, tuple(op.tests), op.kind, op.racy, op.exempt_reason, source))
    if not kernels:
        raise UsageError("no op is declared in this repository", "name the folders with ops.py files: workloads = [...]")
    return kernels


def _declaration(op: Op) -> Path:
    """The file that declares ``op``: of the loaded modules that hold it, the one that its ``source`` names."""
    modules = [module for module in list(sys.modules.values()) if any(value is op for value in vars(module).values())]
    files = [Path(file).resolve() for file in (getattr(module, "__file__", None) for module in modules) if file]
    return next((file for file in files if file.as_posix().endswith(op.source)), Path(op.source).resolve())
