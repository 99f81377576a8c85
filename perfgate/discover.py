"""Finds ops: the bundled workloads, those of installed packages, and those in folders a user names.

* bundled: the wheel's ``perfgate/bundled/workloads``, or the checkout's ``workloads``; imported under the one synthetic
  package name :data:`BUNDLED`, so that site-packages gains no module called ``workloads``;
* entry points of group ``perfgate.workloads``: each names a module that holds :class:`~perfgate.registry.Op` objects;
* ``--workloads PATH``: a folder with ``<family>/ops.py`` files, or one Python file.

Importing an ``ops.py`` must import neither torch nor triton.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from perfgate.errors import UsageError
from perfgate.registry import Op, Registry

BUNDLED = "perfgate_workloads"
_PACKAGE = Path(__file__).resolve().parent


def bundled_folder(name: str) -> Path:
    """The folder ``workloads`` or ``thresholds``: inside the wheel, or beside the package in a checkout."""
    inside = _PACKAGE / "bundled" / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def load(paths: Sequence[str] = ()) -> Registry:
    """Every op that can be found; ``paths`` are the user's own folders or files.

    Raises :class:`UsageError` for a path that does not exist, a file that can't be imported, an op declared twice, or an op
    that lacks a part; all problems are named together.
    """
    found: dict[str, Op] = {}
    problems: list[str] = []
    for module in _modules(paths):
        for op in _ops_of(module):
            known = found.get(op.name)
            if known is not None and known is not op:
                problems.append(f"{op.name} is declared in {known.source} and in {op.source}")
            problems.extend(f"{op.name} ({op.source}): {problem}" for problem in op.problems())
            found[op.name] = op
    if problems:
        raise UsageError("; ".join(problems), "see CONTRIBUTING.md, 'A new op', or `perfgate new-op family/name`")
    return Registry(list(found.values()))


def module(name: str) -> ModuleType:
    """A module of the bundled workloads by its dotted name below them: ``module("moe.kernels")``."""
    _import_tree(BUNDLED, bundled_folder("workloads"))
    return importlib.import_module(f"{BUNDLED}.{name}")


def _modules(paths: Sequence[str]) -> Iterable[ModuleType]:
    yield from _import_tree(BUNDLED, bundled_folder("workloads"))
    for entry in entry_points(group="perfgate.workloads"):
        yield _guarded(entry.value, entry.load)
    for text in paths:
        path = Path(text).expanduser().resolve()
        if not path.exists():
            raise UsageError(f"no workloads at {text}", "give a folder with <family>/ops.py files, or one Python file")
        name = f"perfgate_user_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
        if path.is_dir():
            yield from _import_tree(name, path)
        else:
            yield _guarded(text, lambda name=name, path=path: _import_file(name, path))


def _import_tree(package: str, folder: Path) -> list[ModuleType]:
    """Imports every ``ops.py`` below ``folder`` as ``package.<family>.ops``."""
    if package not in sys.modules:
        root = ModuleType(package)
        root.__path__ = [str(folder)]
        spec = importlib.util.spec_from_loader(package, loader=None, is_package=True)
        assert spec is not None  # noqa: S101 - a spec without a loader is always made
        spec.submodule_search_locations = [str(folder)]
        root.__spec__ = spec
        sys.modules[package] = root
    files = sorted(folder.glob("**/ops.py"))
    if not files:
        raise UsageError(f"no ops.py below {folder}", "each family is a folder with an ops.py that declares Op objects")
    modules = []
    for file in files:
        dotted = ".".join((package, *file.relative_to(folder).with_suffix("").parts))
        modules.append(_guarded(str(file), lambda dotted=dotted: importlib.import_module(dotted)))
    return modules


def _import_file(name: str, path: Path) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name} is not a Python file")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def _guarded(what: str, action: object) -> ModuleType:
    try:
        loaded: ModuleType = action()  # type: ignore[operator]
    except UsageError as error:
        raise UsageError(f"{what}: {error.text}", error.mend) from error
    except (Exception, SystemExit) as error:  # a file that exits must not end the run with its own code
        raise UsageError(
            f"{what} can't be imported: {type(error).__name__}: {error}", "mend the file, then run again"
        ) from error
    return loaded


def _ops_of(module: ModuleType) -> list[Op]:
    ops = [value for value in vars(module).values() if isinstance(value, Op)]
    for op in ops:
        if not op.source:
            op.source = readable(Path(module.__file__ or ""))
    return ops


def readable(path: Path) -> str:
    """``path`` below the checkout, the wheel or the current folder; its bare name elsewhere: no path of this machine."""
    for root in (_PACKAGE / "bundled", _PACKAGE.parent, Path.cwd()):
        if path.is_relative_to(root):
            return str(path.relative_to(root))
    return path.name
