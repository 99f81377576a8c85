from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from perfgate.model import RunSpec
from perfgate.profilers import child
from perfgate.profilers.child import Ended, run, run_worker, worker_error
from perfgate.profilers.spec_file import load_spec

Alive = Callable[[int], bool]

# a program that starts a process in a session of its own and tells its number
WITH_A_CHILD = (
    "import subprocess, sys; p = subprocess.Popen(['sleep', '600'], start_new_session=True); print(p.pid, flush=True);"
)


def first_number(log: Path) -> int:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if log.exists() and log.read_text().strip():
            return int(log.read_text().split()[0])
        time.sleep(0.01)
    raise AssertionError(f"{log} stayed empty")


def test_the_exit_status_and_all_output_are_kept(tmp_path: Path) -> None:
    ended = run(["/bin/sh", "-c", "echo out; echo err >&2; exit 42"], {}, tmp_path / "log", timeout_s=30)

    assert (42, "", "out\nerr\n") == (ended.code, ended.problem, (tmp_path / "log").read_text())


def test_only_the_given_environment_is_seen(tmp_path: Path) -> None:
    run(["/usr/bin/env"], {"A": "1"}, tmp_path / "log", timeout_s=30)

    assert {"A", "PERFGATE_CHILD"} == {line.split("=")[0] for line in (tmp_path / "log").read_text().splitlines()}


def test_a_timeout_ends_children_of_children_too(tmp_path: Path, alive: Alive) -> None:
    log = tmp_path / "log"
    ended = run([sys.executable, "-c", WITH_A_CHILD + "import time; time.sleep(600)"], {}, log, timeout_s=3)

    assert (None, False) == (ended.code, alive(first_number(log)))


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path, alive: Alive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "GRACE_SECONDS", 0.3)
    log = tmp_path / "log"
    text = "import os, signal, time; signal.signal(15, signal.SIG_IGN); print(os.getpid(), flush=True); time.sleep(600)"
    run([sys.executable, "-c", text], {}, log, timeout_s=2)

    assert not alive(first_number(log))


def test_what_a_successful_child_left_running_is_ended(tmp_path: Path, alive: Alive) -> None:
    log = tmp_path / "log"
    ended = run([sys.executable, "-c", WITH_A_CHILD], {}, log, timeout_s=30)

    assert (0, False) == (ended.code, alive(first_number(log)))


def test_ctrl_c_ends_the_child_and_is_raised_again(tmp_path: Path, alive: Alive) -> None:
    log = tmp_path / "log"
    text = (
        "import sys; from pathlib import Path; from perfgate.profilers.child import run\n"
        f"program = {WITH_A_CHILD + 'import time; time.sleep(600)'!r}\n"
        f"run([sys.executable, '-c', program], {{}}, Path({str(log)!r}), timeout_s=600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", text], stderr=subprocess.PIPE)
    started = first_number(log)
    parent.send_signal(signal.SIGINT)
    _, said = parent.communicate(timeout=60)

    assert (b"KeyboardInterrupt" in said, False) == (True, alive(started))


def test_children_run_at_one_time_and_each_end_is_its_own(tmp_path: Path) -> None:
    """Each of the first two waits for a file that the other writes; the third can't be started, the fourth never ends."""
    meet = "touch $MINE; while [ ! -e $OTHERS ]; do sleep 0.05; done; exit $CODE"
    mine, others = str(tmp_path / "a"), str(tmp_path / "b")
    path = {"PATH": os.environ["PATH"]}
    ended = child.run_together(
        [
            (["/bin/sh", "-c", meet], {**path, "MINE": mine, "OTHERS": others, "CODE": "3"}, tmp_path / "1"),
            (["/bin/sh", "-c", meet], {**path, "MINE": others, "OTHERS": mine, "CODE": "4"}, tmp_path / "2"),
            ([str(tmp_path / "nothing")], {}, tmp_path / "3"),
            (["/bin/sh", "-c", "exec sleep 600"], path, tmp_path / "4"),
        ],
        timeout_s=5,
    )

    assert [3, 4, None, None] == [one.code for one in ended]
    assert ["", "", "can't start nothing: No such file or directory; try `perfgate doctor`", ""] == [
        one.problem for one in ended
    ]


