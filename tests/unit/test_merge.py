"""Shards become one run: judged as one family, and everything that can't be vouched for is refused or incomplete."""

import dataclasses
import json
import shutil
from dataclasses import asdict, replace

import pytest

from perfgate import gate
from perfgate.config import Config
from perfgate.errors import UnusableError, UsageError
from perfgate.history import history, usable
from perfgate.judge import judge
from perfgate.merge import merge
from perfgate.model import Exempt, GateResult, Reason, RunInfo
from perfgate.render.json import dumps, loads
from perfgate.sequential import Looks
from perfgate.store import load_result
from tests.unit import arms

BUDGETS = 'version = 1\nmatch = ["NVIDIA H200*"]\n[defaults]\noverhead = "15%"\nabs_floor = "0us"\n'
ENVIRONMENT = {
    "device": "cuda",
    "gpu": {"name": "NVIDIA H200", "driver": "580.1"},
    "torch": "2.11.0",
    "perfgate": "0.1.0",
    "git": {"commit": "a" * 40, "dirty": False, "changes": None},
    "warnings": [],
}
CASES = {"c1": 1.0, "c2": 1.02, "c3": 1.05, "c4": 1.1}  # the deterministic arm's time over the default's
PLANNED = tuple(f"moe/combine:{case}:fwd" for case in CASES)
OF_SHARD = {1: ("c1", "c4"), 2: ("c2",), 3: ("c3",)}


def measured(case, ratio=None):
    ratio = CASES[case] if ratio is None else ratio
    default, new = arms.noisy("old", 100, seed=1), arms.noisy("new", 100 * ratio, seed=2, side=1)
    return arms.comparison(default, new, case=case)


def shard(number, *, comparisons=None, complete=True, findings=(), environment=None, thresholds="", settings=None, **run):
    """(result, its run.json) of one shard of three."""
    info = RunInfo(
        id="ci", started=f"2026-11-29T10:0{number}:00+00:00", command=f"perfgate run --shard {number}/3", mode="both",
        profiler="nsys", complete=complete, device="cuda:0", seconds=10.0, looks=(3,), shard=f"{number}/3", planned=PLANNED,
    )  # fmt: skip
    found = tuple(measured(case) for case in OF_SHARD[number]) if comparisons is None else tuple(comparisons)
    stored = GateResult(
        replace(info, **run), environment or ENVIRONMENT, found, None, (Exempt("comm/overlap", "arrival"),), tuple(findings)
    )
    result = gate.judged_again(stored, thresholds=str(thresholds))
    return result, {"plan": {"config": {**asdict(Config(shard=f"{number}/3")), **(settings or {})}}}


@pytest.fixture
def thresholds(tmp_path):
    return arms.write(tmp_path, "budgets.toml", BUDGETS)


@pytest.fixture
def write(tmp_path, thresholds):
    """Writes shards as run directories under a folder of their own; returns that folder."""

    def written(*made):
        folder = tmp_path / "shards"
        for place, (result, run) in enumerate(made):
            (folder / f"job{place}").mkdir(parents=True)
            (folder / f"job{place}" / "result.json").write_text(dumps(result))
            (folder / f"job{place}" / "run.json").write_text(json.dumps(run))
        return folder

    return written


@pytest.fixture
def join(tmp_path, thresholds):
    def joined(folder, **options):
        options = {"thresholds": str(thresholds), **options}
        return merge([folder], out=str(tmp_path / "merged"), command="perfgate merge shards", **options)

    return joined


def all_three(thresholds, **changes):
    return [shard(number, thresholds=thresholds, **changes.get(f"s{number}", {})) for number in (1, 2, 3)]


def test_all_shards_make_one_run_that_every_view_reads(write, join, thresholds, tmp_path):
    done = join(write(*all_three(thresholds)))
    again = load_result(tmp_path / "merged")

    assert done.result == again
    assert (0, "pass", 4) == (again.verdict.exit_code, again.verdict.status, again.verdict.counts["pass"])
    assert list(PLANNED) == [one.range for one in again.comparisons]
    assert ("merged", "", PLANNED, True) == (again.run.id, again.run.shard, again.run.planned, again.run.complete)
    assert ["1/3", "2/3", "3/3"] == [one.shard for one in again.run.merged]
    assert ("2026-11-29T10:01:00+00:00", 30.0) == (again.run.started, again.run.seconds)
    assert (Exempt("comm/overlap", "arrival"),) == again.exempt
    assert "merged from 1/3, 2/3, 3/3" in (tmp_path / "merged" / "report.html").read_text()
    assert {"result.json", "report.html", "leaderboard.csv", "run.json"} <= {p.name for p in (tmp_path / "merged").iterdir()}


