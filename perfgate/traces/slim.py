"""A copy of an nsys export that holds what a reader needs and nothing of the machine, the user or the environment.

Only the tables and columns that :mod:`perfgate.traces.nsys_sqlite` reads are copied, only the strings that these rows use, and
absolute paths in diagnostics are blanked. An export embeds the whole environment, tokens included; none of it is read here.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from perfgate.errors import UsageError
from perfgate.traces import nsys_sqlite
from perfgate.traces._sqlite import Database, quoted

_DEVICE = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "graphNodeId")
_SIZES = (
    "registersPerThread",
    "gridX",
    "gridY",
    "gridZ",
    "blockX",
    "blockY",
    "blockZ",
    "staticSharedMemory",
    "dynamicSharedMemory",
)
KEPT: dict[str, tuple[str, ...]] = {
    nsys_sqlite.NVTX: ("start", "end", "eventType", "rangeId", "text", "globalTid", "endGlobalTid", "textId", "domainId"),
    nsys_sqlite.LAUNCHES: ("start", "end", "globalTid", "correlationId", "nameId", "returnValue"),
    nsys_sqlite.KERNELS: (*_DEVICE, *_SIZES, "demangledName", "shortName"),
    nsys_sqlite.MEMCPYS: (*_DEVICE, "bytes", "copyKind"),
    nsys_sqlite.MEMSETS: (*_DEVICE, "bytes", "value"),
    nsys_sqlite.GRAPHS: (*_DEVICE, "graphId", "graphExecId"),
    "DIAGNOSTIC_EVENT": ("timestamp", "severity", "text", "globalPid"),
    "ANALYSIS_DETAILS": ("duration",),
    "META_DATA_CAPTURE": ("name", "value"),
    "META_DATA_EXPORT": ("name", "value"),
    "EXPORT_META_DATA": ("name", "value"),
}
_AFFINITIES = {b"INTEGER": "INTEGER", b"TEXT": "TEXT", b"REAL": "REAL"}
_STRING_IDS = {"textId", "nameId", "demangledName", "shortName"}
_ROWS = {
    nsys_sqlite.NVTX: f"eventType IN ({', '.join(map(str, nsys_sqlite.READ_EVENTS))})",
    "META_DATA_CAPTURE": "name LIKE '%CUDA_GRAPH_TRACE_OPTIONS:MODE'",
    "META_DATA_EXPORT": "name LIKE 'EXPORT%VERSION'",
    "EXPORT_META_DATA": "name LIKE 'EXPORT%VERSION'",
}


def slim(source: Path, target: Path) -> None:
    """Writes the scrubbed copy of ``source`` to ``target``, which appears whole or not at all; an older one is replaced.

    Raises ``UsageError`` if ``source`` can't be read or ``target`` can't be written, ``UnusableError`` if ``source`` holds
    nothing usable.
    """
    nsys_sqlite.read(source)
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    except OSError as error:
        raise UsageError(
            f"{target} can't be written: {error.strerror or error}", "choose a folder that exists and is writable"
        ) from None
    os.close(handle)
    part = Path(name)
    try:
        _copy(source, part)
        part.chmod(0o644)
        part.replace(target)
    except sqlite3.Error as error:
        raise UsageError(
            f"{source} can't be copied to {target}: {error}", "free space on the disk, or choose another folder"
        ) from None
    finally:
        part.unlink(missing_ok=True)


def _copy(source: Path, part: Path) -> None:
    with Database(source) as database:
        found = {
            table: [name for name in KEPT[table] if name in columns]
            for table, columns in database.tables.items()
            if table in KEPT
        }
        present = {table: names for table, names in found.items() if names and ("META" not in table or len(names) == 2)}
    with closing(sqlite3.connect(part.absolute().as_uri(), isolation_level=None, uri=True)) as target:
        target.text_factory = bytes
        target.execute("PRAGMA journal_mode = OFF")
        target.execute("ATTACH DATABASE ? AS source", (f"{source.absolute().as_uri()}?mode=ro",))
        target.create_function("blank_paths", 1, _blank_paths, deterministic=True)
        target.execute("BEGIN")
        target.execute("CREATE TABLE used (id INTEGER PRIMARY KEY)")
        for table, columns in present.items():
            _copy_table(target, table, columns)
        target.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
        if {"id", "value"} <= database.tables.get("StringIds", set()):
            used = "id IN (SELECT id FROM used) AND value IS NOT NULL"
            target.execute(f"INSERT OR IGNORE INTO StringIds SELECT id, value FROM source.StringIds WHERE {used}")  # noqa: S608
        target.execute("DROP TABLE used")
        target.execute("COMMIT")
        target.execute("DETACH DATABASE source")
        target.execute("VACUUM")


def _copy_table(target: sqlite3.Connection, table: str, columns: list[str]) -> None:
    stored = target.execute(f"PRAGMA source.table_info({quoted(table)})")
    types = {row[1].decode("utf-8", "replace"): row[2].upper() for row in stored}
    declared = ", ".join(f"{quoted(name)} {_AFFINITIES.get(types.get(name, b''), '')}" for name in columns)
    chosen = ", ".join(
        "blank_paths(text)" if (table, name) == ("DIAGNOSTIC_EVENT", "text") else quoted(name) for name in columns
    )
    target.execute(f"CREATE TABLE {quoted(table)} ({declared})")
    where = _ROWS.get(table, "1")
    target.execute(f"INSERT INTO {quoted(table)} SELECT {chosen} FROM source.{quoted(table)} WHERE {where}")  # noqa: S608
    for name in map(quoted, sorted(_STRING_IDS & set(columns))):
        ids = f"SELECT DISTINCT {name} FROM {quoted(table)} WHERE typeof({name}) = 'integer'"  # noqa: S608
        target.execute(f"INSERT OR IGNORE INTO used {ids}")


def _blank_paths(text: object) -> str:
    raw = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
    return nsys_sqlite.blank_paths(raw)
