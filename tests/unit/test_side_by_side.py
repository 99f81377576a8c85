"""B against A: ratio, difference, kernels, and an interval that claims no more than it can."""

from __future__ import annotations

from datetime import date

import numpy as np
import pytest

from perfgate import traces
from perfgate.budgets import read as read_budgets
from perfgate.judge import judge
from perfgate.measure import measure
from perfgate.measure.summary import summarize
from perfgate.side_by_side import Arms, common_metric, compared, explained, of_result, relabelled, rows, summary_of, within
from perfgate.traces import nsys_csv
from perfgate.traces.summary import KernelSum, RangeSummary, Stat
from tests.unit.render import samples
from tests.unit.traces.exports import DATA, Export


def summary(name, *busy, host=None):
    known = Stat(sum(busy), sorted(busy)[len(busy) // 2], min(busy), max(busy)) if busy else None
    return RangeSummary(name, "", max(len(busy), 1), busy_ns=known, host_ns=host)


def side(label, path):
    measurement = measure(traces.read(path), detail=True)
    return summarize(measurement), Arms(label, measurement)


def test_ranges_of_both_sides_come_first_by_their_total_difference():
    a = [summary("small", 10), summary("large", 10, 10, 10), summary("only a", 900)]
    b = [summary("small", 15), summary("large", 14, 14, 14), summary("only b", 900)]
    found = rows(a, b, "busy")

    assert ["large", "small", "only a", "only b"] == [row.name for row in found]
    assert [1.4, 1.5, None, None] == [row.ratio for row in found]
    assert [4, 5, None, None] == [row.delta_ns for row in found]
    assert [12, 5, None, None] == [row.total_delta_ns for row in found]


def test_nothing_is_divided_by_zero_or_made_up():
    found = rows([summary("zero", 0), summary("unknown")], [summary("zero", 5), summary("unknown", 5)], "busy")

    assert {None} == {row.ratio for row in found}


def test_the_metric_that_both_sides_hold():
    host = Stat(1, 1, 1, 1)

    assert common_metric([summary("r", 1)], [summary("r", 2)]) == "busy"
    assert common_metric([summary("r", 1, host=host)], [summary("r", host=host)]) == "host"
    tables = nsys_csv.read([DATA / "gold-own-h200-2025.3.1-streams.nvtx_gpu_proj_sum.csv"])
    assert common_metric(tables.ranges, tables.ranges) == "span"


def test_kernels_explain_the_difference_exactly():
    paths = [DATA / f"own-h200-{version}-graph-autograd.sqlite" for version in ("2024.2.3", "2025.3.1")]
    (a_rows, a), (b_rows, b) = (side(label, path) for label, path in zip("AB", paths, strict=True))
    found = [
        explained(row, a.figures(row.name), b.figures(row.name), "busy")
        for row in rows(a_rows, b_rows, "busy")
        if row.a and row.b
    ]

    assert 14 == len(found)
    for row in found:
        delta = b.figures(row.name).busy_ns - a.figures(row.name).busy_ns
        assert sum(part.delta_ns for part in row.contributions) == delta


def test_added_and_removed_kernels_are_named():
    (a_rows, a), (b_rows, b) = (
        side(label, DATA / f"own-h200-2025.3.1-graph-{mode}.sqlite") for label, mode in (("A", "graph"), ("B", "node"))
    )
    (row,) = [row for row in rows(a_rows, b_rows, "busy") if row.name == "perfgate:replay"]
    kinds = {part.kind for part in explained(row, a.figures(row.name), b.figures(row.name), "busy").contributions}

    assert kinds == {"added", "removed"}


def test_kernels_of_tables_are_means_per_instance():
    def table(*kernels):
        return RangeSummary(
            "r", "", 2, span_ns=Stat(9, 9, 9, 9), kernels=tuple(KernelSum(name, "KERNEL", 2, total) for name, total in kernels)
        )

    (row,) = rows([table(("x", 10), ("gone", 4))], [table(("x", 30), ("new", 6))], "span")

    assert [("slower", "x", 10), ("added", "new", 3), ("removed", "gone", -2)] == [
        (one.kind, one.kernel, one.delta_ns) for one in row.contributions
    ]


def test_the_interval_of_one_process_holds_its_promise():
    """Medians of two skewed distributions, truth 1.1: at least 95 % of the intervals must hold it."""
    random = np.random.default_rng(3)
    held = 0
    for _ in range(400):
        a, b = random.lognormal(0, 0.3, 30), 1.1 * random.lognormal(0, 0.3, 30)
        low, high = within((a * 1e6).astype(int), (b * 1e6).astype(int))
        held += low <= 1.1 <= high

    assert held >= 0.95 * 400 - 2 * (400 * 0.95 * 0.05) ** 0.5


@pytest.mark.parametrize("count", [0, 1, 4, 6])
def test_too_few_instances_have_no_interval(count):
    assert within(range(1, count + 1), range(1, 31)) == (None, None)


def test_an_interval_from_zero_is_none():
    assert within([0] * 30, [1] * 30) == (None, None)


def test_one_capture_per_side_can_neither_pass_nor_fail_a_budget(tmp_path):
    budget = 'version = 1\nmatch = ["*"]\n[[budget]]\nrange = "r"\noverhead = "{}"\nreason = "r"\n'
    budget += 'owner = "o"\nexpires = 2099-01-01\n'
    parts = []
    for label, length in (("A", 1_000_000), ("B", 1_500_000)):
        export = Export()
        for turn in range(30):
            at = turn * 10_000_000
            export.range("r", at, at + 100).work(at + 10, (at + 1000, at + 1000 + length + turn))
        parts.append(side(label, export.write(tmp_path / f"{label}.sqlite"))[1].figures("r"))
    for overhead in ("1%", "900%"):
        (tmp_path / "t.toml").write_text(budget.format(overhead))
        (judged,) = judge([compared("r", *parts, "busy")], read_budgets(tmp_path / "t.toml", date(2026, 11, 29)), foreign=True)

        assert judged.status == "inconclusive"
        assert judged.reasons[0].code == "TOO_FEW_SAMPLES"


def test_names_of_our_own_ranges_are_taken_apart():
    own, foreign = compared("moe/combine:dsv3:fwd:triton", None, None, "busy"), compared("a:b:c:d", None, None, "busy")

    assert ("moe/combine:dsv3:fwd", "triton") == (own.range, own.implementation)
    assert ("a:b:c:d", "", "") == (foreign.op, foreign.case, foreign.phase)


def test_runs_are_compared_arm_by_arm():
    arms = of_result(samples.mixed())
    name, figures = next((name, figures) for name, figures in arms.items() if figures.samples and figures.busy_ns)
    other = relabelled(figures, "B")

    assert all(one.capture.startswith("B/") for one in other.samples)
    (row,) = rows([summary_of(name, figures)], [summary_of(name, other)], "busy")
    row = explained(row, relabelled(figures, "A"), other, "busy")
    assert row.ratio == 1.0
    assert row.ratio_low <= 1.0 <= row.ratio_high
