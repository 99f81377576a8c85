import sys
import time
from pathlib import Path

import pytest

from perfgate.determinism.contract import STANDARD
from perfgate.model import RunSpec, Variant
from perfgate.profilers.nsys_found import NsysFacts
from perfgate.profilers.spec_file import load_capture
from perfgate.program.arms import arms_of
from perfgate.program.launch import Launcher, nsys_arguments, slim_trace, traces_of
from perfgate.program.options import ProgramOptions
from tests.functional.cli import DATA

SPEC = RunSpec("confirm-b00-0-default", "confirm", "default", (Variant("step", "", "", "default", "default"),), "cpu")
FACTS = NsysFacts(Path("/opt/nsys"), "2025.3.1", frozenset({"--trace", "--sample", "--env-var"}), None)


def launcher(*command, timeout=30.0, **options):
    return Launcher(ProgramOptions(command=command, **options), STANDARD, None, timeout)


def bare(tmp_path, program, *arguments, **options):
    folder = tmp_path / "captures" / SPEC.id
    folder.mkdir(parents=True)
    one = launcher(sys.executable, "-c", program, *arguments, **options)
    return one.capture(SPEC, arms_of(one.options)[0], folder, ""), folder


def test_a_run_that_ends_well(tmp_path):
    program = (
        "import os, sys; print(os.environ['PERFGATE_ARM'], sys.argv[1]); assert os.listdir(os.environ['PERFGATE_RUN_DIR'])"
    )
    captured, folder = bare(tmp_path, program, "{run}/x")

    assert ("", True, "none") == (captured.error, captured.complete, captured.spec.profiler)
    assert f"default {folder.resolve()}/program/x" == (folder / "worker.log").read_text().strip()
    assert captured == load_capture(folder / "capture.json")


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (
            "print('one'); print('two'); raise SystemExit(3)",
            "the program failed with exit status 3; its last lines: one | two; all of it",
        ),
        ("import os; os.kill(os.getpid(), 9)", "the program was ended by signal 9; it said nothing"),
        ("raise ValueError('boom')", "ValueError: boom; all of it: captures/confirm-b00-0-default/worker.log"),
    ],
)
def test_a_run_that_fails_says_its_last_words(tmp_path, program, said):
    captured, folder = bare(tmp_path, program)

    assert ("workload", False) == (captured.blame, captured.complete)
    assert captured.error.startswith("arm default: the program ")
    assert said in captured.error
    assert str(folder) not in captured.error


def test_a_run_that_hangs_is_ended_with_all_that_it_started(tmp_path):
    program = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    captured, folder = bare(tmp_path, program, timeout=2.0)
    child = Path(f"/proc/{(folder / 'worker.log').read_text().split()[0]}")
    deadline = time.monotonic() + 10
    while child.exists() and time.monotonic() < deadline:
        time.sleep(0.05)

    assert "did not end within 2 s, so it was ended with all that it started; its last lines: " in captured.error
    assert not child.exists()


def test_nsys_inside_the_launcher_is_seen_in_the_command_or_asked_for():
    inside = ("srun", "python", "-m", "perfgate.program.rank", "--", "python", "train.py")

    assert [True, True, False] == [
        launcher(*inside).per_rank,
        launcher("srun", "wrapped.sh", per_rank=True).per_rank,
        launcher("torchrun", "train.py").per_rank,
    ]


def test_steps_are_timed_with_nvtx_alone(tmp_path):
    assert "--trace=cuda,nvtx" in nsys_arguments(FACTS, tmp_path, "gpu")
    assert "--trace=nvtx" in nsys_arguments(FACTS, tmp_path, "ranges")
    assert not any("capture-range" in flag for flag in nsys_arguments(FACTS, tmp_path, "gpu"))


def test_no_report_is_an_error_and_an_empty_one_is_no_trace(tmp_path, monkeypatch):
    assert ("", f"nsys wrote no report; see {tmp_path.parent.name}/{tmp_path.name}") == slim_trace(FACTS, tmp_path)
    (tmp_path / "profile.nsys-rep").write_text("")
    for stored, expected in (("pub-2025.6.1-no-cuda", ("", "")), ("own-h200-2025.3.1-twoproc", ("trace.sqlite", ""))):
        export = (DATA / "nsys" / f"{stored}.sqlite").read_bytes()
        monkeypatch.setattr(
            "perfgate.program.launch.export", lambda facts, report, target, held=export: target.write_bytes(held)
        )

        assert expected == slim_trace(FACTS, tmp_path)


def test_traces_of_ranks_in_their_order(tmp_path):
    assert [] == traces_of(tmp_path)
    for rank in (10, 9):
        (tmp_path / f"rank-{rank}").mkdir()
        (tmp_path / f"rank-{rank}" / "trace.sqlite").touch()

    assert ["rank-9", "rank-10"] == [one.parent.name for one in traces_of(tmp_path)]


def inside(tmp_path, program):
    """A run whose ranks the program plays: what it leaves in ``rank-<n>`` of its capture's folder."""
    folder = tmp_path / "captures" / SPEC.id
    folder.mkdir(parents=True)
    options = ProgramOptions(command=(sys.executable, "-c", program, str(folder)), per_rank=True)
    one = Launcher(options, STANDARD, FACTS, 30.0)
    return one.capture(SPEC, arms_of(options)[0], folder, "gpu"), folder


def test_no_rank_that_failed_leaves_a_report_which_holds_the_environment(tmp_path):
    program = """
import pathlib, sys
for rank in range(2):
    folder = pathlib.Path(sys.argv[1], f"rank-{rank}")
    folder.mkdir()
    (folder / "profile.nsys-rep").write_text("HF_TOKEN=planted")
sys.exit(3)
"""
    captured, folder = inside(tmp_path, program)

    assert ("workload", False) == (captured.blame, captured.complete)
    assert [] == list(folder.glob("rank-*/*"))


def test_an_nsys_that_could_not_start_in_a_rank_is_not_the_programs_failure(tmp_path):
    program = """
import pathlib, sys
for rank in range(2):
    pathlib.Path(sys.argv[1], f"rank-{rank}").mkdir()
pathlib.Path(sys.argv[1], "rank-0", "profile.nsys-rep").touch()
print("Agent launcher failed.")
print("torchrun: rank 1 FAILED")
sys.exit(1)
"""
    captured, _ = inside(tmp_path, program)

    assert "profiler" == captured.blame
    assert captured.error.startswith("nsys failed in rank-1: Agent launcher failed; an nsys that was killed left its lock")
