"""The vectorised attribution against the definition written out in O(n²), on random nests, threads, streams and processes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfgate.measure import measure, sweep
from perfgate.measure.rules import LIBRARY_DOMAINS
from perfgate.traces import schema

ATTRIBUTIONS = ("auto", "process", "same-thread")
DOMAINS = ("", "d", "perfgate", "perfgate.aux", "perfgate.user", "CCCL")
OWN = ("perfgate", "perfgate.aux")
FIGURES = ["process", "thread", "start", "host_ns", "domain", "name", "busy_ns", "span_ns", "sum_ns", "idle_ns", "ops", "rule"]
TIME = st.integers(-10, 60)
INTERVAL = st.tuples(TIME, st.integers(0, 25)).map(lambda pair: (pair[0], pair[0] + pair[1]))
PLACE = st.tuples(st.integers(1, 2), st.integers(0, 2))  # process, thread


@st.composite
def trace(draw):
    """A trace with any ranges (nested, crossing, open), any launches (overlapping ones too) and any GPU work."""
    ranges = []
    for process, thread in draw(st.lists(PLACE, max_size=9)):
        start, end = draw(INTERVAL)
        crossing = draw(st.sampled_from([False, False, False, True]))
        closed = draw(st.sampled_from([True, True, True, False]))
        ranges.append(
            {
                "domain": draw(st.sampled_from(DOMAINS)),
                "name": draw(st.sampled_from("ab")),
                "kind": "StartEnd" if crossing else "PushPop",
                "process": process << 24,
                "thread": process << 24 | thread,
                "end_thread": process << 24 | (draw(st.integers(0, 2)) if crossing else thread),
                "start": start,
                "end": end if closed else start,
                "closed": closed,
            }
        )
    launches, ops = [], []
    for number, (process, thread) in enumerate(draw(st.lists(PLACE, max_size=12)), start=1):
        start, end = draw(INTERVAL)
        correlation = draw(st.sampled_from([number, number, number, 3]))
        place = {"process": process << 24, "correlation": correlation}
        name = draw(st.sampled_from(["cudaLaunchKernel", "cudaMemcpyAsync"]))
        launches.append({**place, "name": name, "thread": process << 24 | thread, "start": start, "end": end})
        for _ in range(draw(st.sampled_from([0, 1, 1, 2]))):
            begin, finish = draw(INTERVAL)
            device, stream = draw(st.integers(0, 1)), draw(st.integers(7, 9))
            sizes = {"grid": "", "block": "", "registers": -1, "shared_memory": -1, "graph_node": -1, "context": 1}
            ops.append(
                {
                    **place,
                    **sizes,
                    "kind": "KERNEL",
                    "name": f"k{stream}",
                    "device": device,
                    "stream": stream,
                    "start": begin,
                    "end": finish,
                }
            )
    return schema.Trace(
        "drawn",
        "nsys-sqlite",
        "",
        "",
        _frame(ops, schema.OPS),
        _frame(launches, schema.LAUNCHES),
        _frame(ranges, schema.RANGES),
        True,
    )


def _frame(rows, columns):
    return schema.check(pd.DataFrame(rows), columns, "drawn") if rows else schema.empty(columns)


def measured(trace, **options):
    return measure(trace, **options)


def figures(trace, attribution):
    """The definition, range by range and operation by operation."""
    launches = list(trace.launches.itertuples())
    launched = [(op, launch_of(op, launches)) for op in trace.ops.itertuples()]
    ranges = list(trace.ranges.itertuples())
    found = []
    for one in ranges:
        if not one.closed or one.domain == "perfgate.aux":
            continue
        rule = rule_of(one, ranges, attribution)
        mine = [op for op, launch in launched if launch is not None and inside(launch, one, rule)]
        theirs = [launch for op, launch in launched if op.process == one.process]
        lost = (bool(theirs) and all(launch is None for launch in theirs)) or any(
            "LaunchKernel" in launch.name and inside(launch, one, rule) and all(other is not launch for _, other in launched)
            for launch in launches
        )
        found.append((one.process, one.thread, one.start, one.end - one.start, one.domain, one.name, *totals(mine, lost), rule))
    return sorted(found)


def launch_of(op, launches):
    """The call with the operation's id in its process; of several the last that began before the operation, else the first."""
    same = sorted(
        (one for one in launches if (one.process, one.correlation) == (op.process, op.correlation)), key=lambda one: one.start
    )
    before = [one for one in same if one.start <= op.start]
    if before:
        return before[-1]
    return same[0] if same else None


