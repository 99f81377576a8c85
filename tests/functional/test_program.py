"""A user's program gated as it is: arms, bits, what is stored of it and what never is. Several ranks: test_program_ranks.py."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfgate.store import load_result
from tests.functional.cli import DATA, ROOT, UNLESS_NOISY, perfgate

PROGRAMS = DATA / "programs"
OPTIONS = ("run", "--mode", "both", "--device", "cpu", "--thresholds", PROGRAMS / "budgets.toml", "--blocks", "1")
BARE = ("--profiled-blocks", "0")  # the step alone: no nsys
PLANTED = "planted-4b1d77e0c2"


def codes(result):
    return [one.code for one in result.findings]


def test_metrics_that_differ_in_the_judged_arm_fail_and_the_defaults_are_shown(tmp_path):
    arms = ("--mode-args", "default=--racy", "--mode-args", "champion=--racy")
    done = perfgate(*OPTIONS, *BARE, *arms, "--out", tmp_path / "run", "--", sys.executable, PROGRAMS / "loop.py")
    result = load_result(tmp_path / "run")
    champion = next(one for one in result.comparisons if one.implementation == "champion")
    stock = next(one for one in result.comparisons if one.implementation == "deterministic")

    assert 3 == done.returncode, done.stderr
    assert (1, 1, True) == (champion.bits.replays, champion.bits.differing, champion.judged)
    assert (1, 0, 1, False) == (stock.bits.replays, stock.bits.differing, stock.bits.default_differing, stock.judged)
    assert "step 0, loss, loss: " in champion.bits.first_difference
    assert ["METRICS_DIFFER", "METRICS_EQUAL", "METRICS_DIFFER"] == [one for one in codes(result) if one.startswith("METRICS")]
    assert [8, 8, 8] == [one.metric_values for one in result.program.arms]


@pytest.mark.nsys
def test_a_run_is_stored_without_secrets_and_judged_again_as_it_was(tmp_path):
    file = tmp_path / "gate.toml"
    command = [sys.executable, str(PROGRAMS / "loop.py")]
    file.write_text(f'command = {command}\nmatch = "layer"\nsteps = "1:8"\n[mode-env.deterministic]\nPLACE = "{{run}}/x"\n')
    done = perfgate(*OPTIONS, "--config", file, "--out", tmp_path / "run", MY_TOKEN=PLANTED)
    result = load_result(tmp_path / "run")
    again = perfgate("check", tmp_path / "run", "--thresholds", PROGRAMS / "budgets.toml")
    logs = [one.read_text() for one in sorted((tmp_path / "run").glob("captures/time-*/worker.log"))]

    assert done.returncode in UNLESS_NOISY, done.stderr
    assert done.returncode == again.returncode, again.stderr
    assert {"step": True, "layer": True, "forward": False} == {one.op: one.judged for one in result.comparisons}
    assert ("host", "perfgate.user:step", 8, (1, 8)) == (
        *(result.program.clock, result.program.step_range),
        *(result.program.steps, result.program.window),
    )
    assert [7, 7] == [len(one.host_ns) for one in result.comparisons[0].default.samples if one.host_ns]
    assert ["mode default arm default", "mode deterministic arm deterministic"] == [log.strip() for log in logs[:2]]
    assert [] == [path for path in tmp_path.rglob("*") if path.is_file() and PLANTED.encode() in path.read_bytes()]
    assert [] == [path.name for path in tmp_path.rglob("*.nsys-rep")]


def test_a_run_that_is_cancelled_ends_its_program_and_can_not_pass(tmp_path):
    command = [sys.executable, "-m", "perfgate", *OPTIONS, *BARE, "--out", tmp_path / "run", "--", sys.executable]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = subprocess.Popen(
        [*map(str, command), str(PROGRAMS / "loop.py"), "--wait"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    log = tmp_path / "run" / "captures" / "confirm-b00-0-default" / "program" / "steps" / "rank-0.jsonl"
    deadline = time.monotonic() + 60
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    pid = int(log.read_text().partition('"pid": ')[2].partition("}")[0].partition(",")[0])
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=60)

    assert 5 == running.returncode
    assert not Path(f"/proc/{pid}").exists()
    assert "INCOMPLETE" in codes(load_result(tmp_path / "run"))


def test_dry_run_and_bad_requests_run_nothing(tmp_path):
    arms = ("--mode-env", "deterministic=A=1")
    shown = perfgate(*OPTIONS, *BARE, *arms, "--dry-run", "--", sys.executable, "train.py", cwd=tmp_path)
    refused = perfgate(*OPTIONS, *BARE, "--", sys.executable, "train.py", "--tp-comm-overlap", cwd=tmp_path)
    unknown = perfgate("run", "--match", "x", cwd=tmp_path)

    assert 0 == shown.returncode, shown.stderr
    assert "    A=1 CUBLAS_WORKSPACE_CONFIG=:4096:8 NCCL_ALGO=Ring" in shown.stdout
    assert "4 runs: 0 under nsys" in shown.stdout
    assert (2, 2) == (refused.returncode, unknown.returncode)
    assert "--tp-comm-overlap" in refused.stderr
    assert "--match needs a program" in unknown.stderr
    assert [] == list(tmp_path.iterdir())
