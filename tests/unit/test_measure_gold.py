"""Agreement with a real `nsys stats` 2024.2.3 where its definition is used, and each place where we differ knowingly."""

from __future__ import annotations

import csv
import sys
from collections import Counter

import pytest

from perfgate import traces
from perfgate.measure import measure
from perfgate.measure.summary import summarize
from tests.unit.traces.exports import DATA

PROJECTED = sorted(path.name.split(".nvtx_")[0].removeprefix("gold-") for path in DATA.glob("gold-*.nvtx_gpu_proj_sum.csv"))
HOST = sorted(path.name.split(".nvtx_")[0].removeprefix("gold-") for path in DATA.glob("gold-*.nvtx_pushpop_sum.csv"))
# what nsys's projection has and we leave out, and the other way round: each has its own test below
STRETCHED = {"perfgate:never_ended", "perfgate:never_popped"}
UNSEEN = {"graph", "perfgate:fwd_bwd_startend"}


def gold(name, report):
    csv.field_size_limit(sys.maxsize)
    with (DATA / f"gold-{name}.{report}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def ranges(name, attribution="same-thread"):
    trace = traces.read(DATA / f"{name}.sqlite")
    return {row.name: row for row in summarize(measure(trace, attribution=attribution, detail=True))}


@pytest.mark.parametrize("name", PROJECTED)
def test_span_host_and_instances_agree_exactly(name):
    ours, theirs = ranges(name), {row["Range"]: row for row in gold(name, "nvtx_gpu_proj_sum")}

    assert set(theirs) - STRETCHED <= set(ours)
    assert all(not ours[extra].ops.total for extra in set(ours) - set(theirs) - UNSEEN)
    for range_name in set(theirs) - STRETCHED:
        row, one = theirs[range_name], ours[range_name]
        numbers = [float(row[f"Proj {part} (ns)"]) for part in ("Med", "Min", "Max")]
        assert [one.span_ns.median, one.span_ns.min, one.span_ns.max] == numbers
        assert one.span_ns.total == int(row["Total Proj Time (ns)"])
        assert one.host_ns.total == int(row["Total Range Time (ns)"])
        assert one.instances == int(row["Range Instances"])
        if name != "own-h200-2025.3.1-graph-node":
            assert one.ops.total == int(row["Total GPU Ops"])


@pytest.mark.parametrize("name", PROJECTED)
def test_kernels_of_every_range_agree_exactly(name):
    theirs: dict[str, Counter[str]] = {}
    counts: dict[str, Counter[str]] = {}
    for row in gold(name, "nvtx_kern_sum"):
        range_name = row["NVTX Range"].removeprefix(":")
        theirs.setdefault(range_name, Counter())[row["Kernel Name"]] += int(row["Total Time (ns)"])
        counts.setdefault(range_name, Counter())[row["Kernel Name"]] += int(row["Kern Inst"])
    ours = ranges(name)

    for range_name in set(theirs) - STRETCHED - {""}:
        kernels = [kernel for kernel in ours[range_name].kernels if kernel.kind == "KERNEL"]
        assert {kernel.name: kernel.sum_ns for kernel in kernels} == dict(theirs[range_name])
        assert {kernel.name: kernel.count for kernel in kernels} == dict(counts[range_name])


@pytest.mark.parametrize("name", HOST)
def test_host_times_agree_exactly(name):
    ours = ranges(name)

    for row in gold(name, "nvtx_pushpop_sum"):
        one = ours[row["Range"].removeprefix(":")]
        assert one.instances == int(row["Instances"])
        assert one.host_ns.total == int(row["Total Time (ns)"])
        assert [one.host_ns.median, one.host_ns.min, one.host_ns.max] == [
            float(row[f"{part} (ns)"]) for part in ("Med", "Min", "Max")
        ]


def test_a_graph_traced_as_a_whole_has_gpu_time():
    """nsys projects nothing onto `replay`: it looks for kernels, and a graph in graph mode has none. Ours is GRAPH_TRACE's."""
    row = ranges("own-h200-2025.3.1-graph-graph")["perfgate:replay"]

    assert row.instances == 4
    assert row.busy_ns.total == 360224 + 358015 + 358591 + 357696  # the four rows of CUPTI_ACTIVITY_KIND_GRAPH_TRACE
    assert row.ops.total == 4


def test_a_graph_traced_by_node_counts_its_nodes():
    """nsys counts a launch of a graph as one operation, whatever it ran: 4 replays of a graph of 4 nodes are 16."""
    row = ranges("own-h200-2025.3.1-graph-node")["perfgate:replay"]

    assert (row.instances, row.ops.total) == (4, 16)
    assert row.busy_ns.total < row.span_ns.total


def test_ranges_ended_on_another_thread_are_measured():
    """nsys leaves `fwd_bwd_startend` out, because another thread ended it; both ways of marking the same work must agree."""
    rows = ranges("own-h200-2025.3.1-startend", "auto")
    startend, pushpop = rows["perfgate:fwd_bwd_startend"], rows["perfgate:fwd_bwd_pushpop"]

    assert (startend.instances, startend.ops.total) == (4, 28)
    assert pushpop.busy_ns.median == pytest.approx(startend.busy_ns.median, rel=0.01)


def test_backward_on_the_autograd_thread_is_counted():
    """nsys gives `fwd_bwd_pushpop` 16 operations of 28: it misses what the autograd thread launched, half of the GPU time."""
    same_thread = ranges("own-h200-2025.3.1-startend")["perfgate:fwd_bwd_pushpop"]
    auto = ranges("own-h200-2025.3.1-startend", "auto")["perfgate:fwd_bwd_pushpop"]

    assert (same_thread.ops.total, auto.ops.total) == (16, 28)
    assert auto.busy_ns.median > 2 * same_thread.busy_ns.median


@pytest.mark.parametrize("name", ["own-h200-2024.2.3-graph-autograd", "own-h200-2025.3.1-graph-autograd"])
def test_a_library_that_marks_its_calls_on_the_autograd_thread_is_no_dispute(name):
    """cuBLAS opens ranges of its own on the autograd thread; the program's range keeps its backward under both versions."""
    row = ranges(name, "auto")["mm_fwd_bwd"]

    assert (row.rules, row.ops.total) == (("process",), 79)


def test_ranges_that_never_ended_are_left_out_and_counted():
    """nsys closes them with the end of profiling, so that `never_ended` lasts 811 ms and owns all that came after it."""
    measurement = measure(traces.read(DATA / "own-h200-2025.3.1-startend.sqlite"))

    assert not STRETCHED & set("perfgate:" + measurement.instances["name"].astype(object))
    assert [2] == [count for reason, count in measurement.excluded if "never ended" in reason]


def test_kernel_time_outside_every_range_agrees():
    name = "own-h200-2025.3.1-aa-default"
    measurement = measure(traces.read(DATA / f"{name}.sqlite"), attribution="same-thread")
    theirs = sum(int(row["Total Time (ns)"]) for row in gold(name, "nvtx_kern_sum") if not row["NVTX Range"])
    kernels = traces.read(DATA / f"{name}.sqlite").ops

    assert len(measurement.unattributed) == 1
    others = kernels[kernels["kind"] != "KERNEL"]
    assert 0 <= measurement.unattributed[0].gpu_ns - theirs <= int((others["end"] - others["start"]).sum())


def test_one_range_name_in_two_processes_with_colliding_correlation_ids():
    trace = traces.read(DATA / "own-h200-2025.3.1-twoproc.sqlite")
    instances = measure(trace).instances
    ids = [set(rows["correlation"]) for _, rows in trace.launches.groupby("process")]

    assert ids[0] & ids[1]
    assert [4, 4] == list(instances.groupby("process").size())
    assert {3} == set(instances["ops"])


@pytest.mark.parametrize(
    "name", ["own-h200-2025.3.1-kill", "pub-2025.1.3-wsl-no-device-activity", "pub-2022.4.2-startend-domains-no-cuda"]
)
def test_without_gpu_activity_busy_is_unknown_never_zero(name):
    measurement = measure(traces.read(DATA / f"{name}.sqlite"))

    for column in ("busy_ns", "span_ns", "sum_ns", "idle_ns", "ops"):
        assert {-1} == set(measurement.instances[column])
    assert (measurement.instances["host_ns"] > 0).all()
    assert all(row.busy_ns is None and row.host_ns is not None for row in summarize(measurement))
    assert any("no GPU activity" in note for note in measurement.notes)


def test_a_sliced_capture_counts_what_lost_its_counterpart():
    measurement = measure(traces.read(DATA / "pub-2026.2.1-two-process-sliced.sqlite"))
    rows = {row.name: row for row in summarize(measurement)}

    assert [("its launch is not in the capture", 266)] == [(left.reason, left.ops) for left in measurement.unattributed]
    assert [113] == [count for reason, count in measurement.excluded if "whose GPU work is not in the capture" in reason]
    lacking = [row for row in rows.values() if row.incomplete == row.instances]
    assert lacking
    assert all(row.busy_ns is None for row in lacking if row.ops is None)
    assert measurement.missing.max() >= 1


def test_nested_torch_ranges():
    """``aten::conv2d`` of the oldest schema: span 2.77 ms, sum 0.360, union 0.339 over both of its calls."""
    rows = [row for name, row in ranges("pub-2022.1.3-torch-nested").items() if name.startswith("aten::conv2d")]

    totals = [sum(getattr(row, metric).total for row in rows) for metric in ("span_ns", "sum_ns", "busy_ns")]
    assert [2_767_640, 359_548, 338_971] == totals
