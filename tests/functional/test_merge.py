"""A suite split over jobs and joined again, on a stored H200 run: the verdict is that of one run over everything."""

import json
import re

import pytest

from perfgate.render.json import loads
from tests.functional.cli import DATA, perfgate

CONTROLS = DATA / "controls"
STORED = DATA / "runs" / "controls"
OPS = [word for op in ("racy", "twice", "same", "equal") for word in ("--op", f"control/{op}")]
THRESHOLDS = ("--workloads", CONTROLS, "--thresholds", CONTROLS / "budgets.toml")


def run(out, *extra):
    return perfgate(
        "run", "--mode", "both", "--profiler", "replay", "--replay-from", STORED, *THRESHOLDS, "--case", "typical",
        "--blocks", "2", "--out", out, *OPS, *extra,
    )  # fmt: skip


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """A folder with the run of each of two shards, and the finished processes; tests leave it as it is."""
    folder = tmp_path_factory.mktemp("jobs")
    return folder, [run(folder / f"job{number}", "--shard", f"{number}/2") for number in (1, 2)]


@pytest.fixture(scope="module")
def merged(jobs):
    folder, _ = jobs
    return perfgate("merge", folder, "--out", folder.parent / "merged", *THRESHOLDS), folder.parent / "merged"


def result(run_):
    return loads((run_ / "result.json").read_text())


def test_the_shards_share_the_ranges_and_say_what_they_are(jobs):
    folder, finished = jobs
    parts = [result(folder / f"job{number}") for number in (1, 2)]
    ranges = [{one.range for one in part.comparisons} for part in parts]

    assert ["1/2", "2/2"] == [part.run.shard for part in parts]
    assert set(parts[0].run.planned) == ranges[0] | ranges[1]
    assert not ranges[0] & ranges[1]
    assert all(ranges)
    assert "shard 1/2" in finished[0].stdout


def test_the_merged_verdict_is_that_of_the_whole_suite(merged, tmp_path):
    done, path = merged
    whole = run(tmp_path / "whole")
    ours, theirs = result(path), result(tmp_path / "whole")

    assert whole.returncode == done.returncode == ours.verdict.exit_code == 3
    assert theirs.verdict.counts == ours.verdict.counts
    assert {one.name: (one.status, one.ratio, one.ratio_low, one.ratio_high) for one in theirs.comparisons} == {
        one.name: (one.status, one.ratio, one.ratio_low, one.ratio_high) for one in ours.comparisons
    }
    assert "merged from 1/2, 2/2" in done.stdout


def test_check_report_and_history_read_it(merged, jobs):
    _, path = merged
    checked = perfgate("check", path, *THRESHOLDS, "--format", "json")
    reported = perfgate("report", path, "--format", "json")
    past = perfgate("history", path, jobs[0], "--format", "json")

    assert (3, 0, 0) == (checked.returncode, reported.returncode, past.returncode)
    assert json.loads(checked.stdout)["verdict"] == json.loads(reported.stdout)["verdict"]
    assert 1 == json.loads(past.stdout)["runs"]


def test_half_a_suite_is_incomplete(jobs, tmp_path):
    folder, _ = jobs
    done = perfgate("merge", folder / "job1", "--out", tmp_path / "half", *THRESHOLDS, "--on-inconclusive", "pass")

    assert "shard 2/2 is missing" in done.stdout
    assert done.returncode in (3, 5)  # 3 where the half at hand holds the op whose bits differ: that outranks
    assert not result(tmp_path / "half").run.complete
    assert 0 != result(tmp_path / "half").verdict.exit_code


def test_what_is_refused_writes_nothing(jobs, tmp_path):
    folder, _ = jobs
    done = perfgate("merge", folder, folder / "job1", STORED, "--out", tmp_path / "out", *THRESHOLDS)

    assert 2 == done.returncode
    assert re.search(r"controls is no shard: it holds a whole run\nnext: ", done.stderr)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("shard", "said"), [("3/2", "shard '3/2' is none"), ("1/9", "only 4 (op, case) pairs"), ("x", "shard 'x' is none")]
)
def test_a_shard_that_cannot_be(tmp_path, shard, said):
    done = run(tmp_path / "run", "--shard", shard)

    assert 2 == done.returncode
    assert said in done.stderr
    assert not (tmp_path / "run").exists()
