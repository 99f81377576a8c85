import dataclasses

import pytest

from perfgate.errors import UsageError
from perfgate.history import find_runs, history, load, regressions
from perfgate.render.json import dumps
from tests.unit.render import histories, samples


def test_a_slowdown_that_both_arms_share_is_seen_though_the_ratio_stays():
    runs = [histories.run(n, *((1_000_000, 600_000) if n < 8 else (1_050_000, 630_000))) for n in range(16)]
    series = history(runs).series[0]

    assert series.changes["ratio"] == ()
    assert [change.at for change in series.changes["default"]] == [8]
    assert [change.at for change in series.changes["deterministic"]] == [8]
    assert series.changes["default"][0].fraction == pytest.approx(0.05, abs=0.01)


def test_runs_are_ordered_by_their_start_however_they_come():
    runs = [histories.run(n) for n in (3, 1, 2)]

    assert [point.run for point in history(runs).series[0].points] == ["run-001", "run-002", "run-003"]


def test_a_run_cut_short_is_left_out_and_said():
    broken = histories.run(2)
    broken = dataclasses.replace(broken, run=dataclasses.replace(broken.run, complete=False))
    seen = history([histories.run(1), broken])

    assert (seen.runs, seen.left_out) == (1, ("run-002: cut short",))
    assert len(seen.series[0].points) == 1


def test_another_card_is_another_series():
    other = histories.run(2, gpu={"name": "NVIDIA H100 80GB HBM3"})

    assert [series.card for series in history([histories.run(1), other]).series] == ["NVIDIA H100 80GB HBM3", "NVIDIA H200"]


def test_what_changed_in_the_machine_stands_at_the_run():
    updated = histories.run(2, torch="2.12.0")
    points = history([histories.run(1), updated, histories.run(3, torch="2.12.0")]).series[0].points

    assert [point.environment for point in points] == [(), ("torch: '2.11.0+cu130' against '2.12.0'",), ()]


def test_a_range_that_gave_nothing_in_one_run_leaves_a_gap_not_a_zero():
    gap = dataclasses.replace(
        histories.run(2), comparisons=(samples.unmeasured("moe/combine", "triton.gather", status="error"),)
    )
    points = history([histories.run(1), gap, histories.run(3)]).series[0].points

    assert [sorted(point.values) for point in points] == [
        ["default", "deterministic", "ratio"],
        ["default"],
        ["default", "deterministic", "ratio"],
    ]
    assert points[1].status == "error"


def test_only_matching_ranges():
    runs = [histories.run(1), histories.run(2, op="loss/ce")]

    assert [series.range for series in history(runs, "moe/*").series] == ["moe/combine:typical:fwd"]


def statuses(found):
    return {one.name: one.status for one in found}


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ((1_000_000, 600_000), {"default_regression": "pass", "deterministic_regression": "pass"}),
        ((1_100_000, 660_000), {"default_regression": "fail", "deterministic_regression": "fail"}),
        ((1_000_000, 660_000), {"default_regression": "pass", "deterministic_regression": "fail"}),
        ((500_000, 600_000), {"default_regression": "pass", "deterministic_regression": "pass"}),
        ((1_020_000, 600_000), {"default_regression": "inconclusive", "deterministic_regression": "pass"}),
    ],
)
def test_each_arm_is_held_against_itself_in_the_base_run(now, expected):
    found = regressions(histories.run(1, noise=0.001), histories.run(2, *now, noise=0.001), allow=0.02)

    assert expected == statuses(found)


def test_two_machines_that_differ_are_not_compared():
    found = regressions(histories.run(1), histories.run(2, 1_100_000, triton="3.9.0"))

    assert set(statuses(found).values()) == {"invalid"}
    assert "ENVIRONMENT_CHANGED: triton" in found[0].text


def test_a_range_that_vanished_is_invalid_and_a_new_one_is_said():
    found = regressions(histories.run(1), histories.run(2, op="loss/ce"))

    assert [(one.range, one.status, one.text.split(":")[0]) for one in found] == [
        ("loss/ce:typical:fwd", "skipped", "new"),
        ("loss/ce:typical:fwd", "skipped", "new"),
        ("moe/combine:typical:fwd", "invalid", "VANISHED"),
        ("moe/combine:typical:fwd", "invalid", "VANISHED"),
    ]


def test_one_process_per_arm_is_no_evidence():
    def alone(result):
        one = result.comparisons[0]
        arms = {
            name: dataclasses.replace(arm, samples=arm.samples[:1])
            for name, arm in (("default", one.default), ("deterministic", one.deterministic))
        }
        return dataclasses.replace(result, comparisons=(dataclasses.replace(one, **arms),))

    found = regressions(alone(histories.run(1)), alone(histories.run(2, 2_000_000)))

    assert set(statuses(found).values()) == {"inconclusive"}


def test_false_alarms_over_many_ranges_stay_rare():
    runs = [
        [histories.run(n, noise=0.003, seed=repeat, op=f"a/op{op}") for op in range(10)] for repeat in range(20) for n in (1, 2)
    ]
    joined = [dataclasses.replace(parts[0], comparisons=tuple(part.comparisons[0] for part in parts)) for parts in runs]
    alarms = sum(
        any(one.status == "fail" for one in regressions(joined[i], joined[i + 1], allow=0.0)) for i in range(0, len(joined), 2)
    )

    assert alarms <= 3


def test_runs_are_found_in_folders_and_files_once(tmp_path):
    for name in ("a/one", "a/two"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "result.json").write_text(dumps(histories.run(1)))
    found = find_runs([tmp_path / "a", tmp_path / "a/one", tmp_path / "a/two/result.json"])

    assert len(found) == 2
    assert len(load([tmp_path])) == 2
    with pytest.raises(UsageError, match="holds no result"):
        find_runs([tmp_path / "b"])
