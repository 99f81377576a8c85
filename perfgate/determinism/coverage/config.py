"""``[tool.perfgate.coverage]``, read from the repository's pyproject.toml and checked strictly."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfgate.determinism.coverage.patterns import DEFAULTS, KINDS, Patterns
from perfgate.errors import UsageError

EXAMPLE = """[tool.perfgate.coverage]
roots = ["src"]                      # where to look; default: the repository's packages
kernel_directories = ["src/kernels"] # every file in them counts but prose
registry = "kernels.toml"            # or "ops": the Op declarations in `workloads`"""


@dataclass(frozen=True)
class CoverageConfig:
    """Where to look, for what, and where kernels are registered. Paths are POSIX, relative to ``root``."""

    root: Path
    roots: tuple[str, ...]
    kernel_directories: tuple[str, ...]
    exclude: tuple[str, ...]  # fnmatch patterns on paths
    registry: str  # "ops", or a TOML file
    workloads: tuple[str, ...]  # folders or files with Op declarations, for registry = "ops"
    patterns: Patterns


def find_root(start: Path) -> Path:
    """The nearest folder at or above ``start`` whose pyproject.toml has the table."""
    for folder in (start, *start.parents):
        if "coverage" in _tool_table(folder / "pyproject.toml"):
            return folder
    raise UsageError(f"no [tool.perfgate.coverage] in a pyproject.toml at or above {start.name}/", f"add one:\n{EXAMPLE}")


def read_config(root: Path) -> CoverageConfig:
    """The configuration in ``root``/pyproject.toml. Raises :class:`UsageError` for every wrong key, all named together."""
    table = _tool_table(root / "pyproject.toml").get("coverage")
    if not isinstance(table, dict):
        raise UsageError("no [tool.perfgate.coverage] in pyproject.toml", f"add one:\n{EXAMPLE}")
    values = {key.replace("-", "_"): value for key, value in table.items()}
    problems = [f"unknown key {key!r}" for key in values if key not in _LISTS and key not in ("registry", "patterns")]
    problems += [f"{key} is not a list of strings" for key in _LISTS if not _strings(values.get(key, []))]
    registry = values.get("registry")
    if not isinstance(registry, str) or not registry:
        problems.append('registry is missing: name a TOML file, or "ops"')
    if problems:
        raise UsageError("[tool.perfgate.coverage]: " + "; ".join(problems), f"for example:\n{EXAMPLE}")
    paths = {key: tuple(_plain(path) for path in values.get(key, ())) for key in _LISTS}
    config = CoverageConfig(
        root,
        paths["roots"] or default_roots(root),
        paths["kernel_directories"],
        paths["exclude"],
        str(registry),
        paths["workloads"],
        _patterns(values.get("patterns", {})),
    )
    missing = [path for path in (*config.roots, *config.kernel_directories) if not (root / path).exists()]
    if missing:
        raise UsageError(f"[tool.perfgate.coverage] names what is not there: {', '.join(missing)}", "mend the paths")
    return config


def default_roots(root: Path) -> tuple[str, ...]:
    """The repository's packages: folders with an ``__init__.py`` at its top or below ``src``, and setup.py."""
    places = [root, root / "src"]
    packages = [folder for place in places if place.is_dir() for folder in sorted(place.iterdir()) if _is_package(folder)]
    found = [folder.relative_to(root).as_posix() for folder in packages]
    found += [name for name in ("setup.py",) if (root / name).is_file()]
    if not found:
        raise UsageError("no package found at the top of the repository or below src/", f"name roots:\n{EXAMPLE}")
    return tuple(found)


_LISTS = ("roots", "kernel_directories", "exclude", "workloads")


def _is_package(folder: Path) -> bool:
    return folder.is_dir() and (folder / "__init__.py").is_file() and folder.name not in ("tests", "test", "docs")


def _tool_table(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("perfgate", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path.name} is no TOML: {error}") from error
    return table if isinstance(table, dict) else {}


def _strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) and item for item in value)


def _plain(path: str) -> str:
    return path.removeprefix("./").rstrip("/") or "."


def _patterns(table: Any) -> Patterns:
    """``{defaults = true, add = {kind = [...]}, remove = [...]}``."""
    table = {"defaults": True, "add": {}, "remove": [], **table} if isinstance(table, dict) else {}
    added, removed, defaults = table.get("add"), table.get("remove"), table.get("defaults")
    well_formed = set(table) == {"defaults", "add", "remove"} and isinstance(defaults, bool) and isinstance(added, dict)
    if not well_formed or not _strings(removed) or not all(_strings(names) for names in added.values()):
        mend = 'patterns = {defaults = true, add = {external-lib = ["mylib.*"]}, remove = [".bincount"]}'
        raise UsageError("[tool.perfgate.coverage] patterns is malformed", mend)
    return Patterns.of(_combined(added or {}, set(removed or ()), bool(defaults)))


def _combined(added: Mapping[str, list[str]], removed: set[str], defaults: bool) -> dict[str, list[str]]:
    known = {pattern for patterns in DEFAULTS.values() for pattern in patterns}
    problems = [f"unknown kind {kind!r}" for kind in added if kind not in KINDS]
    problems += [f"remove names {pattern!r}, which is no default" for pattern in sorted(removed - known)]
    if problems:
        raise UsageError(f"[tool.perfgate.coverage] patterns: {'; '.join(problems)}", f"kinds are {', '.join(KINDS)}")
    base = DEFAULTS if defaults else {}
    kinds = dict.fromkeys((*base, *added))
    return {kind: [p for p in (*base.get(kind, ()), *added.get(kind, ())) if p not in removed] for kind in kinds}
