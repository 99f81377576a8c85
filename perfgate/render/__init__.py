"""Views of a result: one file per format, each with ``render(result) -> str``, found by its file's name.

``terminal`` is the one with another signature, because it needs a width. A new format is one new file here.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from perfgate.errors import UsageError
from perfgate.model import GateResult

Renderer = Callable[[GateResult], str]


class _Formats(Mapping[str, Renderer]):
    """Format name to renderer; the renderer's module is imported when it is asked for."""

    def __iter__(self) -> Iterator[str]:
        names = (info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_"))
        return iter(sorted(set(names) - {"terminal"}))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in list(iter(self))

    def __getitem__(self, name: str) -> Renderer:
        if name not in self:
            raise KeyError(name)
        renderer: Renderer = importlib.import_module(f"{__name__}.{name}").render
        return renderer


FORMATS: Mapping[str, Renderer] = _Formats()


@dataclass(frozen=True)
class Export:
    """One ``--export FORMAT=PATH``."""

    format: str
    path: Path


def only(result: GateResult, pattern: str) -> GateResult:
    """The result with only the comparisons whose range or op matches ``pattern`` (``*`` and ``?``); the verdict is kept."""
    from perfgate.budgets import pattern_matches

    return replace(result, comparisons=tuple(c for c in result.comparisons if pattern_matches(pattern, c.range)))


def parse_exports(options: Iterable[str]) -> list[Export]:
    """``FORMAT=PATH`` options, checked before anything is measured.

    Raises :class:`UsageError` for an unknown format, a missing path, or a path whose folder does not exist.
    """
    exports = []
    for option in options:
        name, _, path = option.partition("=")
        if name not in FORMATS:
            raise UsageError(f"--export {option}: unknown format {name!r}", f"formats are {', '.join(FORMATS)}")
        if not path:
            raise UsageError(f"--export {option}: no path", f"write it like --export {name}=report.{name}")
        if Path(path).is_dir() or not Path(path).absolute().parent.is_dir():
            raise UsageError(f"--export {option}: {path} is not a file in an existing folder", "create the folder first")
        exports.append(Export(name, Path(path)))
    return exports


def write_exports(result: GateResult, exports: Iterable[Export]) -> list[Path]:
    """Renders and writes each export; the paths written."""
    return [write(export.path, FORMATS[export.format](result)) for export in exports]


def write(path: Path, text: str) -> Path:
    """Writes ``text`` as UTF-8 in one step: a reader sees the old file or the new one. Raises :class:`UsageError`."""
    try:
        if path.exists() and not path.is_file():  # /dev/stdout, a pipe: nothing to replace
            path.write_text(text, encoding="utf-8")
            return path
        handle, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
                stream.write(text)
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise UsageError(f"{path} could not be written: {error.strerror}", "name a writable path, or free some space") from None
    return path


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