def rule_of(one, ranges, attribution):
    if attribution == "process" or (attribution == "auto" and one.domain in OWN):
        return "process"
    crossing = one.thread != one.end_thread
    if attribution == "same-thread":
        return "cross-thread" if crossing else "same-thread"
    same_name = [other for other in ranges if (other.process, other.domain, other.name) == (one.process, one.domain, one.name)]
    if not any(disputed(other, ranges) for other in same_name):
        return "process"
    return "cross-thread" if any(other.thread != other.end_thread for other in same_name) else "same-thread"


def disputed(one, ranges):
    library = one.domain in LIBRARY_DOMAINS
    end = one.end if one.closed else float("inf")
    return any(
        other.process == one.process
        and other.thread != one.thread
        and other.domain not in OWN
        and (library or other.domain not in LIBRARY_DOMAINS)
        and (other.end > other.start or not other.closed)  # what lasts no time disputes nothing
        and other.start < end
        and (other.end if other.closed else float("inf")) > one.start
        for other in ranges
    )


def inside(launch, one, rule):
    threads = {"process": None, "same-thread": {one.thread}, "cross-thread": {one.thread, one.end_thread}}[rule]
    here = launch.process == one.process and (threads is None or launch.thread in threads)
    return here and one.start <= launch.start and launch.end <= one.end


def totals(ops, lost):
    if not ops:
        return (-1,) * 5 if lost else (0,) * 5
    busy = max(
        len(set().union(*(range(op.start, op.end) for op in ops if op.device == device)))
        for device in {op.device for op in ops}
    )
    span = max(op.end for op in ops) - min(op.start for op in ops)
    return busy, span, sum(op.end - op.start for op in ops), span - busy, len(ops)


def ours(instances):
    return sorted(tuple(row) for row in instances[FIGURES].astype(object).itertuples(index=False))


@settings(max_examples=150, deadline=None)
@given(trace(), st.sampled_from(ATTRIBUTIONS))
def test_the_definition_written_out_gives_the_same(trace, attribution):
    assume_one_launch_per_instant(trace)

    assert figures(trace, attribution) == ours(measure(trace, attribution=attribution).instances)


def assume_one_launch_per_instant(trace):
    """Of two calls with one id that begin at the same time either may be meant."""
    from hypothesis import assume

    assume(not trace.launches.duplicated(["process", "correlation", "start"]).any())


@settings(max_examples=40, deadline=None)
@given(trace(), st.sampled_from(ATTRIBUTIONS))
def test_busy_is_at_most_sum_and_span(trace, attribution):
    instances = measure(trace, attribution=attribution).instances

    assert (instances["busy_ns"] <= instances[["sum_ns", "span_ns"]].min(axis=1)).all()
    known = instances[instances["busy_ns"] >= 0]
    assert (known["idle_ns"] == known["span_ns"] - known["busy_ns"]).all()


@settings(max_examples=40, deadline=None)
@given(trace(), st.randoms(use_true_random=False))
def test_the_order_of_rows_means_nothing(trace, random):
    assume_one_launch_per_instant(trace)

    def shuffled(frame):
        return frame.sample(frac=1.0, random_state=random.randrange(2**32)).reset_index(drop=True)

    other = replace(trace, ops=shuffled(trace.ops), launches=shuffled(trace.launches), ranges=shuffled(trace.ranges))
    one, two = measured(trace, detail=True), measured(other, detail=True)
    pd.testing.assert_frame_equal(one.instances, two.instances)
    keys = ["instance", "start", "end", "device", "stream", "correlation"]
    pd.testing.assert_frame_equal(
        one.ops.sort_values(keys, ignore_index=True)[keys], two.ops.sort_values(keys, ignore_index=True)[keys]
    )
    assert (one.unattributed, one.excluded) == (two.unattributed, two.excluded)


