"""Nsight Systems' SQLite export, of any version since 2021, as a :class:`~perfgate.traces.schema.Trace`.

Tables exist only when they have rows and columns come and go between versions, so everything is looked up first. Nothing of
the environment, of paths or of host names is read.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from perfgate.errors import UnusableError
from perfgate.traces import _coded, schema
from perfgate.traces._pages import MISSING
from perfgate.traces._rows import (
    FURTHEST,
    LONGEST,
    PUSH_POP,
    START_END,
    THREAD_BITS,
    all_plausible,
    only_ranges,
    or_else,
    process_of,
)
from perfgate.traces._sqlite import EXPORT_AGAIN, Database
from perfgate.traces.table import Ints, Mask, Table, Texts, distinct, is_steady, taken

Columns = dict[str, Texts | Ints]

LAUNCHES = "CUPTI_ACTIVITY_KIND_RUNTIME"
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPYS = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSETS = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
NVTX = "NVTX_EVENTS"

GEOMETRY = (
    *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
    *("registersPerThread", "staticSharedMemory", "dynamicSharedMemory"),
)
DOMAIN_CREATE = 75
READ_EVENTS = (*PUSH_POP, *START_END, DOMAIN_CREATE)
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
_STOPPED = "Profiling has stopped"
_PATH = r"(?<![\w<])/[^\s'\",;:]+"
_TELLING = r"CUDA|NVTX|CUPTI|driver|GPU"


def read(path: Path, *, geometry: bool = True, pages: bool = True) -> schema.Trace:
    """The trace in ``path``, an export of ``nsys export --type sqlite``.

    Without ``geometry`` grid, block, registers, shared memory, context and stream are left unread, which is faster.
    ``pages`` False reads everything through SQLite's own library (several times slower; the answer is the same).

    Raises ``UsageError`` if the file can't be read, ``UnusableError`` if it is not an nsys export, or lacks a column without
    which nothing can be attributed, or holds neither ranges nor GPU work.
    """
    with Database(path, pages=pages) as database:
        return _Reader(database, geometry).trace()


class _Reader:
    def __init__(self, database: Database, geometry: bool) -> None:
        self.database = database
        self.geometry = geometry
        self.notes: list[str] = []
        self.strings = self._strings()

    def trace(self) -> schema.Trace:
        database = self.database
        known = {LAUNCHES, KERNELS, MEMCPYS, MEMSETS, GRAPHS, NVTX, "StringIds"}
        if not known & set(database.tables):
            raise UnusableError(f"{database.path} is SQLite, but not an export of Nsight Systems", EXPORT_AGAIN)
        tool_version, schema_version = self._versions()
        launches = self._launches()
        parts = [part for part in (self._kernels(), self._copies(), self._fills(), self._graph_launches()) if part]
        ops = self._frame(_coded.concat(parts) if parts else None, schema.OPS)
        ranges = self._ranges(self._stops())
        processes = {each for table in (launches, ranges, ops) for each in distinct(table.ints("process"))}
        trace = schema.Trace(
            source=str(database.path),
            format="nsys-sqlite",
            tool_version=tool_version,
            schema_version=schema_version,
            ops=ops,
            launches=launches,
            ranges=ranges,
            has_gpu=bool(parts),
            graph_mode=self._graph_mode(ops, launches),
            diagnostics=self._diagnostics(processes),
            notes=tuple(self.notes),
        )
        if not len(ranges) and not len(ops):
            raise UnusableError(f"{database.path} holds neither NVTX ranges nor GPU work", _why_empty(trace.diagnostics))
        return trace

    def _strings(self) -> dict[int, str]:
        if not {"id", "value"} <= self.database.tables.get("StringIds", set()):
            return {}
        rows = self.database.rows("SELECT id, value FROM StringIds WHERE typeof(id) = 'integer' AND value IS NOT NULL")
        return {int(str(key)): value if isinstance(value, str) else str(value) for key, value in rows}

    def _named(self, keys: Ints, fallback: str) -> Texts:
        return _coded.named(keys, lambda key: self.strings.get(key, fallback))

    def _integers(self, table: str, columns: tuple[str, ...]) -> dict[str, Ints]:
        return {name: column.values for name, column in self.database.columns(table, columns).items()}

    def _versions(self) -> tuple[str, str]:
        for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
            if {"name", "value"} <= self.database.tables.get(table, set()):
                rows = self.database.rows(f"SELECT name, value FROM {table} WHERE name LIKE 'EXPORT%VERSION'")  # noqa: S608
                found = {str(name): str(value) for name, value in rows if value is not None}
                return found.get("EXPORT_PRODUCT_VERSION", ""), found.get("EXPORT_SCHEMA_VERSION", "")
        return "", ""

    def _frame(self, columns: Columns | None, wanted: dict[str, str]) -> Table:
        return schema.checked(columns, wanted) if columns else schema.blank(wanted)

    def _graph_mode(self, ops: Table, launches: Table) -> str:
        """How graphs were traced, "" where none was launched or nothing tells."""
        if "GRAPH" in ops.texts("kind").names:
            return "graph"
        if len(ops) and ops.ints("graph_node").max() >= 0:
            return "node"
        launched = any("GraphLaunch" in name for name in launches.texts("name").names)
        if launched and {"name", "value"} <= self.database.tables.get("META_DATA_CAPTURE", set()):
            rows = self.database.rows("SELECT value FROM META_DATA_CAPTURE WHERE name LIKE '%CUDA_GRAPH_TRACE_OPTIONS:MODE'")
            modes = {str(value).lower() for (value,) in rows} & {"graph", "node"}
            return modes.pop() if len(modes) == 1 else ""
        return ""

    def _stops(self) -> Ints:
        """When profiling stopped, as far as the export knows."""
        stops: set[object] = set()
        if "duration" in self.database.tables.get("ANALYSIS_DETAILS", set()):  # older versions know it only from here
            stops |= {when for (when,) in self.database.rows("SELECT duration FROM ANALYSIS_DETAILS")}
        if {"text", "timestamp"} <= self.database.tables.get("DIAGNOSTIC_EVENT", set()):
            rows = self.database.rows("SELECT timestamp, text FROM DIAGNOSTIC_EVENT")
            stops |= {when for when, text in rows if str(text).startswith(_STOPPED)}
        return np.array(sorted(when for when in stops if isinstance(when, int)), dtype=np.int64)

    def _diagnostics(self, processes: set[int]) -> tuple[str, ...]:
        """The profiler's messages of severity warning and above, without those about helpers: processes not in the trace."""
        columns = self.database.tables.get("DIAGNOSTIC_EVENT", set())
        if "text" not in columns:
            return ()
        severity, process = (name if name in columns else "NULL" for name in ("severity", "globalPid"))
        found = []
        for text, weight, owner in self.database.rows(f"SELECT text, {severity}, {process} FROM DIAGNOSTIC_EVENT"):  # noqa: S608
            about_helper = processes and isinstance(owner, int) and owner > 0 and owner & ~THREAD_BITS not in processes
            if (weight is None or (isinstance(weight, int) and weight >= 2)) and not about_helper:
                found.append(blank_paths(str(text).strip()))
        return tuple(dict.fromkeys(found))

    def _launches(self) -> Table:
        if LAUNCHES not in self.database.tables:
            return schema.blank(schema.LAUNCHES)
        self.database.need(LAUNCHES, ("start", "end", "globalTid", "correlationId"))
        found = self._integers(LAUNCHES, ("start", "end", "globalTid", "correlationId", "nameId"))
        found = self._plausible(found, LAUNCHES, ("globalTid",))
        frame: Columns = {
            "name": self._named(found.pop("nameId"), "[API call]"),
            "process": process_of(found["globalTid"]),
            "thread": found["globalTid"],
            "correlation": or_else(found.pop("correlationId"), -1),
            "start": found["start"],
            "end": found["end"],
        }
        return self._frame(frame, schema.LAUNCHES)

    def _kernels(self) -> Columns | None:
        known = [name for name in ("demangledName", "shortName") if name in self.database.tables.get(KERNELS, ())][:1]
        found = self._device_rows(KERNELS, (*known, *(GEOMETRY if self.geometry else ())))
        if found is None:
            return None
        keys = found.pop(known[0]) if known else np.broadcast_to(np.int64(MISSING), len(found["start"]))
        return self._ops("KERNEL", self._named(keys, "[kernel]"), found, **(_geometry(found) if self.geometry else {}))

    def _copies(self) -> Columns | None:
        found = self._device_rows(MEMCPYS, ("copyKind",))
        if found is None:
            return None
        names = _coded.named(
            found["copyKind"], lambda kind: f"[memcpy {_COPY_KINDS[kind]}]" if kind in _COPY_KINDS else "[memcpy]"
        )
        return self._ops("MEMCPY", names, found)

    def _fills(self) -> Columns | None:
        found = self._device_rows(MEMSETS, ())
        if found is None:
            return None
        return self._ops("MEMSET", _coded.constant("[memset]", len(found["start"])), found)

    def _graph_launches(self) -> Columns | None:
        found = self._device_rows(GRAPHS, ("graphId",))
        if found is None:
            return None
        names = _coded.named(found["graphId"], lambda graph: "[graph]" if graph == MISSING else f"[graph {graph}]")
        return self._ops("GRAPH", names, found)

    def _device_rows(self, table: str, extra: tuple[str, ...]) -> dict[str, Ints] | None:
        """The columns that every GPU activity table has, and ``extra``; ``None`` where there is no such table."""
        if table not in self.database.tables:
            return None
        self.database.need(table, ("start", "end", "correlationId"))
        shared = ("start", "end", "deviceId", "correlationId", "globalPid", "graphNodeId")
        found = self._integers(table, (*shared, *(("contextId", "streamId") if self.geometry else ()), *extra))
        if "globalPid" not in self.database.tables[table]:
            found["globalPid"] = np.broadcast_to(np.int64(self._only_process(table)), len(found["start"]))
        return self._plausible(found, table, ("globalPid",))

    def _only_process(self, table: str) -> int:
        """The process of a table that does not say: the only one that launched anything."""
        statement = f"SELECT DISTINCT globalTid FROM {LAUNCHES}"  # noqa: S608
        threads = [row[0] for row in self.database.rows(statement)] if LAUNCHES in self.database.tables else []
        processes = {int(str(thread)) & ~THREAD_BITS for thread in threads if isinstance(thread, int)}
        if len(processes) != 1:
            raise UnusableError(
                f"{self.database.path}: table {table} has no globalPid and {len(processes)} processes launched work",
                EXPORT_AGAIN,
            )
        return processes.pop()

    def _plausible(self, found: dict[str, Ints], table: str, needed: tuple[str, ...]) -> dict[str, Ints]:
        """``found`` without the rows whose times can't be real; they are counted in the notes."""
        start, end = found["start"], found["end"]
        if len(start) and all_plausible(start, end, [found[name] for name in needed]):
            return found
        good = (start + FURTHEST).view(np.uint64) < 2 * FURTHEST  # unsigned: what is below 0 is far above
        good &= (end - start).view(np.uint64) <= LONGEST
        if table not in (LAUNCHES, NVTX):
            good &= (start != 0) | (end != 0)  # CUPTI writes 0, 0 where it could not take the time
        for name in needed:
            good &= found[name] != MISSING
        return self._keep(found, good, table)

    def _keep(self, found: dict[str, Ints], good: Mask, table: str) -> dict[str, Ints]:
        bad = len(good) - int(np.count_nonzero(good))
        if not bad:
            return found
        if bad == len(good):
            raise UnusableError(
                f"{self.database.path}: none of the {bad} rows of {table} has usable times and process", EXPORT_AGAIN
            )
        self.notes.append(f"{bad} of {len(good)} rows of {table} have no usable times or process: left out")
        return {name: taken(values, good) for name, values in found.items()}

    def _ops(self, kind: str, names: Texts, found: dict[str, Ints], **extra: Texts | Ints) -> Columns | None:
        count = len(found["start"])
        if not count:
            return None
        unknown = np.broadcast_to(np.int64(-1), count)

        def column(name: str) -> Ints:
            return or_else(found.pop(name), -1) if name in found else unknown

        frame: Columns = {
            "kind": _coded.constant(kind, count),
            "name": names,
            "device": column("deviceId"),
            "context": column("contextId"),
            "stream": column("streamId"),
            "process": process_of(found.pop("globalPid")),
            "correlation": column("correlationId"),
            "start": found["start"],
            "end": found["end"],
            "grid": _coded.constant("", count),
            "block": _coded.constant("", count),
            "registers": unknown,
            "shared_memory": unknown,
            "graph_node": column("graphNodeId"),
            **extra,
        }
        return frame

    def _ranges(self, stops: Ints) -> Table:
        database = self.database
        if NVTX not in database.tables:
            return schema.blank(schema.RANGES)
        database.need(NVTX, ("start", "end", "eventType", "globalTid"))
        columns = database.columns(
            NVTX, ("start", "end", "eventType", "globalTid", "endGlobalTid", "domainId", "textId"), ("text",)
        )
        texts = columns["text"].texts
        found = {name: column.values for name, column in columns.items()}
        domains = self._domain_names(found, texts)
        found = only_ranges(found)
        if not len(found["start"]):
            return schema.blank(schema.RANGES)
        found["closed"] = np.broadcast_to(True, len(found["end"]))
        if len(stops) or found["end"].min() == MISSING:
            # newer exports close what is still open at exactly the time at which profiling stopped
            found["closed"] = (found["end"] != MISSING) & ~np.isin(found["end"], stops)
            found["end"] = np.where(found["closed"], found["end"], found["start"])
        found = self._plausible(found, NVTX, ("globalTid",))
        process = process_of(found["globalTid"])
        thread, other = found.pop("globalTid"), found.pop("endGlobalTid")
        frame: Columns = {
            "domain": self._domains(process, or_else(found.pop("domainId"), 0), domains),
            "name": self._range_names(found.pop("text"), found.pop("textId"), texts),
            "kind": _coded.named(found.pop("eventType"), lambda kind: "StartEnd" if kind in START_END else "PushPop"),
            "process": process,
            "thread": thread,
            "end_thread": or_else(other, thread),
            "start": found["start"],
            "end": found["end"],
            "closed": found["closed"],
        }
        return self._frame(frame, schema.RANGES)

    def _range_names(self, text: _coded.Codes, text_id: Ints, texts: list[str]) -> Texts:
        """The name is the row's own text, else the registered string."""
        registered = len(texts)
        keys = np.empty(len(text), dtype=np.int64)
        for block in _coded.blocks(len(text)):
            own, ids = text[block], text_id[block]
            keys[block] = np.where(own >= 0, own, np.where(ids == MISSING, -1, registered + ids))

        def name(key: int) -> str:
            return texts[key] if 0 <= key < registered else self.strings.get(key - registered, "[unnamed]")

        return _coded.named(keys, name)

    def _domain_names(self, found: dict[str, Ints], texts: list[str]) -> dict[tuple[int, int], str]:
        """The names that (process, domain id) were created with."""
        names = {}
        kind = found["eventType"]
        if is_steady(kind) and len(kind) and kind[0] != DOMAIN_CREATE:
            return {}
        for row in np.flatnonzero(kind == DOMAIN_CREATE).tolist():
            code = int(found["text"][row])
            name = texts[code] if code >= 0 else self.strings.get(int(found["textId"][row]), "")
            names[int(found["globalTid"][row]) & ~THREAD_BITS, int(found["domainId"][row])] = name
        return names

    def _domains(self, process: Ints, domain: Ints, names: dict[tuple[int, int], str]) -> Texts:
        """The name per (process, domain id); 0 is the default domain, whose name is empty."""
        if (is_steady(domain) and domain[0] == 0) or not domain.any():
            return _coded.constant("", len(domain))
        processes, each_process = _coded.numbered(process)
        numbers, each_number = _coded.numbered(domain)
        pairs, unique = _coded.numbered(processes.astype(np.int64) * len(each_number) + numbers)
        keys = [
            (int(each_process[pair // len(each_number)]), int(each_number[pair % len(each_number)])) for pair in unique.tolist()
        ]
        nameless = [key for key in keys if key[1] and not names.get(key)]
        if nameless:
            self.notes.append(f"the name of {len(nameless)} NVTX domain(s) is not in the capture: shown by number")
        return _coded.coded(pairs, ["" if key[1] == 0 else names.get(key) or f"domain {key[1]}" for key in keys])


def blank_paths(text: str) -> str:
    """``text`` with every absolute path replaced by ``<path>``."""
    return re.sub(_PATH, "<path>", text)


def _geometry(found: dict[str, Ints]) -> Columns:
    fixed, dynamic = found["staticSharedMemory"], found["dynamicSharedMemory"]
    known = (fixed >= 0) & (dynamic >= 0)
    return {
        "grid": _coded.extents(found["gridX"], found["gridY"], found["gridZ"], MISSING),
        "block": _coded.extents(found["blockX"], found["blockY"], found["blockZ"], MISSING),
        "registers": or_else(found["registersPerThread"], -1),
        "shared_memory": np.where(known, fixed + dynamic, -1),
    }


def _why_empty(diagnostics: tuple[str, ...]) -> str:
    telling = [text.splitlines()[0] for text in diagnostics if re.search(_TELLING, text, re.IGNORECASE)]
    if telling:
        return "the profiler said: " + " / ".join(telling[:4])
    return "capture with --trace=cuda,nvtx and open NVTX ranges around the work"
