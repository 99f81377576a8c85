"""Writes nsys-like SQLite exports of any size: as many ranges and launches as kernels, on several threads.

    python tests/benchmarks/generate_trace.py TARGET.sqlite --kernels 1000000

Half of the range names are registered strings, half plain text; every tenth kernel runs on a side stream and overlaps its
predecessor; per 100 launches of a thread one "step" range encloses their 99 "op" ranges, so ranges nest.
"""

from __future__ import annotations

import argparse
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

PROCESS = 281490495635456
THREADS = 4
NAMES = 50
STEP = 100
GAP = 4000  # ns between two launches of one thread
BASE = 1_000_000_000

TABLES = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,"
    " contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,"
    " globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER,"
    " launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL,"
    " gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL,"
    " blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL,"
    " localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL,"
    " sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,"
    " globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER",
    "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER,"
    " color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER,"
    " uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER, int32Value INTEGER,"
    " floatValue REAL, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT",
}


def write(target: Path, kernels: int) -> None:
    """An export with ``kernels`` kernels, launches and ranges."""
    target.unlink(missing_ok=True)
    with closing(sqlite3.connect(target, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = OFF")
        database.execute("PRAGMA synchronous = OFF")
        database.execute("BEGIN")
        for table, columns in TABLES.items():
            database.execute(f"CREATE TABLE {table} ({columns})")
        strings = [(1, "cudaLaunchKernel_v7000")]
        strings += [(100 + name, f"void kernel_{name}<float, (int)4>(float *, int)") for name in range(NAMES)]
        strings += [(200 + name, f"registered/op_{name}") for name in range(NAMES)]
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", strings)
        versions = [("EXPORT_PRODUCT_VERSION", "2025.3.1.0"), ("EXPORT_SCHEMA_VERSION", "3.20.2")]
        database.executemany("INSERT INTO META_DATA_EXPORT VALUES (?, ?)", versions)
        for table, rows in (
            ("CUPTI_ACTIVITY_KIND_KERNEL", _kernels(kernels)),
            ("CUPTI_ACTIVITY_KIND_RUNTIME", _launches(kernels)),
            ("NVTX_EVENTS", _ranges(kernels)),
        ):
            marks = ", ".join("?" * len(TABLES[table].split(",")))
            database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        database.execute("COMMIT")


def _launch_begin(number: int) -> int:
    return BASE + (number // THREADS) * GAP + (number % THREADS) * 900


def _kernels(count: int) -> Iterator[tuple[object, ...]]:
    for number in range(count):
        begin = BASE + number * (GAP // THREADS) + 20_000
        aside = number % 10 == 9
        name = 100 + number % NAMES
        times = (begin - 600, begin + 300) if aside else (begin, begin + 800)
        sizes = (132, 1, 1, 128, 1, 1, 0, 1024)
        ids = (0, 1, None, 13 if aside else 7, number + 1, PROCESS)
        yield (*times, *ids, name, name, None, 0, 0, 32, *sizes, 0, 0, number, None, None, 0)


def _launches(count: int) -> Iterator[tuple[object, ...]]:
    for number in range(count):
        begin = _launch_begin(number)
        yield (begin, begin + 700, 0, PROCESS + 1 + number % THREADS, number + 1, 1, 0, None)


def _ranges(count: int) -> Iterator[tuple[object, ...]]:
    nothing = (None,) * 9
    for number in range(count):
        turn, thread = number // THREADS, PROCESS + 1 + number % THREADS
        begin = _launch_begin(number)
        if turn % STEP == 0:
            yield (begin - 100, begin + GAP * STEP - 200, 59, None, None, None, "step", thread, None, None, 0, *nothing)
        elif turn % 2:
            yield (begin - 50, begin + 750, 59, None, None, None, f"plain/op_{turn % NAMES}", thread, None, None, 0, *nothing)
        else:
            yield (begin - 50, begin + 750, 59, None, None, None, None, thread, None, 200 + turn % NAMES, 0, *nothing)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("--kernels", type=int, default=1_000_000)
    given = parser.parse_args()
    write(given.target, given.kernels)
