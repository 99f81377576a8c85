"""What is stored or published holds no environment, no path, no host name: shown with planted tokens."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pandas as pd
import pytest

from perfgate import traces
from perfgate.errors import PerfgateError, UnusableError, UsageError
from perfgate.traces.slim import slim
from tests.unit.traces.exports import DATA, THREAD, Export
from tests.unit.traces.test_nsys_sqlite import USELESS, plain

TOKEN = "hf_PLANTEDsecretTOKEN0123456789"  # noqa: S105  (planted)


def planted(path):
    """An export with a token wherever a real one has been seen to carry it."""
    export = Export().range("r", 0, 100).work(10, (50, 60)).range("mark", 5, None, eventType=34)
    export.add("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE:0", value=f"HF_TOKEN={TOKEN}")
    export.add("META_DATA_CAPTURE", name="PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE", value="Node")
    export.add("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="3.20.2")
    export.add("META_DATA_EXPORT", name="EXPORT_FILE", value=f"/home/{TOKEN}/x.nsys-rep")
    export.add("DIAGNOSTIC_EVENT", timestamp=1, severity=2, text=f"Process was launched, see /home/{TOKEN}/stderr.log")
    export.string(f"/usr/lib/{TOKEN}/libunused.so")
    export.write(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for table in ("TARGET_INFO_SYSTEM_ENV", "PROCESSES", "TARGET_INFO_NIC_INFO", "ProcessStreams"):
            database.execute(f"CREATE TABLE {table} (name TEXT, value TEXT)")
            database.execute(f"INSERT INTO {table} VALUES ('SystemEnvironment', ?)", (f"PASSWORD={TOKEN}",))
        database.execute("ALTER TABLE NVTX_EVENTS ADD COLUMN jsonText TEXT")
        database.execute("UPDATE NVTX_EVENTS SET jsonText = ?", (TOKEN,))
    return path


def test_no_planted_token_survives(tmp_path):
    source = planted(tmp_path / "t.sqlite")
    assert TOKEN.encode() in source.read_bytes()
    slim(source, tmp_path / "slim.sqlite")

    assert TOKEN.encode() not in (tmp_path / "slim.sqlite").read_bytes()
    assert [] == [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_the_reader_lets_no_planted_token_out(tmp_path):
    trace = traces.read(planted(tmp_path / "t.sqlite"))

    assert TOKEN not in repr(trace)
    assert all(TOKEN not in frame.to_csv() for frame in (trace.ops, trace.launches, trace.ranges))


@pytest.mark.parametrize("path", sorted(DATA.glob("*.sqlite")), ids=lambda path: path.stem)
def test_a_slim_trace_reads_like_the_whole(tmp_path, path):
    if path.stem in USELESS:
        with pytest.raises(UnusableError):
            slim(path, tmp_path / "slim.sqlite")
        assert list(tmp_path.iterdir()) == []
        return
    slim(path, tmp_path / "slim.sqlite")
    whole, small = traces.read(path), traces.read(tmp_path / "slim.sqlite")

    for name in ("ops", "launches", "ranges"):
        pd.testing.assert_frame_equal(plain(getattr(whole, name)), plain(getattr(small, name)))
    about = ("tool_version", "schema_version", "has_gpu", "graph_mode", "diagnostics", "notes")
    assert [getattr(whole, name) for name in about] == [getattr(small, name) for name in about]


def test_slim_again_changes_nothing(tmp_path):
    slim(DATA / "own-h200-2025.3.1-startend.sqlite", tmp_path / "one.sqlite")
    slim(tmp_path / "one.sqlite", tmp_path / "two.sqlite")

    assert (tmp_path / "one.sqlite").read_bytes()[100:] == (tmp_path / "two.sqlite").read_bytes()[100:]


def test_odd_column_types_are_no_way_in(tmp_path):
    path = tmp_path / "t.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        odd = '"INTEGER); DROP TABLE x; --"'
        database.execute(
            f"CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, globalTid {odd}, text TEXT)"
        )
        database.execute("INSERT INTO NVTX_EVENTS VALUES (1, 2, 59, ?, 'r')", (THREAD,))
    slim(path, tmp_path / "slim.sqlite")

    assert ["r"] == list(traces.read(tmp_path / "slim.sqlite").ranges["name"])


def test_what_cannot_be_written(tmp_path):
    with pytest.raises(UsageError, match="can't be written"):
        slim(DATA / "own-h200-2025.3.1-kill.sqlite", tmp_path / "no" / "such" / "folder.sqlite")


def test_a_failed_copy_leaves_the_old_file(tmp_path):
    (tmp_path / "slim.sqlite").write_bytes(b"old")
    (tmp_path / "bad.sqlite").write_bytes(b"SQLite format 3\x00" + bytes(999))
    with pytest.raises(PerfgateError):
        slim(tmp_path / "bad.sqlite", tmp_path / "slim.sqlite")

    assert (tmp_path / "slim.sqlite").read_bytes() == b"old"
