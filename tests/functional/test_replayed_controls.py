"""The whole command on a stored H200 run: what must be caught is caught, with the right words and exit code."""

import json
import shutil

import pytest

from perfgate.render.json import loads
from tests.functional.cli import DATA, perfgate

CONTROLS = DATA / "controls"


def replay(out, *ops, extra=()):
    options = [word for op in ops for word in ("--op", f"control/{op}")]
    return perfgate(
        "run", "--mode", "both", "--profiler", "replay", "--replay-from", DATA / "runs" / "controls", "--workloads", CONTROLS,
        "--thresholds", CONTROLS / "budgets.toml", "--case", "typical", "--blocks", "2", "--out", out, *options, *extra,
    )  # fmt: skip


@pytest.fixture(scope="module")
def passed(tmp_path_factory):
    """A run that passed; tests leave it as it is."""
    run = tmp_path_factory.mktemp("passed") / "run"
    replay(run, "equal")
    return run


@pytest.mark.parametrize(
    ("op", "code", "reason"),
    [
        ("racy", 3, "BITS_DIFFER"),
        ("twice", 1, "OVER_BUDGET"),
        ("same", 5, "NO_EFFECT"),
        ("equal", 0, "SAME_KERNELS"),
    ],
)
def test_each_control_gets_its_exit_code_and_reason(tmp_path, op, code, reason):
    done = replay(tmp_path / "run", op)

    assert code == done.returncode, done.stdout + done.stderr
    assert reason in done.stdout


def test_the_most_severe_code_wins_and_the_result_holds_everything(tmp_path):
    done = replay(tmp_path / "run", "racy", "twice", "same", "equal")
    result = loads((tmp_path / "run" / "result.json").read_text())
    by_op = {one.op: one for one in result.comparisons}

    assert 3 == done.returncode
    assert result.run.complete
    assert {"fail": 2, "invalid": 1, "pass": 1} == {key: value for key, value in result.verdict.counts.items() if value}
    assert by_op["control/racy"].bits.differing == by_op["control/racy"].bits.replays == 7
    for one in result.comparisons:
        assert sum(part.delta_ns for part in one.contributions) == one.delta_ns
        for arm in (one.default, one.deterministic):
            assert sum(kernel.exclusive_ns for kernel in arm.kernels) == arm.busy_ns
    assert by_op["control/twice"].ratio == pytest.approx(2, rel=0.01)
    assert (tmp_path / "run" / "report.html").is_file()
    assert "control/twice" in (tmp_path / "run" / "leaderboard.csv").read_text()


def test_a_stored_run_can_be_judged_again_with_other_budgets(tmp_path):
    replay(tmp_path / "run", "twice")
    generous = tmp_path / "generous.toml"
    generous.write_text((CONTROLS / "budgets.toml").read_text().replace("15%", "150%"))

    again = perfgate("check", tmp_path / "run", "--thresholds", generous)
    as_before = perfgate("check", tmp_path / "run", "--thresholds", CONTROLS / "budgets.toml", "--format", "json")

    assert 0 == again.returncode, again.stdout
    assert 1 == as_before.returncode
    assert 1 == json.loads(as_before.stdout)["verdict"]["exit_code"]


@pytest.mark.parametrize(("op", "code"), [("twice", 1), ("same", 5)])
def test_judged_again_is_what_the_run_itself_said_even_where_the_ops_are_not_at_hand(tmp_path, op, code):
    replay(tmp_path / "run", op)
    before = loads((tmp_path / "run" / "result.json").read_text())

    again = perfgate("check", tmp_path / "run", "--thresholds", CONTROLS / "budgets.toml", "--format", "json")
    after = loads(again.stdout)

    assert code == again.returncode
    assert before.comparisons == after.comparisons
    assert before.verdict == after.verdict