def test_a_program_that_is_not_there_is_data(tmp_path: Path) -> None:
    ended = run([str(tmp_path / "nsys")], {}, tmp_path / "log", timeout_s=5)

    assert "can't start nsys: No such file or directory; try `perfgate doctor`" == ended.problem


def test_the_worker_finds_its_spec_and_nothing_stale(folder: Path, spec: RunSpec, worker: Callable[[str], None]) -> None:
    folder.mkdir(parents=True)
    for stale in ("done.json", "trace.sqlite", "profile.nsys-rep", "capture.json"):
        (folder / stale).write_text("old")
    (folder / "notes.txt").write_text("not ours")
    worker("pass")
    run_worker(spec, folder, timeout_s=30)

    assert (spec, ["notes.txt", "spec.json", "worker.log"]) == (load_spec(folder / "spec.json"), sorted(os.listdir(folder)))


def test_an_unwritable_folder_is_data(tmp_path: Path, spec: RunSpec) -> None:
    (tmp_path / "captures").write_text("a file, where a folder should be")
    ended = run_worker(spec, tmp_path / "captures" / spec.id, timeout_s=5)

    assert f"can't write captures/{spec.id}: Not a directory; free space or choose another --out" == ended.problem


@pytest.mark.parametrize(
    ("ended", "done", "said", "expected"),
    [
        (Ended(None, 5.0), None, "", "the child was ended after 5 s; raise --timeout"),
        (Ended(137, 1.0), None, "", "the child was killed (signal 9, out of memory?)"),
        (Ended(-9, 1.0), None, "", "the child was killed (signal 9, out of memory?)"),
        (Ended(139, 1.0), None, "", "the child died of signal 11 (SIGSEGV)"),
        (Ended(-6, 1.0), None, "", "the child died of signal 6 (SIGABRT)"),
        (
            Ended(1, 1.0),
            None,
            "Traceback\nValueError: boom\n",
            "the worker failed (exit 1); see captures/x/worker.log: ValueError: boom",
        ),
        (Ended(0, 1.0), None, "", "the worker ended without its done file"),
        (Ended(0, 1.0), '{"complete": false}', "", "the worker stopped before its end"),
        (Ended(0, 1.0), "{", "", "done.json is not readable"),
        (Ended(42, 1.0), '{"complete": true}', "", "the worker failed (exit 42)"),
    ],
)
def test_every_way_to_fail_has_its_own_words(tmp_path: Path, ended: Ended, done: str | None, said: str, expected: str) -> None:
    folder = tmp_path / "captures" / "x"
    folder.mkdir(parents=True)
    (folder / "worker.log").write_text(said)
    if done is not None:
        (folder / "done.json").write_text(done)

    assert worker_error(folder, ended, 5.0).startswith(expected)


def test_a_worker_that_came_to_its_end_has_no_error(tmp_path: Path) -> None:
    (tmp_path / "done.json").write_text('{"complete": true, "variants": {}}')

    assert "" == worker_error(tmp_path, Ended(0, 1.0), 5.0)


def test_nsyss_own_progress_is_not_what_the_program_said(tmp_path: Path) -> None:
    progress = "Generating '/tmp/nsys-report-1.qdstrm'\n[1/1] [0%     ] profile.nsys-rep\r[1/1] [===100%] profile.nsys-rep\n"
    (tmp_path / "worker.log").write_text(f"RuntimeError: boom\n{progress}Generated:\n    /a/b/profile.nsys-rep\n")

    assert ": RuntimeError: boom" == child.last_line(tmp_path)


def test_a_tidy_log_holds_what_the_program_said(tmp_path: Path) -> None:
    (tmp_path / "worker.log").write_text(
        "Generating '/tmp/nsys-report-1.qdstrm'\nbefore\n[1/1] [=100%] a\r[1/1] [=] a\n\nafter  \n"
    )
    child.tidy_log(tmp_path)

    assert "before\n\nafter  \n" == (tmp_path / "worker.log").read_text()


def test_a_stored_error_holds_no_path_of_this_machine(tmp_path: Path) -> None:
    folder = tmp_path / "captures" / "x"
    folder.mkdir(parents=True)

    assert "captures/x/trace.json is broken" == child.without_place(f"{folder}/trace.json is broken", folder)
