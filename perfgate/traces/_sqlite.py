"""Columns out of a SQLite file that may lack tables, lack columns, be locked, truncated or damaged."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from perfgate.errors import UnusableError, UsageError

MISSING: int = int(np.iinfo(np.int64).min)  # stands for NULL and for anything that is not an integer
EXPORT_AGAIN = "export it again: nsys export --type sqlite --force-overwrite=true REPORT.nsys-rep"
_CHUNK = 65536

Ints = NDArray[np.int64]
Objects = NDArray[np.object_]


class Database:
    """A SQLite file opened for reading only; every failure is a :class:`UsageError` that names the file.

    ``tables`` maps each table's name to the set of its columns.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=2.0)
            self._connection.text_factory = _decode
            names = [name for (name,) in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            self.tables = {name: self._columns_of(name) for name in names}
        except (sqlite3.Error, ValueError) as error:
            raise self._unreadable(error) from None

    def __enter__(self) -> Database:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._connection.close()

    def rows(self, statement: str) -> list[tuple[object, ...]]:
        """All rows of a small query."""
        try:
            with closing(self._connection.execute(statement)) as cursor:
                return cursor.fetchall()
        except (sqlite3.Error, ValueError, OverflowError) as error:
            raise self._unreadable(error) from None

    def integers(self, table: str, columns: Sequence[str], where: str = "1") -> dict[str, Ints]:
        """The integer ``columns`` of a table; a column the table lacks, a NULL or a non-integer reads as ``MISSING``."""
        present = [name for name in columns if name in self.tables[table]]
        chosen = ", ".join(
            f"CASE typeof({quoted(name)}) WHEN 'integer' THEN {quoted(name)} ELSE {MISSING} END" for name in present
        )
        statement = f"SELECT {chosen or '1'} FROM {quoted(table)} WHERE {where}"  # noqa: S608  (names come from the file's own schema)
        parts = [np.empty((0, max(1, len(present))), dtype=np.int64)]
        try:
            with closing(self._connection.execute(statement)) as cursor:
                while rows := cursor.fetchmany(_CHUNK):
                    parts.append(np.array(rows, dtype=np.int64))
        except (sqlite3.Error, ValueError, OverflowError) as error:
            raise self._unreadable(error) from None
        block = np.concatenate(parts)
        found = {name: block[:, place] for place, name in enumerate(present)}
        return {name: found.get(name, np.full(len(block), MISSING)) for name in columns}

    def texts(self, table: str, column: str, where: str = "1") -> Objects:
        """One text column; NULL, and a column the table lacks, read as ``None``. Rows come in the order of :meth:`integers`."""
        chosen = quoted(column) if column in self.tables[table] else "NULL"
        rows = self.rows(f"SELECT {chosen} FROM {quoted(table)} WHERE {where}")  # noqa: S608
        found = np.empty(len(rows), dtype=object)
        found[:] = [value if value is None or isinstance(value, str) else _as_text(value) for (value,) in rows]
        return found

    def need(self, table: str, columns: Sequence[str]) -> None:
        """Raises :class:`UnusableError` if ``table`` lacks one of ``columns``."""
        lacking = [name for name in columns if name not in self.tables[table]]
        if lacking:
            raise UnusableError(f"{self.path}: table {table} has no column {', '.join(lacking)}", EXPORT_AGAIN)

    def _columns_of(self, table: str) -> set[str]:
        return {str(row[1]) for row in self._connection.execute(f"PRAGMA table_info({quoted(table)})")}

    def _unreadable(self, error: Exception) -> UsageError:
        text = str(error)
        if "locked" in text or "busy" in text:
            return UsageError(f"{self.path} is locked by another program ({text})", "wait until the export has finished")
        return UsageError(f"{self.path} can't be read as SQLite ({text}): truncated or damaged", EXPORT_AGAIN)


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _as_text(value: object) -> str:
    return _decode(value) if isinstance(value, bytes) else str(value)


def quoted(name: str) -> str:
    """An identifier as SQL takes it."""
    return '"' + name.replace('"', '""') + '"'
