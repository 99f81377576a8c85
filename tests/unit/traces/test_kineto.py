"""torch.profiler's JSON: a real CPU export, and the CUDA events as Kineto writes them."""

from __future__ import annotations

import gzip
import json

import pytest

from perfgate import traces
from perfgate.errors import UnusableError, UsageError
from perfgate.measure import measure
from perfgate.traces import kineto


def annotation(name, ts=0.0, dur=100.0, tid=5, **more):
    return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 5, "tid": tid, "ts": ts, "dur": dur, **more}


def call(ts, correlation, tid=5, name="cudaLaunchKernel", category="cuda_runtime"):
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 5,
        "tid": tid,
        "ts": ts,
        "dur": 1.0,
        "args": {"correlation": correlation},
    }


def kernel(ts, dur, correlation, category="kernel", name="k", **arguments):
    given = {"device": 0, "context": 1, "stream": 7, "correlation": correlation, **arguments}
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": given}


def read(tmp_path, events, **more):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events, **more}))
    return traces.read(path)


def test_a_real_cpu_export(tmp_path):
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        with record_function("perfgate::op:case:fwd:one"):
            torch.ones(4).sum()
        with record_function("plain"):
            pass
    profiler.export_chrome_trace(str(tmp_path / "real.json"))
    trace = traces.read(tmp_path / "real.json")

    assert [("perfgate", "op:case:fwd:one"), ("", "plain")] == list(
        zip(trace.ranges["domain"], trace.ranges["name"], strict=True)
    )
    assert ("kineto", False, "1") == (trace.format, trace.has_gpu, trace.schema_version)
    assert (measure(trace).instances["host_ns"] > 0).all()


def test_domains_are_split_off_only_where_they_are_ours(tmp_path):
    names = ["perfgate::a", "perfgate.aux::flush", "perfgate.user::u::v", "aten::mm", "perfgate"]
    ranges = read(tmp_path, [annotation(name) for name in names]).ranges

    assert ["perfgate", "perfgate.aux", "perfgate.user", "", ""] == list(ranges["domain"])
    assert ["a", "flush", "u::v", "aten::mm", "perfgate"] == list(ranges["name"])


def test_cuda_events_are_joined(tmp_path):
    events = [
        annotation("r"),
        call(10, 1),
        kernel(200.5, 10.25, 1, grid=[132, 1, 1], block=[128, 1, 1], **{"registers per thread": 32}),
    ]
    events += [call(20, 2, category="cuda_driver", name="cuLaunchKernel"), kernel(205, 10, 2, stream=9)]
    events += [call(30, 3, name="cudaMemcpyAsync"), kernel(300, 1, 3, "gpu_memcpy", "Memcpy HtoD (Pageable -> Device)")]
    events += [call(40, 4, name="cudaMemsetAsync"), kernel(400, 1, 4, "gpu_memset", "Memset (Device)")]
    trace = read(tmp_path, events)
    row = measure(trace).instances.iloc[0]

    assert (16_500, 200_500, 22_250, 4) == (row["busy_ns"], row["span_ns"], row["sum_ns"], row["ops"])
    assert ["k", "k", "[memcpy HtoD (Pageable -> Device)]", "[memset (Device)]"] == list(trace.ops["name"])
    assert ("132x1x1", "128x1x1", 32) == tuple(trace.ops.iloc[0][["grid", "block", "registers"]])
    assert [5] == list(trace.ops["process"].unique())


def test_nanoseconds_survive_the_decimals(tmp_path):
    ranges = read(tmp_path, [annotation("r", ts=5099757142713.041, dur=54194.207)]).ranges

    assert [(5099757142713041, 5099757142713041 + 54194207)] == list(zip(ranges["start"], ranges["end"], strict=True))


def test_unfinished_ranges_are_open(tmp_path):
    event = annotation("r")
    del event["dur"]

    assert [False] == list(read(tmp_path, [event]).ranges["closed"])


def test_compressed_and_bare_lists(tmp_path):
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(json.dumps([annotation("r")]).encode()))

    assert ["r"] == list(traces.read(path).ranges["name"])


def test_malformed_events_are_counted(tmp_path):
    bad = [
        annotation("t", ts="soon"),
        annotation("d", dur=-5.0),
        annotation("p", tid="Spans"),
        {"ph": "X", "cat": "kernel"},
        7,
        "x",
    ]
    trace = read(tmp_path, [annotation("r"), *bad, annotation("huge", ts=1e300), annotation("args", args=[])])

    assert ["r", "args"] == list(trace.ranges["name"])
    assert trace.notes == ("5 events without usable times or ids: left out",)


def test_gpu_work_of_several_processes_cannot_be_joined(tmp_path):
    other = {**call(10, 1), "pid": 6}
    with pytest.raises(UnusableError, match="which of 2 processes"):
        read(tmp_path, [annotation("r"), call(10, 1), other, kernel(20, 5, 1)])


def test_nothing_usable(tmp_path):
    with pytest.raises(UnusableError, match="neither record_function ranges nor GPU work"):
        read(tmp_path, [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"traceEvents": [', "truncated or damaged"),
        (b'{"traceEvents": 3}', "no list traceEvents"),
        (b"{}", "no list traceEvents"),
        (b"\x1f\x8bnot gzip", "can't be read"),
        (gzip.compress(b'{"traceEvents": []}', mtime=0)[:-9], "can't be read"),
        (b"[" * 100_000, "truncated or damaged"),
        (b'{"a": NaN}', "no list traceEvents"),
    ],
)
def test_what_is_no_trace(tmp_path, content, said):
    (tmp_path / "t.json").write_bytes(content)
    with pytest.raises(UsageError, match=said):
        kineto.read(tmp_path / "t.json")


def test_host_names_stay_out(tmp_path):
    trace = read(tmp_path, [annotation("r")], host_name="secret-host", traceName="/home/alice/t.json")

    assert "secret-host" not in repr(trace)
    assert "alice" not in repr(trace)