def test_the_verdict_is_that_of_one_run_over_all_ranges(write, join, thresholds):
    merged = join(write(*all_three(thresholds))).result
    budgets = gate.budgets_of("NVIDIA H200", str(thresholds))
    whole = judge([measured(case) for case in CASES], budgets, looks=Looks.plan(3, 3))

    assert [one.status for one in whole] == [one.status for one in merged.comparisons]
    assert [one.ratio_low for one in whole] == [one.ratio_low for one in merged.comparisons]


def test_a_shard_alone_is_as_strict_as_the_whole(write, join, thresholds):
    """Holm over all planned ranges, not over the shard's own: what failed in a shard fails in the merged run."""
    one, _ = shard(2, thresholds=thresholds, comparisons=[measured("c2", 1.162)])
    alone = judge(
        [measured("c2", 1.162)],
        gate.budgets_of("NVIDIA H200", str(thresholds)),
        looks=Looks.plan(3, 3),
    )

    assert one.comparisons[0].ratio_low < alone[0].ratio_low


def test_check_gives_what_the_merge_gave(write, join, thresholds, tmp_path):
    merged = join(write(*all_three(thresholds))).result
    checked = gate.check(tmp_path / "merged", thresholds=str(thresholds))

    assert merged.verdict == checked.verdict
    assert merged.comparisons == checked.comparisons


def test_one_failing_range_fails_the_whole(write, join, thresholds):
    shards = all_three(thresholds, s3={"comparisons": [measured("c3", 1.5)]})

    assert (1, 1) == ((verdict := join(write(*shards)).result.verdict).exit_code, verdict.counts["fail"])


def test_a_missing_shard_can_never_pass(write, join, thresholds, tmp_path):
    done = join(write(*all_three(thresholds)[::2]), on_inconclusive="pass")
    reason = next(one for one in done.result.findings if one.code == "INCOMPLETE")

    assert (5, "invalid", False) == (done.result.verdict.exit_code, done.result.verdict.status, done.result.run.complete)
    assert "shard 2/3 is missing, and with it 1 ranges: moe/combine:c2:fwd" == reason.text
    assert 5 == gate.check(tmp_path / "merged", thresholds=str(thresholds)).verdict.exit_code
    assert "shard 2/3 is missing" in (tmp_path / "merged" / "report.html").read_text()


def test_a_shard_that_was_cut_short_leaves_the_whole_incomplete(write, join, thresholds):
    cut = {"complete": False, "findings": [Reason("INCOMPLETE", "interrupted (Ctrl-C or SIGTERM)")]}
    done = join(write(*all_three(thresholds, s2=cut)))

    assert (5, False) == (done.result.verdict.exit_code, done.result.run.complete)
    assert "was cut short: interrupted" in done.result.verdict.text


def test_a_planned_range_that_no_shard_holds_is_missed(write, join, thresholds):
    done = join(write(*all_three(thresholds, s1={"comparisons": [measured("c1")]})))

    assert 5 == done.result.verdict.exit_code
    assert "no shard holds 1 ranges: moe/combine:c4:fwd" in done.result.verdict.text


@pytest.mark.parametrize("field", [{"torch": "2.12.0"}, {"gpu": {"name": "NVIDIA H200", "driver": "575.9"}}])
def test_unlike_machines_are_refused_with_the_field(write, join, thresholds, tmp_path, field):
    shards = all_three(thresholds, s2={"environment": {**ENVIRONMENT, **field}})

    with pytest.raises(UnusableError, match=r"ENVIRONMENT_CHANGED.*unlike machines: (torch|gpu.driver)") as caught:
        join(write(*shards))
    assert 5 == caught.value.exit_code
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"environment": {**ENVIRONMENT, "git": {"commit": "b" * 40, "changes": None}}}, "differ in the commit"),
        ({"environment": {**ENVIRONMENT, "git": {"commit": "a" * 40, "changes": "123"}}}, "differ in the changes"),
        ({"environment": {**ENVIRONMENT, "git": None}}, "differ in the commit"),
        ({"environment": {**ENVIRONMENT, "kernel_configs": "x"}}, "differ in kernel_configs"),
        ({"settings": {"iterations": 5}}, "differ in option iterations: 30 against 5"),
        ({"looks": (3, 6)}, "differ in looks"),
        ({"mode": "default"}, "differ in mode"),
        ({"planned": (*PLANNED, "moe/combine:c5:fwd")}, "differ in the planned ranges"),
        ({"shard": "2/4"}, "differ in the number of shards: 3 against 4"),
        ({"shard": "1/3"}, "shard 1/3 is given twice"),
        ({"comparisons": [measured("c2"), measured("c3")]}, "moe/combine:c3:fwd is in shard 2/3"),
        ({"shard": ""}, "is no shard: it holds a whole run"),
    ],
)
def test_shards_that_do_not_belong_together_are_refused(write, join, thresholds, tmp_path, change, said):
    shards = all_three(thresholds, s2=change)

    with pytest.raises(UsageError, match=said):
        join(write(*shards))
    assert not (tmp_path / "merged").exists()