@pytest.mark.parametrize(("more", "code"), [((), 2), (("--workloads", CONTROLS), 0)])
def test_a_budget_may_name_an_op_that_the_run_left_out(passed, tmp_path, more, code):
    budgets = tmp_path / "budgets.toml"
    entry = 'range = "control/twice"\noverhead = "9%"\nreason = "r"\nowner = "o"\nexpires = 2099-01-01\n'
    budgets.write_text((CONTROLS / "budgets.toml").read_text() + f"\n[[budget]]\n{entry}")

    done = perfgate("check", passed, "--thresholds", budgets, *more)

    assert code == done.returncode
    assert (code == 2) == ("UNMATCHED_BUDGET" in done.stdout)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lambda result: result["environment"].clear(), "names no device"),
        (lambda result: result.update(comparisons=[{}]), "result.json: comparisons.0"),
        (lambda result: result["run"].update(looks=[0]), "--blocks 0"),
        (lambda result: result["run"].update(complete=False), ""),
        (lambda result: result.update(comparisons=[]), ""),
    ],
)
def test_an_edited_result_is_told_in_words_and_never_passes(passed, tmp_path, broken, said):
    result = json.loads((passed / "result.json").read_text())
    broken(result)
    file = tmp_path / "result.json"
    file.write_text(json.dumps(result))

    done = perfgate("check", file, *(() if said == "names no device" else ("--thresholds", CONTROLS / "budgets.toml")))

    assert (2 if said else 5) == done.returncode
    assert said in done.stderr


def test_check_refuses_an_unknown_way_to_take_the_inconclusive(passed):
    done = perfgate("check", passed, "--on-inconclusive", "warn")

    assert 2 == done.returncode
    assert "use fail or pass" in done.stderr


def test_a_replay_of_more_than_was_stored_is_an_error_not_a_pass(tmp_path):
    done = replay(tmp_path / "run", "equal", extra=("--blocks", "4"))

    assert 6 == done.returncode, done.stdout
    assert "PROFILER_FAILED" in done.stdout or "WORKLOAD_FAILED" in done.stdout


def test_a_replay_of_a_run_whose_card_did_not_stand_still_does_not_pass(tmp_path):
    stored = tmp_path / "stored"
    shutil.copytree(DATA / "runs" / "controls", stored)
    result = json.loads((stored / "result.json").read_text())
    result["findings"].append({"code": "ENVIRONMENT_CHANGED", "text": "only the default arm: heat", "next": ""})
    (stored / "result.json").write_text(json.dumps(result))

    done = replay(tmp_path / "run", "equal", extra=("--replay-from", stored))

    assert 5 == done.returncode
    assert "only the default arm: heat" in done.stdout


def test_ranges_over_a_stored_capture_have_the_worker_flush_outside_of_them(tmp_path):
    capture = DATA / "runs" / "controls" / "captures" / "time-b00-0-default" / "trace.sqlite"

    done = perfgate("ranges", capture, "--kernels", "--format", "json")
    ranges = {one["name"]: one for one in json.loads(done.stdout)["ranges"]}

    assert 0 == done.returncode
    assert {"perfgate:control/equal:typical:fwd:eight_passes"} <= set(ranges)
    assert not any("flush" in name for name in ranges)
    assert 8 == ranges["perfgate:control/equal:typical:fwd:eight_passes"]["ops"]["median"]


def test_only_undecided_ranges_are_measured_in_later_blocks(tmp_path):
    close = tmp_path / "close.toml"
    close.write_text(
        (CONTROLS / "budgets.toml").read_text()
        + '\n[[budget]]\nrange = "control/twice"\noverhead = "100.3%"\nabs_floor = "1ns"\nreason = "close to what it costs"\n'
        + 'owner = "tests"\nexpires = 2099-01-01\n'
    )

    replay(tmp_path / "run", "twice", "equal", extra=("--thresholds", close, "--blocks", "1", "--max-blocks", "2"))
    later = sorted((tmp_path / "run" / "captures").glob("time-b01-*/spec.json"))

    assert 4 == len(later)
    assert {"control/twice"} == {one["op"] for path in later for one in json.loads(path.read_text())["variants"]}