@settings(max_examples=60, deadline=None)
@given(trace(), st.sampled_from(ATTRIBUTIONS))
def test_blocks_and_the_way_to_look_up_threads_mean_nothing(trace, attribution):
    whole = measured(trace, attribution=attribution, detail=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("perfgate.traces._coded._BLOCK", 2)
        patch.setattr("perfgate.measure.codes._FEW", 0)
        blocks = measured(trace, attribution=attribution, detail=True)

    pd.testing.assert_frame_equal(whole.instances, blocks.instances)
    pd.testing.assert_frame_equal(whole.ops, blocks.ops)
    assert (whole.unattributed, whole.excluded) == (blocks.unattributed, blocks.excluded)


@settings(max_examples=40, deadline=None)
@given(trace(), st.sampled_from(ATTRIBUTIONS))
def test_processes_can_be_measured_apart(trace, attribution):
    parts = []
    for process in (1 << 24, 2 << 24):
        frames = {name: getattr(trace, name) for name in ("ops", "launches", "ranges")}
        own = {name: frame[frame["process"] == process] for name, frame in frames.items()}
        parts += ours(measure(replace(trace, **own), attribution=attribution).instances)

    assert ours(measure(trace, attribution=attribution).instances) == sorted(parts)


@settings(max_examples=40, deadline=None)
@given(trace())
def test_exclusive_times_explain_busy_exactly(trace):
    measurement = measured(trace, detail=True)
    ops = measurement.ops
    per_device = ops.groupby(["instance", "device"])["exclusive_ns"].sum()
    busy = per_device.groupby("instance").max()

    instances = measurement.instances.set_index("instance")
    assert (instances.loc[busy.index, "busy_ns"] == busy).all()
    assert (instances["ops"].clip(lower=0) == ops.groupby("instance").size().reindex(instances.index, fill_value=0)).all()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(INTERVAL, min_size=1, max_size=25),
    st.lists(st.tuples(st.integers(0, 25), st.integers(0, 25)), min_size=1, max_size=9),
)
def test_windows_are_unions_whatever_the_streams(intervals, bounds):
    start, end = (np.array(side, dtype=np.int64) for side in zip(*intervals, strict=True))
    low, high = (
        np.array(side, dtype=np.int64)
        for side in zip(*[sorted((min(a, len(start)), min(b, len(start)))) for a, b in bounds], strict=True)
    )
    found = sweep.Operations(start, end).windows(low, high)

    for window, (begin, finish) in enumerate(zip(low, high, strict=True)):
        covered = set().union(*(range(start[place], end[place]) for place in range(begin, finish)), set())
        assert found.busy[window] == len(covered)
        assert found.sum[window] == int((end - start)[begin:finish].sum())
        assert found.ops[window] == finish - begin
        assert found.span[window] == (int(end[begin:finish].max() - start[begin:finish].min()) if finish > begin else 0)


@pytest.mark.parametrize("limit", [1, 7, 10**9])
def test_portions_cover_everything_once(limit):
    sizes = np.array([3, 0, 5, 9, 1, 1, 0])
    places = [place for some in sweep.portions(sizes, limit) for place in range(some.start, some.stop)]

    assert list(range(7)) == places
    assert all(sizes[some].sum() <= limit or some.stop - some.start == 1 for some in sweep.portions(sizes, limit))


def test_unions_of_owners_far_apart_in_time():
    """Shifted times of many owners would not fit into 64 bits at once."""
    owner = np.arange(6).repeat(2)
    start = np.tile(np.array([0, 2**60]), 6)
    union, first, last = sweep.pairs(owner, start, start + 5, 6)

    assert [10] * 6 == list(union)
    assert ([0] * 6, [2**60 + 5] * 6) == (list(first), list(last))
