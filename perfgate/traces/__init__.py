"""From a file to columns: one reader per format, chosen by the file's content."""

from __future__ import annotations

from pathlib import Path

from perfgate.errors import UsageError
from perfgate.traces.schema import Trace

SQLITE_MAGIC = b"SQLite format 3\x00"


def read(path: Path, *, geometry: bool = True) -> Trace:
    """The trace in ``path``: an nsys SQLite export, or torch.profiler's Chrome JSON (plain or gzip).

    Without ``geometry`` the launch sizes of kernels may be left unread, which is faster.

    Raises ``UsageError`` if the file is missing, unreadable or of no known format, ``UnusableError`` if it holds nothing.
    """
    head = _head(path)
    if head.startswith(SQLITE_MAGIC):
        from perfgate.traces import nsys_sqlite

        return nsys_sqlite.read(path, geometry=geometry)
    if head.startswith(b"\x1f\x8b") or head.lstrip()[:1] in (b"{", b"["):
        from perfgate.traces import kineto

        return kineto.read(path)
    raise UsageError(
        f"{path} is not a trace: {_looks_like(head)}", "give an nsys .sqlite, an .nsys-rep or torch.profiler's JSON"
    )


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(512)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}", "check the path and its permissions") from None


def _looks_like(head: bytes) -> str:
    if not head:
        return "it is empty"
    if head.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer; `git lfs pull` fetches the file itself"
    return "its content is neither SQLite nor JSON"
