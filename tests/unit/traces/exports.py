"""Builds small nsys exports of any shape: only the tables that have rows, only the columns a test wants."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

PROCESS = 0x0001_0000_3900_0000
THREAD = PROCESS | 0x39
DATA = Path(__file__).parents[2] / "data" / "nsys"

COLUMNS = {
    "StringIds": ("id", "value"),
    "META_DATA_EXPORT": ("name", "value"),
    "META_DATA_CAPTURE": ("name", "value"),
    "DIAGNOSTIC_EVENT": ("timestamp", "timestampType", "source", "severity", "text", "globalPid"),
    "ANALYSIS_DETAILS": ("globalVid", "duration", "startTime", "stopTime"),
    "NVTX_EVENTS": ("start", "end", "eventType", "rangeId", "text", "globalTid", "endGlobalTid", "textId", "domainId"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue"),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        *("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "demangledName", "shortName"),
        *("registersPerThread", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
        *("staticSharedMemory", "dynamicSharedMemory", "graphNodeId"),
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        *(
            "start",
            "end",
            "deviceId",
            "contextId",
            "streamId",
            "correlationId",
            "globalPid",
            "bytes",
            "copyKind",
            "graphNodeId",
        ),
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": (
        *("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "bytes", "graphNodeId"),
    ),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (
        *("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "graphId"),
    ),
}
TEXT = {"value", "name", "text"}


class Export:
    """Rows by table. Every method returns the export, so that a test reads like the timeline it describes."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.strings: dict[str, int] = {}
        self.correlation = 0

    def add(self, table: str, **row: Any) -> Export:
        self.rows.setdefault(table, []).append(row)
        return self

    def string(self, text: str) -> int:
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 1
            self.add("StringIds", id=self.strings[text], value=text)
        return self.strings[text]

    def range(self, name: str | None, start: int, end: int | None, *, thread: int = THREAD, **more: Any) -> Export:
        row = {"eventType": 59, "domainId": 0, "globalTid": thread, "text": name, "start": start, "end": end}
        return self.add("NVTX_EVENTS", **{**row, **more})

    def domain(self, name: str, number: int, *, thread: int = THREAD) -> Export:
        return self.range(name, 0, None, thread=thread, eventType=75, domainId=number)

    def launch(self, start: int, end: int, correlation: int, *, thread: int = THREAD, name: str = "cudaLaunchKernel") -> Export:
        row = {"start": start, "end": end, "globalTid": thread, "correlationId": correlation, "eventClass": 0}
        return self.add("CUPTI_ACTIVITY_KIND_RUNTIME", nameId=self.string(name), returnValue=0, **row)

    def kernel(self, start: int, end: int, correlation: int, *, name: str = "k", process: int = PROCESS, **more: Any) -> Export:
        sizes = {"gridX": 1, "gridY": 1, "gridZ": 1, "blockX": 32, "blockY": 1, "blockZ": 1, "registersPerThread": 16}
        row = {"start": start, "end": end, "correlationId": correlation, "globalPid": process, "deviceId": 0}
        place = {"contextId": 1, "streamId": 7, "staticSharedMemory": 0, "dynamicSharedMemory": 0}
        names = {"demangledName": self.string(name), "shortName": self.string(name)}
        return self.add("CUPTI_ACTIVITY_KIND_KERNEL", **{**row, **place, **sizes, **names, **more})

    def work(self, at: int, gpu: tuple[int, int], *, thread: int = THREAD, name: str = "k", **more: Any) -> Export:
        """A launch of 1 ns at ``at`` and its kernel."""
        self.correlation += 1
        self.launch(at, at + 1, self.correlation, thread=thread)
        return self.kernel(*gpu, self.correlation, name=name, process=thread & ~0xFFFFFF, **more)

    def write(self, path: Path, *, without: tuple[str, ...] = (), page_size: int = 4096) -> Path:
        """The file; columns named in ``without`` don't exist, tables without rows neither."""
        path.unlink(missing_ok=True)
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute(f"PRAGMA page_size = {page_size}")
            database.execute("PRAGMA synchronous = OFF")
            for table, rows in self.rows.items():
                extra = [name for row in rows for name in row if name not in COLUMNS[table]]
                columns = [name for name in dict.fromkeys((*COLUMNS[table], *extra)) if name not in without]
                declared = ", ".join(f'"{name}" {"TEXT" if name in TEXT else "INTEGER"}' for name in columns)
                database.execute(f'CREATE TABLE "{table}" ({declared})')
                marks = ", ".join("?" * len(columns))
                database.execute("BEGIN")
                database.executemany(
                    f'INSERT INTO "{table}" VALUES ({marks})', [[row.get(name) for name in columns] for row in rows]
                )
                database.execute("COMMIT")
        return path
