"""Nsight Systems' SQLite export, of any version since 2021, as a :class:`~perfgate.traces.schema.Trace`.

Tables exist only when they have rows and columns come and go between versions, so everything is looked up first. Nothing of
the environment, of paths or of host names is read.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd

from perfgate.errors import UnusableError
from perfgate.traces import schema
from perfgate.traces._sqlite import EXPORT_AGAIN, MISSING, Database, Ints, Objects

LAUNCHES = "CUPTI_ACTIVITY_KIND_RUNTIME"
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPYS = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSETS = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
NVTX = "NVTX_EVENTS"

PUSH_POP = (59, 70)
START_END = (60, 71)
DOMAIN_CREATE = 75
READ_EVENTS = (*PUSH_POP, *START_END, DOMAIN_CREATE)
_THREAD_BITS = 0xFFFFFF
_LONGEST = 1 << 53  # ns, 104 days: anything longer is a damaged row
_FURTHEST = 1 << 61
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
_STOPPED = "Profiling has stopped"
_PATH = re.compile(r"(?<![\w<])/[^\s'\",;:]+")
_TELLING = re.compile(r"CUDA|NVTX|CUPTI|driver|GPU", re.IGNORECASE)


def read(path: Path) -> schema.Trace:
    """The trace in ``path``, an export of ``nsys export --type sqlite``.

    Raises ``UsageError`` if the file can't be read, ``UnusableError`` if it is not an nsys export, or lacks a column without
    which nothing can be attributed, or holds neither ranges nor GPU work.
    """
    with Database(path) as database:
        return _Reader(database).trace()


class _Reader:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.notes: list[str] = []
        self.strings = self._strings()

    def trace(self) -> schema.Trace:
        database = self.database
        known = {LAUNCHES, KERNELS, MEMCPYS, MEMSETS, GRAPHS, NVTX, "StringIds"}
        if not known & set(database.tables):
            raise UnusableError(f"{database.path} is SQLite, but not an export of Nsight Systems", EXPORT_AGAIN)
        tool_version, schema_version = self._versions()
        diagnostics, stops = self._diagnostics()
        launches = self._launches()
        ops = [frame for frame in (self._kernels(), self._copies(), self._fills(), self._graph_launches()) if len(frame)]
        trace = schema.Trace(
            source=str(database.path),
            format="nsys-sqlite",
            tool_version=tool_version,
            schema_version=schema_version,
            ops=pd.concat(ops, ignore_index=True) if ops else schema.empty(schema.OPS),
            launches=launches,
            ranges=self._ranges(stops),
            has_gpu=bool(ops),
            graph_mode=self._graph_mode(ops, launches),
            diagnostics=tuple(diagnostics),
            notes=tuple(self.notes),
        )
        if not len(trace.ranges) and not len(trace.ops):
            raise UnusableError(f"{database.path} holds neither NVTX ranges nor GPU work", _why_empty(diagnostics))
        return trace

    def _strings(self) -> dict[int, str]:
        if not {"id", "value"} <= self.database.tables.get("StringIds", set()):
            return {}
        rows = self.database.rows("SELECT id, value FROM StringIds WHERE typeof(id) = 'integer' AND value IS NOT NULL")
        return {int(str(key)): value if isinstance(value, str) else str(value) for key, value in rows}

    def _named(self, codes: Ints, fallback: str) -> Objects:
        unique, places = np.unique(codes, return_inverse=True)
        names = np.empty(len(unique), dtype=object)
        names[:] = [self.strings.get(int(code), fallback) for code in unique]
        return names[places]

    def _versions(self) -> tuple[str, str]:
        for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
            if {"name", "value"} <= self.database.tables.get(table, set()):
                rows = self.database.rows(f"SELECT name, value FROM {table} WHERE name LIKE 'EXPORT%VERSION'")  # noqa: S608
                found = {str(name): str(value) for name, value in rows if value is not None}
                return found.get("EXPORT_PRODUCT_VERSION", ""), found.get("EXPORT_SCHEMA_VERSION", "")
        return "", ""

    def _graph_mode(self, ops: list[pd.DataFrame], launches: pd.DataFrame) -> str:
        """How graphs were traced, "" where none was launched or nothing tells."""
        if any((frame["kind"] == "GRAPH").any() for frame in ops):
            return "graph"
        if any((frame["graph_node"] >= 0).any() for frame in ops):
            return "node"
        launched = any("GraphLaunch" in name for name in launches["name"].unique())
        if launched and {"name", "value"} <= self.database.tables.get("META_DATA_CAPTURE", set()):
            rows = self.database.rows("SELECT value FROM META_DATA_CAPTURE WHERE name LIKE '%CUDA_GRAPH_TRACE_OPTIONS:MODE'")
            modes = {str(value).lower() for (value,) in rows} & {"graph", "node"}
            return modes.pop() if len(modes) == 1 else ""
        return ""

    def _diagnostics(self) -> tuple[list[str], Ints]:
        """The profiler's messages of severity warning and above, and when profiling stopped."""
        columns = self.database.tables.get("DIAGNOSTIC_EVENT", set())
        if not {"text", "timestamp"} <= columns:
            return [], np.empty(0, dtype=np.int64)
        severity = "severity" if "severity" in columns else "2"
        rows = self.database.rows(f"SELECT text, timestamp, {severity} FROM DIAGNOSTIC_EVENT")  # noqa: S608
        stops = {when for text, when, _ in rows if isinstance(when, int) and str(text).startswith(_STOPPED)}
        serious = [blank_paths(str(text).strip()) for text, _, weight in rows if isinstance(weight, int) and weight >= 2]
        return list(dict.fromkeys(serious)), np.array(sorted(stops), dtype=np.int64)

    def _launches(self) -> pd.DataFrame:
        if LAUNCHES not in self.database.tables:
            return schema.empty(schema.LAUNCHES)
        self.database.need(LAUNCHES, ("start", "end", "globalTid", "correlationId"))
        found = self.database.integers(LAUNCHES, ("start", "end", "globalTid", "correlationId", "nameId"))
        found = self._plausible(found, LAUNCHES, ("globalTid",))
        frame = {
            "name": self._named(found["nameId"], "[API call]"),
            "process": found["globalTid"] & ~_THREAD_BITS,
            "thread": found["globalTid"],
            "correlation": _or(found["correlationId"], -1),
            "start": found["start"],
            "end": found["end"],
        }
        return schema.check(pd.DataFrame(frame), schema.LAUNCHES, LAUNCHES)

    def _kernels(self) -> pd.DataFrame:
        extra = (
            *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "registersPerThread"),
            *("staticSharedMemory", "dynamicSharedMemory", "demangledName", "shortName"),
        )
        found = self._device_rows(KERNELS, extra)
        if found is None:
            return schema.empty(schema.OPS)
        codes = np.where(found["demangledName"] == MISSING, found["shortName"], found["demangledName"])
        fixed, dynamic = found["staticSharedMemory"], found["dynamicSharedMemory"]
        known = (fixed != MISSING) & (dynamic != MISSING)
        return self._ops(
            "KERNEL",
            self._named(codes, "[kernel]"),
            found,
            grid=_extent(found["gridX"], found["gridY"], found["gridZ"]),
            block=_extent(found["blockX"], found["blockY"], found["blockZ"]),
            registers=_or(found["registersPerThread"], -1),
            shared_memory=np.where(known, np.where(known, fixed, 0) + np.where(known, dynamic, 0), -1),
        )

    def _copies(self) -> pd.DataFrame:
        found = self._device_rows(MEMCPYS, ("copyKind",))
        if found is None:
            return schema.empty(schema.OPS)
        unique, places = np.unique(found["copyKind"], return_inverse=True)
        names = np.array(
            [f"[memcpy {_COPY_KINDS[int(kind)]}]" if int(kind) in _COPY_KINDS else "[memcpy]" for kind in unique], dtype=object
        )
        return self._ops("MEMCPY", names[places], found)

    def _fills(self) -> pd.DataFrame:
        found = self._device_rows(MEMSETS, ())
        return schema.empty(schema.OPS) if found is None else self._ops("MEMSET", "[memset]", found)

    def _graph_launches(self) -> pd.DataFrame:
        found = self._device_rows(GRAPHS, ("graphId",))
        if found is None:
            return schema.empty(schema.OPS)
        unique, places = np.unique(_or(found["graphId"], -1), return_inverse=True)
        names = np.array([f"[graph {graph}]" if graph >= 0 else "[graph]" for graph in unique], dtype=object)
        return self._ops("GRAPH", names[places], found)

    def _device_rows(self, table: str, extra: tuple[str, ...]) -> dict[str, Ints] | None:
        """The columns that every GPU activity table has, and ``extra``; ``None`` where there is no such table."""
        if table not in self.database.tables:
            return None
        self.database.need(table, ("start", "end", "correlationId"))
        shared = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "graphNodeId")
        found = self.database.integers(table, (*shared, *extra))
        if "globalPid" not in self.database.tables[table]:
            found["globalPid"] = np.full(len(found["start"]), self._only_process(table))
        return self._plausible(found, table, ("globalPid",))

    def _only_process(self, table: str) -> int:
        """The process of a table that does not say: the only one that launched anything."""
        statement = f"SELECT DISTINCT globalTid FROM {LAUNCHES}"  # noqa: S608
        threads = [row[0] for row in self.database.rows(statement)] if LAUNCHES in self.database.tables else []
        processes = {int(str(thread)) & ~_THREAD_BITS for thread in threads if isinstance(thread, int)}
        if len(processes) != 1:
            raise UnusableError(
                f"{self.database.path}: table {table} has no globalPid and {len(processes)} processes launched work",
                EXPORT_AGAIN,
            )
        return processes.pop()

    def _plausible(self, found: dict[str, Ints], table: str, needed: tuple[str, ...]) -> dict[str, Ints]:
        """``found`` without the rows whose times can't be real; they are counted in the notes."""
        start, end = found["start"], found["end"]
        good = (start > -_FURTHEST) & (start < _FURTHEST) & (end >= start) & (end < _FURTHEST)
        good &= np.where(good, end - np.where(good, start, 0), 0) <= _LONGEST
        if table not in (LAUNCHES, NVTX):
            good &= (start != 0) | (end != 0)  # CUPTI writes 0, 0 where it could not take the time
        for name in needed:
            good &= found[name] != MISSING
        return self._keep(found, good, table)

    def _keep(self, found: dict[str, Ints], good: np.ndarray, table: str) -> dict[str, Ints]:
        bad = len(good) - int(np.count_nonzero(good))
        if not bad:
            return found
        if bad == len(good):
            raise UnusableError(
                f"{self.database.path}: none of the {bad} rows of {table} has usable times and process", EXPORT_AGAIN
            )
        self.notes.append(f"{bad} of {len(good)} rows of {table} have no usable times or process: left out")
        return {name: values[good] for name, values in found.items()}

    def _ops(self, kind: str, names: Objects | str, found: dict[str, Ints], **extra: object) -> pd.DataFrame:
        frame = {
            "kind": kind,
            "name": names,
            "device": _or(found["deviceId"], -1),
            "context": _or(found["contextId"], -1),
            "stream": _or(found["streamId"], -1),
            "process": found["globalPid"] & ~_THREAD_BITS,
            "correlation": _or(found["correlationId"], -1),
            "start": found["start"],
            "end": found["end"],
            "grid": "",
            "block": "",
            "registers": -1,
            "shared_memory": -1,
            "graph_node": _or(found["graphNodeId"], -1),
            **extra,
        }
        return schema.check(pd.DataFrame(frame, index=range(len(found["start"]))), schema.OPS, kind)

    def _ranges(self, stops: Ints) -> pd.DataFrame:
        database = self.database
        if NVTX not in database.tables:
            return schema.empty(schema.RANGES)
        database.need(NVTX, ("start", "end", "eventType", "globalTid"))
        wanted = f"eventType IN ({', '.join(map(str, (*PUSH_POP, *START_END)))})"
        columns = ("start", "end", "eventType", "globalTid", "endGlobalTid", "domainId", "textId")
        found = database.integers(NVTX, columns, wanted)
        texts = database.texts(NVTX, "text", wanted)
        closed = found["end"] != MISSING
        if len(stops):  # newer exports close what is still open at exactly that time
            closed &= ~np.isin(found["end"], stops)
        found["end"] = np.where(closed, found["end"], found["start"])
        found["row"] = np.arange(len(closed))
        if len(closed):
            found = self._plausible(found, NVTX, ("globalTid",))
        rows = found["row"]
        process = found["globalTid"] & ~_THREAD_BITS
        names = texts[rows]
        registered = np.array([name is None for name in names], dtype=bool)
        names[registered] = self._named(found["textId"][registered], "[unnamed]")
        frame = {
            "domain": self._domains(process, _or(found["domainId"], 0)),
            "name": names,
            "kind": np.where(np.isin(found["eventType"], PUSH_POP), "PushPop", "StartEnd"),
            "process": process,
            "thread": found["globalTid"],
            "end_thread": np.where(found["endGlobalTid"] == MISSING, found["globalTid"], found["endGlobalTid"]),
            "start": found["start"],
            "end": found["end"],
            "closed": closed[rows],
        }
        return schema.check(pd.DataFrame(frame), schema.RANGES, NVTX)

    def _domains(self, process: Ints, domain: Ints) -> Objects:
        """The name of each (process, domain id); 0 is the default domain, whose name is empty."""
        where = f"eventType = {DOMAIN_CREATE}"
        made = self.database.integers(NVTX, ("globalTid", "domainId", "textId"), where)
        texts = self.database.texts(NVTX, "text", where)
        named: dict[tuple[int, int], str] = {}
        for thread, number, code, text in zip(made["globalTid"], made["domainId"], made["textId"], texts, strict=True):
            name = text if text is not None else self.strings.get(int(code), "")
            named[int(thread) & ~_THREAD_BITS, int(number)] = name
        keys, places = np.unique(np.stack([process, domain], axis=1), axis=0, return_inverse=True)
        names = np.empty(len(keys), dtype=object)
        nameless = [int(number) for pid, number in keys if number and not named.get((int(pid), int(number)))]
        names[:] = ["" if number == 0 else named.get((int(pid), int(number))) or f"domain {number}" for pid, number in keys]
        if nameless:
            self.notes.append(f"the name of {len(nameless)} NVTX domain(s) is not in the capture: shown by number")
        return names[places.reshape(-1)]


def blank_paths(text: str) -> str:
    """``text`` with every absolute path replaced by ``<path>``."""
    return _PATH.sub("<path>", text)


def _or(values: Ints, fallback: int) -> Ints:
    return np.where(values == MISSING, fallback, values)


def _extent(x: Ints, y: Ints, z: Ints) -> Objects:
    """``132x1x1`` per row, built once per distinct extent."""
    keys, places = np.unique(np.stack([x, y, z], axis=1), axis=0, return_inverse=True)
    names = np.empty(len(keys), dtype=object)
    names[:] = ["" if MISSING in key else "x".join(map(str, key)) for key in keys.tolist()]
    return names[places.reshape(-1)]


def _why_empty(diagnostics: list[str]) -> str:
    telling = [text.splitlines()[0] for text in diagnostics if _TELLING.search(text)]
    if telling:
        return "the profiler said: " + " / ".join(telling[:4])
    return "capture with --trace=cuda,nvtx and open NVTX ranges around the work"
