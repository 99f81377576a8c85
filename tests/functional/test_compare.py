"""`perfgate compare` as a user meets it."""

from __future__ import annotations

import csv
import io
import json
import shutil

import pytest

from perfgate.render.json import dumps
from tests.functional.cli import DATA, perfgate
from tests.unit.render import samples
from tests.unit.traces.exports import Export

NSYS = DATA / "nsys"
OLD, NEW = (NSYS / f"own-h200-{version}-graph-autograd.sqlite" for version in ("2024.2.3", "2025.3.1"))
BUDGET = """version = 1
match = ["*"]
[[budget]]
range = "{}"
overhead = "5%"
reason = "measured"
owner = "kernels"
expires = 2099-01-01
"""


def answer(*arguments, code=0):
    done = perfgate("compare", *arguments, "--format", "json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_two_traces_side_by_side():
    found = answer(OLD, NEW)
    one = next(row for row in found["ranges"] if row["name"] == "mm_fwd_bwd")

    assert (660702, 661823, 1121) == (one["a_ns"], one["b_ns"], one["delta_ns"])
    assert one["ratio"] == pytest.approx(661823 / 660702)
    assert one["contributions"][0]["kind"] == "slower"
    assert (["cuBLAS:cublasCreate_v2"], ["perfgate:nvtxpkg"]) == (found["only_a"], found["only_b"])
    assert "within the two processes only" in found["interval"]
    assert found["verdict"] is None


def test_the_table_names_kernels_and_one_sided_ranges():
    done = perfgate("compare", OLD, NEW, "--buckets", "--top", "3")

    assert done.returncode == 0
    assert "3 of 14 ranges that both have" in done.stdout
    assert "slower indexing_backward_kernel" in done.stdout
    assert "only in A: cuBLAS:cublasCreate_v2" in done.stdout
    assert "95 % within the two processes only" in done.stdout
    assert "op: 3 ranges" in done.stdout


def test_csv_has_one_line_per_range():
    rows = list(csv.DictReader(io.StringIO(perfgate("compare", OLD, NEW, "--format", "csv").stdout)))

    assert 16 == len(rows)
    assert {"a_ns", "b_ns", "ratio", "total_delta_ns"} <= set(rows[0])


def test_thirty_instances_have_an_interval_and_still_no_verdict(tmp_path):
    (tmp_path / "t.toml").write_text(BUDGET.format("gemm"))
    path = NSYS / "own-h200-2025.3.1-aa-default.sqlite"
    found = answer(path, path, "--thresholds", tmp_path / "t.toml", code=4)
    gemm = next(row for row in found["ranges"] if row["name"] == "gemm")

    assert gemm["ratio_low"] < 1 < gemm["ratio_high"]
    assert ("inconclusive", "TOO_FEW_SAMPLES") == (gemm["status"], gemm["reasons"][0]["code"])
    assert {None} == {row["status"] for row in found["ranges"] if row["name"] != "gemm"}
    assert found["verdict"]["exit_code"] == 4
    assert (
        answer(path, path, "--thresholds", tmp_path / "t.toml", "--on-inconclusive", "pass")["verdict"]["status"]
        == "inconclusive"
    )


def test_a_budgeted_range_that_vanished_is_exit_code_5(tmp_path):
    (tmp_path / "t.toml").write_text(BUDGET.format("cuBLAS:cublasCreate_v2"))
    found = answer(OLD, NEW, "--thresholds", tmp_path / "t.toml", code=5)

    assert "VANISHED" in found["verdict"]["text"]


def test_a_budget_that_matches_nothing_is_exit_code_2(tmp_path):
    (tmp_path / "t.toml").write_text(BUDGET.format("no such range"))
    done = perfgate("compare", OLD, NEW, "--thresholds", tmp_path / "t.toml")

    assert done.returncode == 2
    assert "UNMATCHED_BUDGET" in done.stdout


def test_graphs_traced_in_different_ways_are_not_comparable(tmp_path):
    (tmp_path / "t.toml").write_text(BUDGET.format("perfgate:replay"))
    a, b = (NSYS / f"own-h200-2025.3.1-graph-{mode}.sqlite" for mode in ("graph", "node"))
    found = answer(a, b, "--thresholds", tmp_path / "t.toml", code=5)

    assert any("traced as a whole on one side" in note for note in found["notes"])
    assert "ENVIRONMENT_CHANGED" in found["verdict"]["text"]


def test_a_range_without_gpu_data_on_one_side_is_compared_by_host_time(tmp_path):
    with_gpu = Export().range("r", 0, 100).work(5, (20, 30)).write(tmp_path / "a.sqlite")
    without = Export().range("r", 0, 150).write(tmp_path / "b.sqlite")
    found = answer(with_gpu, without)

    assert ("host", 1.5) == (found["metric"], found["ranges"][0]["ratio"])
    assert None is answer(with_gpu, without, "--metric", "busy")["ranges"][0]["ratio"]


def test_tables_of_nsys_stats(tmp_path):
    for name, version in (("a", "2024.2.3"), ("b", "2025.3.1")):
        (tmp_path / name).mkdir()
        for path in NSYS.glob(f"gold-own-h200-{version}-graph-autograd.*.csv"):
            shutil.copy(path, tmp_path / name)
    found = answer(tmp_path / "a", tmp_path / "b")

    assert ("span", "none: tables of nsys stats hold no instances") == (found["metric"], found["interval"])
    assert found["ranges"][0]["contributions"]
    assert any("from tables of nsys stats" in note for note in found["notes"])


@pytest.mark.parametrize(("complete", "code"), [(True, 0), (False, 5)])
def test_a_run_that_was_cut_short_can_not_pass(tmp_path, complete, code):
    stored = json.loads((DATA / "runs" / "controls" / "result.json").read_text())
    for name, whole in (("a", True), ("b", complete)):
        (tmp_path / name).mkdir()
        stored["run"]["complete"] = whole
        (tmp_path / name / "result.json").write_text(json.dumps(stored))
    found = answer(tmp_path / "a", tmp_path / "b", "--thresholds", DATA / "controls" / "budgets.toml", code=code)

    assert code == found["verdict"]["exit_code"]


def test_runs_on_unlike_machines_are_shown_but_not_judged(tmp_path):
    stored = json.loads((DATA / "runs" / "controls" / "result.json").read_text())
    for name, torch in (("a", "2.11.0"), ("b", "2.13.0")):
        stored["environment"] = {**stored["environment"], "torch": torch}
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps(stored))
    runs = (tmp_path / "a", tmp_path / "b")
    refused = perfgate("compare", *runs, "--thresholds", DATA / "controls" / "budgets.toml")

    assert 5 == refused.returncode
    assert "unlike machines: torch" in refused.stderr
    assert "2.11.0" in refused.stderr
    assert "2.13.0" in refused.stderr
    assert 0 == perfgate("compare", *runs).returncode


def test_two_runs(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(dumps(samples.mixed()))
    found = answer(tmp_path / "a", tmp_path / "b")

    assert "were not interleaved" in found["interval"]
    assert {1.0} == {row["ratio"] for row in found["ranges"] if row["ratio"] is not None}
    assert perfgate("compare", tmp_path / "a", OLD).returncode == 2


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((OLD, "none.sqlite"), 2, "no such file"),
        ((OLD, NSYS / "own-h200-2025.3.1-streams.sqlite"), 5, "no range in common"),
        ((OLD, NSYS / "pub-2026.1.1-no-nvtx.sqlite"), 5, "holds no NVTX range"),
        ((OLD, NEW, "--metric", "speed"), 2, "use busy, span, host"),
        ((OLD, NEW, "--format", "xml"), 2, "use table, json or csv"),
        ((OLD, NEW, "--on-inconclusive", "maybe"), 2, "use fail or pass"),
        ((OLD, NEW, "--thresholds", "none.toml"), 2, "can't be read"),
        ((OLD, NEW, "--top", "-1"), 2, "greater than or equal to 0"),
    ],
)
def test_what_cannot_be_compared(arguments, code, said):
    done = perfgate("compare", *arguments)

    assert code == done.returncode
    assert said in done.stderr