def test_settings_of_the_machine_may_differ(write, join, thresholds):
    other = {"out": "elsewhere", "timeout": 9.0, "device": "1", "keep_report": True}

    assert 0 == join(write(*all_three(thresholds, s2={"settings": other}))).result.verdict.exit_code


def test_other_budgets_than_the_shards_had_are_refused(write, join, thresholds, tmp_path):
    folder = write(*all_three(thresholds))
    looser = arms.write(tmp_path, "looser.toml", BUDGETS.replace("15%", "80%"))

    with pytest.raises(
        UsageError, match=r"moe/combine:c1:fwd: its budget's overhead was 0\.15 in shard 1/3 .* here it is 0\.8"
    ):
        join(folder, thresholds=str(looser))


def test_findings_name_their_shard_unless_all_have_them(write, join, thresholds):
    everywhere, here = Reason("PROVISIONAL", "no card yet"), Reason("BLOCK_DROPPED", "block 2 does not count")
    shards = all_three(
        thresholds, s1={"findings": [everywhere]}, s2={"findings": [everywhere, here]}, s3={"findings": [everywhere]}
    )
    found = [one.text for one in join(write(*shards)).result.findings]

    assert 1 == found.count("no card yet")
    assert 1 == found.count("shard 2/3: block 2 does not count")


def test_captures_are_told_apart_by_their_shard(write, join, thresholds, tmp_path):
    merged = join(write(*all_three(thresholds))).result

    assert "shard 2/3 new-0-1" == merged.comparisons[1].deterministic.samples[0].capture
    assert 'href="captures/' not in (tmp_path / "merged" / "report.html").read_text()


def test_a_merged_run_is_not_merged_again(write, join, thresholds, tmp_path):
    join(write(*all_three(thresholds)))

    with pytest.raises(UsageError, match="is a merged run already"):
        merge([tmp_path / "merged"], out=str(tmp_path / "again"), command="")


def test_a_result_without_its_run_file_is_refused(write, join, thresholds):
    folder = write(*all_three(thresholds))
    (folder / "job1" / "run.json").unlink()

    with pytest.raises(UsageError, match=r"has no run\.json"):
        join(folder)


def test_nothing_to_merge(tmp_path, join):
    (tmp_path / "empty").mkdir()

    with pytest.raises(UsageError, match=r"holds no result\.json"):
        join(tmp_path / "empty")


def test_history_shows_the_merged_run_and_not_its_parts(write, join, thresholds, tmp_path):
    join(write(*all_three(thresholds)))
    results = [load_result(path.parent) for path in sorted(tmp_path.rglob("result.json"))]
    seen = history(results)

    assert ["merged"] == [one.run.id for one in usable(results)]
    assert (1, ["ci: a part of a merged run"] * 3) == (seen.runs, list(seen.left_out))
    assert list(PLANNED) == sorted(one.range for one in seen.series)


def test_a_shard_says_that_it_is_a_part(thresholds):
    from perfgate.render import FORMATS

    result, _ = shard(2, thresholds=thresholds)

    assert "Shard 2/3: 1 of 4 ranges" in FORMATS["html"](result)
    assert result == loads(dumps(result))


def test_results_of_before_shards_still_load(tmp_path, write, thresholds):
    folder = write(*all_three(thresholds))
    fields = json.loads((folder / "job0" / "result.json").read_text())
    for key in ("shard", "planned", "merged"):
        del fields["run"][key]

    assert ("", (), ()) == dataclasses.astuple(loads(json.dumps(fields)).run)[-3:]
    shutil.rmtree(folder)
