"""Columns out of a SQLite file that may lack tables, lack columns, be locked, truncated or damaged."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType

import numpy as np

from perfgate.errors import UnusableError, UsageError
from perfgate.traces import _pages
from perfgate.traces._pages import MISSING, Column
from perfgate.traces.table import Ints

EXPORT_AGAIN = "export it again: nsys export --type sqlite --force-overwrite=true REPORT.nsys-rep"
_ROWS_AT_ONCE = 65536
_IDS_AT_ONCE = 500


class Database:
    """A SQLite file opened for reading only; every failure is a :class:`UsageError` that names the file.

    ``tables`` maps each table's name to the set of its columns. One read transaction lasts as long as the database is open.
    With ``pages`` False everything is read through SQLite itself.
    """

    def __init__(self, path: Path, *, pages: bool = True) -> None:
        self.path = path
        self._pages = pages
        try:
            self._connection = sqlite3.connect(_read_only(path), uri=True, timeout=2.0, isolation_level=None)
            self._connection.text_factory = _decode
            self._connection.execute("BEGIN")
            tables = self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            self.tables = {str(name): self._columns_of(str(name)) for (name,) in tables}
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

    def columns(self, table: str, integers: Sequence[str], texts: Sequence[str] = ()) -> dict[str, Column]:
        """Whole columns, of which at least one exists; rows in any one order.

        What is NULL, not an integer, or lacking altogether reads as ``MISSING``, in ``texts`` as code -1.
        """
        present = [name for name in (*integers, *texts) if name in self.tables[table]]
        try:
            found = self._by_pages(table, present, texts)
        except (_pages.Irregular, OSError, IndexError, OverflowError, ValueError):  # a damaged page can point anywhere
            found = self._by_rows(table, present, texts)
        count = len(found[present[0]].values)
        for name in (*integers, *texts):
            if name not in found:
                found[name] = Column(np.broadcast_to(np.int64(-1 if name in texts else MISSING), count))
        return found

    def need(self, table: str, columns: Sequence[str]) -> None:
        """Raises :class:`UnusableError` if ``table`` lacks one of ``columns``."""
        lacking = [name for name in columns if name not in self.tables[table]]
        if lacking:
            raise UnusableError(f"{self.path}: table {table} has no column {', '.join(lacking)}", EXPORT_AGAIN)

    def _by_pages(self, table: str, present: list[str], texts: Sequence[str]) -> dict[str, Column]:
        stored = self.rows(f"PRAGMA table_xinfo({quoted(table)})")
        place = {str(row[1]): number for number, row in enumerate(stored)}
        kinds = {str(row[1]): str(row[2]).upper() for row in stored}
        plain = all(kinds[name] == ("TEXT" if name in texts else "INTEGER") for name in present)
        if not self._pages or not plain or any(row[5] or row[6] for row in stored):
            raise _pages.Irregular("an alias of the row id, a generated or hidden column, or another type")
        roots = {row[0]: row[1] for row in self.rows("SELECT name, rootpage FROM sqlite_master WHERE type = 'table'")}
        wanted = [place[name] for name in present]

        def by_row_id(ids: Ints) -> list[tuple[object, ...]]:
            fetched: list[tuple[object, ...]] = []
            for low in range(0, len(ids), _IDS_AT_ONCE):
                some = ", ".join(map(str, ids[low : low + _IDS_AT_ONCE].tolist()))
                fetched += self.rows(_select(table, present, texts, f"rowid IN ({some})"))
            if len(fetched) != len(ids):
                raise _pages.Irregular("a row id")
            return fetched

        with closing(_pages.PageFile(self.path)) as file:
            found = _pages.read(
                file, int(str(roots[table])), wanted, [place[name] for name in texts if name in place], by_row_id
            )
        return {name: found[place[name]] for name in present}

    def _by_rows(self, table: str, present: list[str], texts: Sequence[str]) -> dict[str, Column]:
        numbers = [name for name in present if name not in texts]
        words = [name for name in present if name in texts]
        blocks = [np.empty((0, len(numbers)), dtype=np.int64)]
        pieces: list[list[object]] = [[] for _ in words]
        try:
            with closing(self._connection.execute(_select(table, numbers + words, texts, "1"))) as cursor:
                while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                    blocks.append(np.array([row[: len(numbers)] for row in rows], dtype=np.int64).reshape(-1, len(numbers)))
                    for place, piece in enumerate(pieces, start=len(numbers)):
                        piece.extend(row[place] for row in rows)
        except (sqlite3.Error, ValueError, OverflowError) as error:
            raise self._unreadable(error) from None
        block = np.concatenate(blocks)
        found = {name: Column(block[:, place]) for place, name in enumerate(numbers)}
        return {**found, **{name: _pages.merge_texts([], [], piece) for name, piece in zip(words, pieces, strict=True)}}

    def _columns_of(self, table: str) -> set[str]:
        return {str(row[1]) for row in self._connection.execute(f"PRAGMA table_info({quoted(table)})")}

    def _unreadable(self, error: Exception) -> UsageError:
        text = str(error)
        if "locked" in text or "busy" in text:
            return UsageError(f"{self.path} is locked by another program ({text})", "wait until the export has finished")
        return UsageError(f"{self.path} can't be read as SQLite ({text}): truncated or damaged", EXPORT_AGAIN)


def quoted(name: str) -> str:
    """An identifier as SQL takes it."""
    return '"' + name.replace('"', '""') + '"'


def _select(table: str, columns: Sequence[str], texts: Sequence[str], where: str) -> str:
    """Integers with ``MISSING`` for all else; texts as they are, numbers and blobs among them as text."""
    chosen = [
        f"CASE typeof({name}) WHEN 'null' THEN NULL ELSE CAST({name} AS TEXT) END"
        if name in map(quoted, texts)
        else f"CASE typeof({name}) WHEN 'integer' THEN {name} ELSE {MISSING} END"
        for name in map(quoted, columns)
    ]
    return f"SELECT {', '.join(chosen)} FROM {quoted(table)} WHERE {where}"  # noqa: S608  (names are the file's own, quoted)


def _read_only(path: Path) -> str:
    return f"{path.absolute().as_uri()}?mode=ro"


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
