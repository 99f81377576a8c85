"""Every shape of export that MEASURING.md names, as the smallest file that has it."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pandas as pd
import pytest

from perfgate import traces
from perfgate.errors import PerfgateError, UnusableError, UsageError
from perfgate.traces import nsys_sqlite, schema
from tests.unit.traces.exports import DATA, PROCESS, THREAD, Export

EXPORTS = sorted(DATA.glob("*.sqlite"))
USELESS = {"pub-2023.4.4-no-cuda-tables", "pub-2025.1.3-driver-too-new", "pub-2025.6.1-no-cuda"}
# file: operations, launches, ranges, GPU data, graph mode
EXPECTED = {
    "own-h200-2024.2.3-graph-autograd": (340, 1877, 35, True, "graph"),
    "own-h200-2025.3.1-aa-default": (748, 5770, 181, True, ""),
    "own-h200-2025.3.1-graph-autograd": (345, 1889, 38, True, "graph"),
    "own-h200-2025.3.1-graph-graph": (46, 1302, 5, True, "graph"),
    "own-h200-2025.3.1-graph-node": (58, 1302, 5, True, "node"),
    "own-h200-2025.3.1-kill": (0, 3, 2, False, ""),
    "own-h200-2025.3.1-procapi-stop": (4, 13, 4, True, ""),
    "own-h200-2025.3.1-raise": (29, 1082, 1, True, ""),
    "own-h200-2025.3.1-startend": (89, 1194, 10, True, ""),
    "own-h200-2025.3.1-streams": (89, 1362, 16, True, ""),
    "own-h200-2025.3.1-twoproc": (110, 3288, 8, True, ""),
    "pub-2022.1.3-kernels-no-nvtx": (2421, 2448, 0, True, ""),
    "pub-2022.1.3-torch-nested": (62, 279, 82, True, ""),
    "pub-2022.2.1-kernels-no-nvtx": (4609, 7, 0, True, ""),
    "pub-2022.4.2-kernels-no-nvtx": (8, 24, 0, True, ""),
    "pub-2022.4.2-startend-domains-no-cuda": (0, 0, 1824, False, ""),
    "pub-2023.3.3-kernels-no-nvtx": (3, 13, 0, True, ""),
    "pub-2024.4.1-kernels-no-nvtx": (73, 6, 0, True, ""),
    "pub-2025.1.3-wsl-no-device-activity": (0, 12, 6, False, ""),
    "pub-2025.3.1-kernels-no-nvtx": (278, 382, 0, True, ""),
    "pub-2026.1.1-no-nvtx": (3, 9, 0, True, ""),
    "pub-2026.2.1-two-process-sliced": (1116, 1371, 3901, True, ""),
}


def plain(frame):
    return frame.astype({name: object for name in frame if isinstance(frame[name].dtype, pd.CategoricalDtype)})


def test_no_file_is_forgotten():
    names = {path.stem for path in EXPORTS}

    assert names == set(EXPECTED) | USELESS


@pytest.mark.parametrize("name", EXPECTED)
def test_real_exports(name):
    trace = traces.read(DATA / f"{name}.sqlite")

    found = (len(trace.ops), len(trace.launches), len(trace.ranges), trace.has_gpu, trace.graph_mode)
    assert EXPECTED[name] == found
    assert trace.tool_version.startswith(name.split("-")[2 if name.startswith("own") else 1].rsplit(".", 1)[0])
    assert trace.schema_version[0] in "23"
    assert trace.notes == ()


@pytest.mark.parametrize("name", sorted(USELESS))
def test_real_exports_without_anything_usable(name):
    with pytest.raises(UnusableError, match="neither NVTX ranges nor GPU work") as caught:
        traces.read(DATA / f"{name}.sqlite")

    assert caught.value.exit_code == 5
    assert name == "pub-2023.4.4-no-cuda-tables" or "the profiler said" in caught.value.mend


@pytest.mark.parametrize("path", [path for path in EXPORTS if path.stem not in USELESS], ids=lambda path: path.stem)
def test_pages_and_sqlite_itself_agree(path, monkeypatch):
    slow = nsys_sqlite.read(path, pages=False)
    monkeypatch.setattr("perfgate.traces._sqlite.Database._by_rows", None)  # the fast way must do without

    fast = nsys_sqlite.read(path)
    for columns in ("ops", "launches", "ranges"):
        pd.testing.assert_frame_equal(plain(getattr(slow, columns)), plain(getattr(fast, columns)))


def test_without_geometry_only_launch_sizes_are_missing():
    path = DATA / "own-h200-2025.3.1-streams.sqlite"
    whole, lean = nsys_sqlite.read(path), nsys_sqlite.read(path, geometry=False)

    unread = ["context", "stream", "grid", "block", "registers", "shared_memory"]
    pd.testing.assert_frame_equal(plain(whole.ops.drop(columns=unread)), plain(lean.ops.drop(columns=unread)))
    assert set(lean.ops["grid"]) == {""}
    assert set(lean.ops["registers"]) == {-1}


def test_geometry(tmp_path):
    export = Export().kernel(10, 20, 1, gridX=132, gridY=4, blockX=256, dynamicSharedMemory=1024, staticSharedMemory=16)

    op = traces.read(export.write(tmp_path / "t.sqlite")).ops.iloc[0]
    assert ("132x4x1", "256x1x1", 16, 1040) == (op["grid"], op["block"], op["registers"], op["shared_memory"])


def test_registered_and_plain_names_in_one_capture(tmp_path):
    export = Export().range("plain", 1, 2)
    export.range(None, 3, 4, textId=export.string("registered")).range(None, 5, 6, textId=999).range("", 7, 8)

    assert ["plain", "registered", "[unnamed]", ""] == list(traces.read(export.write(tmp_path / "t.sqlite")).ranges["name"])


def test_domains_belong_to_their_process(tmp_path):
    other = THREAD + (1 << 24)
    export = Export().domain("one", 1).domain("two", 1, thread=other).range("a", 1, 2, domainId=1)
    export.range("b", 1, 2, domainId=1, thread=other).range("c", 3, 4).range("d", 3, 4, domainId=5)
    trace = traces.read(export.write(tmp_path / "t.sqlite"))

    assert ["one", "two", "", "domain 5"] == list(trace.ranges["domain"])
    assert any("NVTX domain" in note for note in trace.notes)


def test_a_domain_with_a_registered_name(tmp_path):
    export = Export()
    export.range(None, 0, None, eventType=75, domainId=2, textId=export.string("mine")).range("a", 1, 2, domainId=2)

    assert ["mine"] == list(traces.read(export.write(tmp_path / "t.sqlite")).ranges["domain"])


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("DIAGNOSTIC_EVENT", {"timestamp": 90, "severity": 1, "text": "Profiling has stopped."}),
        ("ANALYSIS_DETAILS", {"duration": 90, "startTime": 5, "stopTime": 95}),
    ],
)
def test_ranges_without_an_end_are_open(tmp_path, table, row):
    export = Export().range("null", 1, None).range("at the stop", 2, 90).range("closed", 3, 89).add(table, **row)
    ranges = traces.read(export.write(tmp_path / "t.sqlite")).ranges

    assert [False, False, True] == list(ranges["closed"])
    assert [1, 2, 89] == list(ranges["end"])


def test_negative_starts(tmp_path):
    ranges = traces.read(Export().range("early", -500, 10).write(tmp_path / "t.sqlite")).ranges

    assert [(-500, 10)] == list(zip(ranges["start"], ranges["end"], strict=True))


def test_nvtxt_events_marks_and_categories(tmp_path):
    export = Export().range("push", 1, 2, eventType=70).range("start", 1, 2, eventType=71)
    export.range("mark", 1, None, eventType=34).range("category", 1, None, eventType=33)
    ranges = traces.read(export.write(tmp_path / "t.sqlite")).ranges

    assert [("push", "PushPop"), ("start", "StartEnd")] == list(zip(ranges["name"], ranges["kind"], strict=True))


def test_a_range_ended_on_another_thread(tmp_path):
    ranges = traces.read(Export().range("r", 1, 9, eventType=60, endGlobalTid=THREAD + 1).write(tmp_path / "t.sqlite")).ranges

    assert [(THREAD, THREAD + 1)] == list(zip(ranges["thread"], ranges["end_thread"], strict=True))


def test_old_exports_lack_columns(tmp_path):
    lacking = ("endGlobalTid", "textId", "domainId", "graphNodeId", "registersPerThread", "demangledName", "severity")
    export = Export().range("r", 1, 9).work(2, (5, 7), name="kernel")
    export.add("DIAGNOSTIC_EVENT", timestamp=90, severity=1, text="Profiling has stopped.")
    trace = traces.read(export.write(tmp_path / "t.sqlite", without=lacking))

    assert ["kernel"] == list(trace.ops["name"])
    assert [THREAD] == list(trace.ranges["end_thread"])
    assert [-1] == list(trace.ops["registers"])


def test_no_process_column_means_the_only_process(tmp_path):
    export = Export().work(2, (5, 7))

    assert [PROCESS] == list(traces.read(export.write(tmp_path / "t.sqlite", without=("globalPid",))).ops["process"])
    export.launch(3, 4, 9, thread=THREAD + (1 << 24))
    with pytest.raises(UnusableError, match="2 processes"):
        traces.read(export.write(tmp_path / "t.sqlite", without=("globalPid",)))


@pytest.mark.parametrize("lacking", ["start", "eventType", "globalTid"])
def test_a_column_that_nothing_works_without(tmp_path, lacking):
    with pytest.raises(UnusableError, match=f"NVTX_EVENTS has no column {lacking}"):
        traces.read(Export().range("r", 1, 9).write(tmp_path / "t.sqlite", without=(lacking,)))


def test_copies_fills_and_graphs(tmp_path):
    place = {"start": 5, "end": 9, "deviceId": 1, "contextId": 1, "streamId": 7, "correlationId": 1, "globalPid": PROCESS}
    export = (
        Export().add("CUPTI_ACTIVITY_KIND_MEMCPY", copyKind=1, **place).add("CUPTI_ACTIVITY_KIND_MEMCPY", copyKind=99, **place)
    )
    export.add("CUPTI_ACTIVITY_KIND_MEMSET", **place).add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", graphId=3, **place)
    trace = traces.read(export.write(tmp_path / "t.sqlite"))

    assert ["[memcpy HtoD]", "[memcpy]", "[memset]", "[graph 3]"] == list(trace.ops["name"])
    assert ["MEMCPY", "MEMCPY", "MEMSET", "GRAPH"] == list(trace.ops["kind"])
    assert trace.graph_mode == "graph"


def test_graph_nodes(tmp_path):
    export = Export().launch(1, 2, 1, name="cudaGraphLaunch").kernel(5, 6, 1, graphNodeId=1 << 33)
    trace = traces.read(export.write(tmp_path / "t.sqlite"))

    assert ("node", [1 << 33]) == (trace.graph_mode, list(trace.ops["graph_node"]))


def test_the_capture_tells_the_graph_mode_where_no_graph_work_was_recorded(tmp_path):
    export = Export().launch(1, 2, 1, name="cudaGraphLaunch_v10000").kernel(5, 6, 9)
    export.add("META_DATA_CAPTURE", name="PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE", value="Node")

    assert traces.read(export.write(tmp_path / "t.sqlite")).graph_mode == "node"


def test_rows_that_cannot_be_real_are_left_out_and_counted(tmp_path):
    export = (
        Export()
        .kernel(10, 20, 1)
        .kernel(20, 10, 2)
        .kernel(0, 0, 3)
        .kernel(5, 5 + (1 << 54), 4)
        .kernel(10, 20, 5, globalPid=None)
    )
    export.rows["CUPTI_ACTIVITY_KIND_KERNEL"].append({**export.rows["CUPTI_ACTIVITY_KIND_KERNEL"][0], "start": None})
    trace = traces.read(export.write(tmp_path / "t.sqlite"))

    assert [1] == list(trace.ops["correlation"])
    assert any(note.startswith("5 of 6 rows of CUPTI_ACTIVITY_KIND_KERNEL") for note in trace.notes)


def test_a_table_without_any_usable_row_is_an_error(tmp_path):
    with pytest.raises(UnusableError, match="none of the 2 rows"):
        traces.read(Export().kernel(20, 10, 1).kernel(0, 0, 2).write(tmp_path / "t.sqlite"))


def test_names_with_nul_broken_utf8_and_megabytes(tmp_path):
    path = Export().range("x", 1, 9).range("y", 1, 9).write(tmp_path / "t.sqlite")
    huge = "void f<" + "A, " * 40_000 + ">()"
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE NVTX_EVENTS SET text = CAST(? AS TEXT) WHERE text = 'x'", (b"nul\x00byte \xff<script>",))
        database.execute("UPDATE NVTX_EVENTS SET text = ? WHERE text = 'y'", (huge,))
        database.commit()

    names = ["nul\x00byte �<script>", huge]
    for pages in (True, False):
        assert names == sorted(nsys_sqlite.read(path, pages=pages).ranges["name"], key=len)


def test_diagnostics_without_paths(tmp_path):
    text = "Cannot open /home/alice/secret-project/lib.so: no such file, see '/tmp/x/y.log'"
    export = Export().range("r", 1, 2).add("DIAGNOSTIC_EVENT", timestamp=5, severity=2, text=text)
    export.add("DIAGNOSTIC_EVENT", timestamp=6, severity=1, text="information")

    assert traces.read(export.write(tmp_path / "t.sqlite")).diagnostics == ("Cannot open <path>: no such file, see '<path>'",)


def test_sqlite_that_is_no_export(tmp_path):
    with closing(sqlite3.connect(tmp_path / "t.sqlite")) as database:
        database.execute("CREATE TABLE people (name TEXT)")

    with pytest.raises(UnusableError, match="not an export of Nsight Systems"):
        traces.read(tmp_path / "t.sqlite")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n", "git lfs pull"),
        (b"\x00\x01\x02" * 99, "neither SQLite nor JSON"),
        (b"SQLite format 3\x00" + b"\x10\x00\x01\x01" + b"\x00" * 80, "truncated or damaged"),
    ],
)
def test_files_that_are_no_traces(tmp_path, content, said):
    path = tmp_path / "t.sqlite"
    path.write_bytes(content)

    with pytest.raises(UsageError, match=said):
        traces.read(path)


def test_missing_files_and_folders(tmp_path):
    for path in (tmp_path / "none.sqlite", tmp_path):
        with pytest.raises(UsageError) as caught:
            traces.read(path)

        assert caught.value.exit_code == 2


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.95])
def test_truncated_files(tmp_path, share):
    whole = (DATA / "own-h200-2025.3.1-streams.sqlite").read_bytes()
    path = tmp_path / "t.sqlite"
    path.write_bytes(whole[: int(len(whole) * share)])

    with pytest.raises(PerfgateError) as caught:
        traces.read(path)

    assert caught.value.exit_code in (2, 5)


def test_a_locked_file(tmp_path, monkeypatch):
    path = Export().range("r", 1, 2).write(tmp_path / "t.sqlite")
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *given, **more: connect(*given, **{**more, "timeout": 0.01}))
    with closing(connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UsageError, match="locked by another program"):
            traces.read(path)


def test_a_write_ahead_log_is_read_too(tmp_path):
    path = Export().range("r", 1, 2).write(tmp_path / "t.sqlite")
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("UPDATE NVTX_EVENTS SET text = 'newer'")

        assert ["newer"] == list(traces.read(path).ranges["name"])


def test_frames_have_exactly_the_schema():
    trace = traces.read(DATA / "own-h200-2025.3.1-twoproc.sqlite")

    for frame, columns in ((trace.ops, schema.OPS), (trace.launches, schema.LAUNCHES), (trace.ranges, schema.RANGES)):
        assert list(columns) == list(frame.columns)
        assert all(str(frame[name].dtype) in (kind, "category") for name, kind in columns.items())
