"""Mutated traces: a right answer or a clear error, never a traceback, never a silent 0.

The default run tries a share of the mutations; all 10,000 (and more, with another seed):

    PERFGATE_FUZZ=10000 PERFGATE_FUZZ_SEED=1 python -m pytest tests/functional/test_fuzz_traces.py
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
from contextlib import closing, suppress
from functools import cache

from perfgate import traces
from perfgate.errors import PerfgateError
from perfgate.measure import measure
from perfgate.measure.summary import summarize
from perfgate.traces import nsys_csv, schema
from perfgate.traces.slim import slim
from tests.unit.traces.exports import DATA, THREAD, Export

MUTATIONS = int(os.environ.get("PERFGATE_FUZZ", "1500"))
SEED = int(os.environ.get("PERFGATE_FUZZ_SEED", "0"))
KINDS = ("flip", "flip", "flip", "flip", "cut", "splice", "drop", "retype", "null", "value", "rename", "kineto", "csv")
ODD = [None, -1, 0, 1, 2**63 - 1, -(2**63), 2**62, 1.5, "text", b"\x00\xff", "NaN", float("inf")]


@cache
def base(page_size):
    """A small export with everything in it, and its answer."""
    export = Export().domain("perfgate", 1).domain("perfgate.aux", 2)
    for turn in range(6):
        at = 1000 * turn
        export.range("own", at, at + 300, domainId=1).range("flush", at + 310, at + 330, domainId=2)
        export.range(None, at + 20, at + 200, textId=export.string("registered"))
        export.range("other thread", at + 400, at + 500, thread=THREAD + 1, eventType=60, endGlobalTid=THREAD + 2)
        export.work(at + 30, (at + 100, at + 180), name="a<b>").work(at + 40, (at + 150, at + 220), streamId=9)
        export.work(at + 320, (at + 330, at + 390)).work(at + 410, (at + 420, at + 480), thread=THREAD + 2)
        export.launch(at + 50, at + 60, 900 + turn, name="cudaMemcpyAsync")
        place = {"start": at + 230, "end": at + 240, "deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": 900 + turn}
        export.add("CUPTI_ACTIVITY_KIND_MEMCPY", copyKind=1, globalPid=THREAD & ~0xFFFFFF, **place)
    export.add("DIAGNOSTIC_EVENT", timestamp=9000, severity=1, text="Profiling has stopped.")
    export.add("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="3.20.2")
    return export


def mutated(raw, kind, chance, path):
    """Writes the mutated file to ``path``."""
    if kind in ("flip", "cut", "splice"):
        path.write_bytes(mangled(raw, kind, chance))
        return
    path.write_bytes(raw)
    with closing(sqlite3.connect(path, isolation_level=None)) as database, suppress(sqlite3.Error):  # SQLite refuses some
        database.execute("PRAGMA synchronous = OFF")
        database.execute("PRAGMA journal_mode = OFF")
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        table = chance.choice(tables)
        columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        column = chance.choice(columns)
        if kind == "drop":
            for name in chance.sample(tables, chance.randint(1, 3)):
                database.execute(f"DROP TABLE {name}")
        elif kind == "retype":
            wanted = chance.choice(["TEXT", "REAL", "BLOB", "INTEGER PRIMARY KEY", "INTEGER NOT NULL"])
            declared = ", ".join(f'"{name}" {wanted if name == column else "INTEGER"}' for name in columns)
            database.execute(f"ALTER TABLE {table} RENAME TO old")
            database.execute(f"CREATE TABLE {table} ({declared})")
            database.execute(f"INSERT OR IGNORE INTO {table} SELECT * FROM old")
            database.execute("DROP TABLE old")
        elif kind == "rename":
            database.execute(f'ALTER TABLE {table} RENAME COLUMN "{column}" TO "{chance.choice(["gone", "Start2", "end "])}"')
        elif kind == "null":
            database.execute(f'UPDATE {table} SET "{column}" = NULL WHERE rowid % ? = 0', (chance.randint(1, 3),))
        else:
            database.execute(
                f'UPDATE {table} SET "{column}" = ? WHERE rowid % ? = 0', (chance.choice(ODD), chance.randint(1, 5))
            )


def mangled(raw, kind, chance):
    if kind == "cut":
        return raw[: chance.randrange(len(raw))]
    raw = bytearray(raw)
    if kind == "splice":
        begin, source, length = chance.randrange(len(raw)), chance.randrange(len(raw)), chance.randint(1, 600)
        raw[begin : begin + length] = raw[source : source + length]
        return bytes(raw)
    for _ in range(chance.choice([1, 1, 2, 5, 20])):
        raw[chance.randrange(len(raw))] = chance.randrange(256)
    return bytes(raw)


def mutated_json(chance, path):
    events = [{"ph": "X", "cat": "user_annotation", "name": "perfgate::r", "pid": 1, "tid": 1, "ts": 0.0, "dur": 90.0}]
    events.append(
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "pid": 1,
            "tid": 1,
            "ts": 5,
            "dur": 1,
            "args": {"correlation": 1},
        }
    )
    arguments = {"device": 0, "context": 1, "stream": 7, "correlation": 1, "grid": [1, 1, 1]}
    events.append({"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 20, "dur": 9.5, "args": arguments})
    if chance.random() < 0.5:
        event = chance.choice(events)
        event[chance.choice(list(event))] = chance.choice([None, "x", -1, 1e308, [], {}, True, 2**70])
    text = json.dumps({"traceEvents": events}).encode()
    path.write_bytes(text if chance.random() < 0.5 else mangled(text, chance.choice(["flip", "cut", "splice"]), chance))


def explained(trace, measurement):
    """Whether something says that figures may be missing."""
    whole = not trace.notes and not measurement.unattributed and not measurement.excluded
    return not whole or measurement.missing.any() or not trace.has_gpu


def check(path):
    """Reads and measures; what comes out must be right, or said."""
    try:
        trace = traces.read(path)
        measurement = measure(trace)
        rows = summarize(measurement)
    except PerfgateError as error:
        return refused(error)
    for frame, columns in ((trace.ops, schema.OPS), (trace.launches, schema.LAUNCHES), (trace.ranges, schema.RANGES)):
        assert list(columns) == list(frame.columns)
    instances = measurement.instances
    assert (instances["busy_ns"] <= instances[["sum_ns", "span_ns"]].min(axis=1)).all()
    assert (instances["host_ns"] >= 0).all()
    attributed = int(instances["ops"].clip(lower=0).sum())
    lost = sum(left.ops for left in measurement.unattributed)
    assert attributed or lost or not len(trace.ops) or measurement.excluded
    for row in rows:
        if row.ops is not None and row.ops.total == 0 and row.name in ("perfgate:own", "registered", "other thread"):
            assert explained(trace, measurement), f"{row.name} has silently lost its GPU work"
    return "answered"


def refused(error):
    assert error.exit_code in (2, 5)
    assert error.text
    assert error.mend
    return "refused"


def check_table(path):
    try:
        rows = nsys_csv.read([path]).ranges
    except PerfgateError as error:
        return refused(error)
    assert all(row.instances >= 0 and row.busy_ns is None for row in rows)
    return "answered"


def scrubbed(path):
    """A slim copy is refused, or reads as the whole file does."""
    slim_path = path.with_name("slim")
    try:
        slim(path, slim_path)
    except PerfgateError as error:
        refused(error)
        return
    whole, small = traces.read(path), traces.read(slim_path)
    assert [len(whole.ops), len(whole.launches), len(whole.ranges)] == [len(small.ops), len(small.launches), len(small.ranges)]


def test_mutated_exports(tmp_path):
    seen = {}
    raws = [base(size).write(tmp_path / f"{size}.sqlite", page_size=size).read_bytes() for size in (512, 1024)]
    assert all(check(tmp_path / f"{size}.sqlite") == "answered" for size in (512, 1024))
    tables = [table.read_bytes()[:4000] for table in sorted(DATA.glob("gold-own-h200-2025.3.1-streams.*"))]
    path = tmp_path / "mutated"
    for number in range(MUTATIONS):
        chance = random.Random(SEED * 10_000_019 + number)
        kind = chance.choice(KINDS)
        if kind == "kineto":
            mutated_json(chance, path)
        elif kind == "csv":
            path.write_bytes(mangled(chance.choice(tables), chance.choice(["flip", "cut", "splice"]), chance))
        else:
            mutated(chance.choice(raws), kind, chance, path)
        try:
            outcome = check_table(path) if kind == "csv" else check(path)
        except Exception as error:
            raise AssertionError(f"mutation {number} ({kind}) of seed {SEED}: {type(error).__name__}: {error}") from error
        seen[kind, outcome] = seen.get((kind, outcome), 0) + 1
        if number % 10 == 0:
            scrubbed(path)

    assert {outcome for _, outcome in seen} == {"refused", "answered"}
