"""`perfgate run` on this machine's CPU: real children, a real nsys, and children that end badly."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from perfgate.render.json import loads
from tests.functional.cli import DATA, ROOT, UNLESS_NOISY, perfgate

CRASH = DATA / "controls" / "crash.py"
QUICK = ("--device", "cpu", "--blocks", "1", "--no-confirm", "--iterations", "5")


def reasons(run, op):
    result = loads((run / "result.json").read_text())
    return {reason.code for one in result.comparisons if one.op == op for reason in one.reasons}


@pytest.mark.nsys
def test_a_cpu_workload_under_a_real_nsys_gives_host_times_and_bits(tmp_path):
    done = perfgate(
        "run", "--mode", "both", "--profiler", "nsys", *QUICK, "--op", "segment/index_add", "--case", "smoke",
        "--out", tmp_path / "run",
    )  # fmt: skip
    result = loads((tmp_path / "run" / "result.json").read_text())
    judged = next(one for one in result.comparisons if one.judged)

    assert done.returncode in UNLESS_NOISY, done.stdout + done.stderr
    assert "CPU figures: no GPU verdict" in done.stdout
    assert "stock_deterministic" == judged.role  # the Triton champion is unsupported on a CPU
    assert "nsys" == result.run.profiler
    assert "host" == judged.metric
    assert judged.default.busy_ns is None
    assert judged.default.host_ns > 0
    assert (7, 0) == (judged.bits.replays, judged.bits.differing)
    assert 2 == len(judged.default.samples)
    assert all(5 == len(one.host_ns) for one in judged.default.samples)


@pytest.mark.nsys
def test_the_trace_of_a_real_nsys_is_read_back_range_by_range(tmp_path):
    perfgate(
        "run", "--mode", "both", "--profiler", "nsys", *QUICK, "--workloads", CRASH, "--op", "crash/sound", "--out",
        tmp_path / "run",
    )  # fmt: skip
    trace = tmp_path / "run" / "captures" / "time-b00-0-default" / "trace.sqlite"

    listed = json.loads(perfgate("ranges", trace, "--format", "json").stdout)["ranges"]

    assert [("perfgate:crash/sound:smoke:fwd:torch.double", 5)] == [(one["name"], one["instances"]) for one in listed]


def test_a_racy_deterministic_implementation_is_exit_3(tmp_path):
    done = perfgate("run", *QUICK, "--workloads", DATA / "controls", "--op", "control/racy", "--out", tmp_path / "run")

    assert 3 == done.returncode, done.stdout
    assert "BITS_DIFFER" in reasons(tmp_path / "run", "control/racy")


def test_children_that_end_badly_are_told_apart_and_the_others_go_on(tmp_path):
    ops = [word for name in ("killed", "raised", "wrong", "shape", "nothing", "sound") for word in ("--op", f"crash/{name}")]

    done = perfgate("run", *QUICK, "--workloads", CRASH, *ops, "--out", tmp_path / "run")
    run = tmp_path / "run"

    assert 6 == done.returncode, done.stdout
    for name in ("killed", "raised", "shape", "nothing"):
        assert "WORKLOAD_FAILED" in reasons(run, f"crash/{name}"), name
    assert "WRONG_RESULT" in reasons(run, "crash/wrong")
    assert not reasons(run, "crash/sound") & {"WORKLOAD_FAILED", "WRONG_RESULT"}
    assert "signal 9" in done.stdout
    assert "no kernel for this shape" in done.stdout


def test_a_hanging_child_is_ended_at_its_timeout(tmp_path):
    started = time.monotonic()
    done = perfgate("run", *QUICK, "--timeout", "20", "--workloads", CRASH, "--op", "crash/hung", "--out", tmp_path / "run")

    assert 6 == done.returncode, done.stdout
    assert "ended after 20 s" in done.stdout
    assert time.monotonic() - started < 200  # 600 s is what the child would sleep


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_interrupted_is_readable_and_can_not_pass(tmp_path, number):
    run = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "perfgate", "run", *QUICK, "--workloads", CRASH, "--op", "crash/sound", "--out", run],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    while not (run / "result.json").exists() and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(number)
    printed, said = process.communicate(timeout=120)
    result = loads((run / "result.json").read_text())

    assert 5 == process.returncode, printed + said
    assert "Traceback" not in said
    assert not result.run.complete
    assert "INCOMPLETE" in {reason.code for reason in (*result.findings, *result.verdict.reasons)}
    assert 5 == perfgate("check", run).returncode
    assert (run / "report.html").is_file()


def test_one_mode_alone_measures_and_judges_nothing(tmp_path):
    done = perfgate("run", "--mode", "default", *QUICK, "--workloads", CRASH, "--op", "crash/sound", "--out", tmp_path / "run")

    assert 5 == done.returncode, done.stdout
    assert "NOTHING_MEASURED" in done.stdout or "nothing" in done.stdout.lower()
