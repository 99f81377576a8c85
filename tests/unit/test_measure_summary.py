"""One row per range name, ranks joined by their slowest iteration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfgate import traces
from perfgate.measure import Leftover, Measurement, measure
from perfgate.measure import summary as summing
from perfgate.measure.ranks import across_ranks as across_ranks_
from perfgate.measure.summary import rename
from perfgate.traces import schema
from perfgate.traces.names import grouping
from perfgate.traces.summary import KernelSum, Stat
from tests.unit.traces.exports import DATA, Export


def summarize(measurement):
    return summing.summarize(measurement)


def across_ranks(measurements):
    return across_ranks_(measurements)


def instances(rows, **columns):
    """A measurement of (name, busy) rows in order of start."""
    count = len(rows)
    names, busy = (list(side) for side in zip(*rows, strict=True))
    frame: dict[str, Any] = {name: [0] * count for name in schema.INSTANCES}
    frame |= {"instance": range(count), "start": range(count), "name": names, "busy_ns": busy, "domain": [""] * count}
    frame |= {"rule": ["process"] * count, "span_ns": busy, "sum_ns": busy, "ops": [1] * count, "host_ns": busy, **columns}
    return Measurement(schema.check(pd.DataFrame(frame), schema.INSTANCES, "test"), None, (), (), ())


def test_totals_medians_and_extremes():
    rows = summarize(instances([("a", 1), ("a", 4), ("b", 7), ("a", 3), ("a", 9)]))

    assert [("a", 4, Stat(17, 3.5, 1, 9)), ("b", 1, Stat(7, 7, 7, 7))] == [
        (row.name, row.instances, row.busy_ns) for row in rows
    ]
    assert isinstance(rows[1].busy_ns.median, int)


def test_many_groups_are_summed_the_same(monkeypatch):
    random = np.random.default_rng(0)
    measurement = instances(
        [
            (f"r{number}", int(busy))
            for number, busy in zip(random.integers(0, 40, 500), random.integers(0, 9, 500), strict=True)
        ]
    )
    few = summarize(measurement)
    monkeypatch.setattr(summing, "_FEW", 0)

    assert few == summarize(measurement)


def test_unknown_instances_are_no_zeros():
    rows = {row.name: row for row in summarize(instances([("a", 5), ("a", -1), ("b", -1)]))}

    assert rows["a"].busy_ns == Stat(5, 5, 5, 5)
    assert rows["b"].busy_ns is None
    assert rows["a"].instances == 2


def test_the_costliest_range_comes_first():
    assert ["b", "a", "c"] == [row.name for row in summarize(instances([("a", 5), ("b", 3), ("b", 4), ("c", 0)]))]


def test_nothing_to_sum():
    assert summarize(measure(traces.read(DATA / "pub-2026.1.1-no-nvtx.sqlite"), detail=True)) == []


def test_grouped_names_are_one_range():
    grouped = rename(instances([("aten::mm, seq = 1", 5), ("aten::mm, seq = 2", 3), ("other", 1)]), grouping(None, strip=True))

    assert [("aten::mm", 2, 8), ("other", 1, 1)] == [(row.name, row.instances, row.busy_ns.total) for row in summarize(grouped)]


def test_kernels_by_name(tmp_path):
    export = Export().range("r", 0, 100).work(10, (110, 120), name="x").work(20, (115, 130), name="y", streamId=9)
    export.work(30, (140, 160), name="x").range("r", 200, 300).work(210, (300, 301), name="x")
    (row,) = summarize(measure(traces.read(export.write(tmp_path / "t.sqlite")), detail=True))

    assert (KernelSum("x", "KERNEL", 3, 31, 31), KernelSum("y", "KERNEL", 1, 15, 10)) == row.kernels


def test_rules_that_differ_between_processes_are_all_named():
    (row,) = summarize(instances([("a", 1), ("a", 2)], rule=["process", "same-thread"]))

    assert row.rules == ("process", "same-thread")


def test_the_slowest_rank_of_every_iteration():
    first, second = instances([("a", 10), ("a", 40)]), instances([("a", 30), ("a", 20), ("only here", 5)])
    joined = across_ranks([first, second])

    rows = [(row.name, row.instances, row.busy_ns.total) for row in summarize(joined)]
    assert [("a", 2, 70), ("only here", 1, 5)] == rows
    assert [0, 1, 2] == list(joined.instances["instance"])


def test_host_time_is_the_longest_even_where_another_rank_is_busier():
    first, second = instances([("a", 10)], host_ns=[99]), instances([("a", 30)], host_ns=[50], span_ns=[35])

    row = across_ranks([first, second]).instances.iloc[0]
    assert (30, 35, 5, 99) == (row["busy_ns"], row["span_ns"], row["idle_ns"], row["host_ns"])


def test_ranks_that_disagree_on_the_number_of_iterations_are_pooled():
    joined = across_ranks([instances([("a", 10), ("a", 40)]), instances([("a", 30)])])

    assert [10, 30, 40] == sorted(joined.instances["busy_ns"])
    assert ["1 ranges occur unequally often on the ranks: their instances are pooled, not paired"] == list(joined.notes)


def test_the_operations_of_joined_ranks_explain_their_busy_time(tmp_path):
    parts = []
    for rank, (first, second) in enumerate([(30, 10), (10, 25)]):
        export = Export().range("a", 0, 10).work(5, (20, 20 + first), name=f"rank {rank}")
        export.range("a", 60, 70).work(65, (80, 80 + second), name=f"rank {rank}")
        parts.append(measure(traces.read(export.write(tmp_path / "t.sqlite")), detail=True))
    joined = across_ranks(parts)

    assert [30, 25] == list(joined.instances["busy_ns"])
    assert [30, 25] == list(joined.ops.groupby("instance")["exclusive_ns"].sum())
    assert ["rank 0", "rank 1"] == list(joined.ops["name"])


def test_leftovers_and_exclusions_of_ranks_add_up():
    parts = [
        Measurement(instances([("a", 1)]).instances, None, (Leftover("lost", 1, 10, 0.5),), (("open", 2),), ("n",), gpu_ns=20),
        Measurement(
            instances([("a", 1)]).instances, None, (Leftover("lost", 2, 10, 0.125),), (("open", 1),), ("n",), gpu_ns=80
        ),
    ]
    joined = across_ranks(parts)

    assert ((Leftover("lost", 3, 20, 0.2),), (("open", 3),), ("n",)) == (joined.unattributed, joined.excluded, joined.notes)


def test_one_rank_stays_as_it_is():
    only = instances([("a", 1)])

    assert across_ranks([only]) is only


@pytest.mark.parametrize("name", ["own-h200-2025.3.1-streams", "pub-2022.1.3-torch-nested"])
def test_two_equal_ranks_are_one(name):
    measurement = measure(traces.read(DATA / f"{name}.sqlite"), detail=True)

    assert summarize(measurement) == summarize(across_ranks([measurement, measurement]))
