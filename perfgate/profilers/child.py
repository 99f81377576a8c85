"""Starting, watching and ending one child, and what its end means."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from perfgate.errors import PerfgateError, UnusableError
from perfgate.model import Blame, Capture, RunSpec
from perfgate.profilers.child_environment import for_worker
from perfgate.profilers.spec_file import CAPTURE, DONE, SPEC, WORKER_LOG, dump_capture, dump_spec, load_done

_PATIENCE = 0.1  # seconds for one look at one of several children
GRACE_SECONDS = 3.0  # between SIGTERM and SIGKILL
_MARK = "PERFGATE_CHILD"  # in the environment of everything a child starts: nsys's agent leaves our process group

# every file that a capture may leave in its folder
OURS = (SPEC, DONE, CAPTURE, WORKER_LOG, "results.jsonl", "trace.*", "profile.*", "full.sqlite*")

_NSYS_PROGRESS = re.compile(
    r"Generating '|\[\d+/\d+\] |Generated:|/\S*\.(nsys-rep|qdstrm|sqlite)$|Processing events|Collecting data|"
    r"WARNING: |Capture range (started|ended)"
)


@dataclass(frozen=True)
class Ended:
    """How a command ended: ``code`` is its exit status, negative for a signal, ``None`` where it was ended at its timeout."""

    code: int | None
    seconds: float
    problem: str = ""  # why it could not even be started


def worker_command(folder: Path) -> list[str]:
    """The command of a worker that reads ``folder/spec.json``."""
    return [sys.executable, "-m", "perfgate.worker", str(folder.resolve() / SPEC)]


def run_worker(
    spec: RunSpec,
    folder: Path,
    *,
    timeout_s: float,
    before: Sequence[str] = (),
    extra: Mapping[str, str] = MappingProxyType({}),
) -> Ended:
    """Writes the spec and runs its worker to the end, ``before`` (a profiler's command) in front, ``extra`` variables set.

    What an earlier run left in ``folder`` is removed first, so that no stale file can pass for a new one.
    """
    (ended,) = run_workers([(spec, folder)], timeout_s=timeout_s, before=before, extra=extra)
    return ended


def run_workers(
    work: Sequence[tuple[RunSpec, Path]],
    *,
    timeout_s: float,
    before: Sequence[str] = (),
    extra: Mapping[str, str] = MappingProxyType({}),
) -> list[Ended]:
    """:func:`run_worker` of several (spec, folder) at one time."""
    refused: dict[int, Ended] = {}
    for number, (spec, folder) in enumerate(work):
        try:
            prepare(spec, folder)
        except OSError as error:
            refused[number] = Ended(None, 0.0, unwritable(folder, error))
    ready = [
        (
            [*before, *worker_command(folder)],
            {**for_worker(spec.mode, run_folder=folder.parent.parent), **extra},
            folder / WORKER_LOG,
        )
        for number, (spec, folder) in enumerate(work)
        if number not in refused
    ]
    ran = iter(run_together(ready, timeout_s=timeout_s))
    return [refused[number] if number in refused else next(ran) for number in range(len(work))]


def prepare(spec: RunSpec, folder: Path) -> None:
    """``folder`` with the spec in it and without what an earlier capture left there. Raises ``OSError``."""
    folder.mkdir(parents=True, exist_ok=True)
    for pattern in OURS:
        for stale in folder.glob(pattern):
            stale.unlink()
    dump_spec(spec, folder / SPEC)


def run(command: Sequence[str], environment: Mapping[str, str], log: Path, *, timeout_s: float) -> Ended:
    """Runs ``command`` in a session of its own, output to ``log``; nothing that it started outlives this call.

    On timeout, Ctrl-C or any other exception everything is ended first; exceptions are raised again.
    """
    (ended,) = run_together([(command, environment, log)], timeout_s=timeout_s)
    return ended


def run_together(commands: Sequence[tuple[Sequence[str], Mapping[str, str], Path]], *, timeout_s: float) -> list[Ended]:
    """:func:`run` of several (command, environment, log) at one time; each has ``timeout_s`` for itself."""
    started: list[tuple[subprocess.Popen[bytes] | None, str, float]] = []
    ended: dict[int, Ended] = {}
    try:
        for number, (command, environment, log) in enumerate(commands):
            mark = uuid.uuid4().hex
            try:
                started.append((_start(command, environment, log, mark), mark, time.monotonic()))
            except OSError as error:
                problem = f"can't start {Path(command[0]).name}: {error.strerror or error}; try `perfgate doctor`"
                ended[number] = Ended(None, 0.0, problem)
                started.append((None, mark, 0.0))
        while len(ended) < len(started):
            for number, (process, _, begun) in enumerate(started):
                if number not in ended and process is not None and (end := _waited(process, begun, timeout_s)) is not None:
                    ended[number] = end
    finally:
        for process, mark, _ in started:
            if process is not None:
                end_all(process, mark)
    return [ended[number] for number in range(len(commands))]


def _start(command: Sequence[str], environment: Mapping[str, str], log: Path, mark: str) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**environment, _MARK: mark},
            start_new_session=True,
        )


def _waited(process: subprocess.Popen[bytes], begun: float, timeout_s: float) -> Ended | None:
    """How it ended, after a short wait; ``None`` while it may still run."""
    try:
        return Ended(process.wait(min(_PATIENCE, max(0.0, begun + timeout_s - time.monotonic()))), time.monotonic() - begun)
    except subprocess.TimeoutExpired:
        return Ended(None, timeout_s) if time.monotonic() - begun >= timeout_s else None


def end_all(process: subprocess.Popen[bytes], mark: str) -> None:
    """Ends the process, its group and every process that carries ``mark``: SIGTERM, a grace, SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        _signal_all(process, mark, number)
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline:
            if process.poll() is not None and not _marked(mark):
                return
            time.sleep(0.02)


def _signal_all(process: subprocess.Popen[bytes], mark: str, number: signal.Signals) -> None:
    if process.poll() is None:
        _send(os.killpg, process.pid, number)
    for pid in _marked(mark):
        _send(os.kill, pid, number)


def _send(kill: Callable[[int, int], None], pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        kill(pid, number)


def _marked(mark: str) -> list[int]:
    """Live processes with ``mark`` in their environment, where /proc tells (Linux)."""
    wanted = f"{_MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def settle(
    spec: RunSpec,
    folder: Path,
    ended: Ended,
    *,
    trace: str = "",
    workload_error: str = "",
    profiler_error: str = "",
    note: str = "",
) -> Capture:
    """The capture that a child left behind, written to ``capture.json``; complete where there is no error.

    The workload's own failure comes first: a profiler has nothing to show of a program that died.
    """
    error = workload_error or profiler_error
    blame: Blame = "workload" if workload_error else "profiler" if profiler_error else ""
    capture = Capture(spec, short(folder), trace, not error, error, round(ended.seconds, 3), blame, note)
    try:
        dump_capture(capture, folder / CAPTURE)
    except OSError as problem:
        return replace(capture, complete=False, error=error or unwritable(folder, problem), blame=blame or "profiler")
    return capture


def worker_error(folder: Path, ended: Ended, timeout_s: float) -> str:
    """What went wrong with the worker, in words, or "" where it came to its own end."""
    log = f"{short(folder)}/{WORKER_LOG}"
    if ended.problem:
        return ended.problem
    if ended.code is None:
        return f"the child was ended after {timeout_s:g} s; raise --timeout, or see where it hangs: {log}"
    try:
        done = load_done(folder / DONE)
    except UnusableError as error:
        return f"{error.text}; see {log}"
    if ended.code in (-9, 137):
        return f"the child was killed (signal 9, out of memory?); see `dmesg` and {log}"
    if ended.code < 0 or ended.code > 128:
        number = -ended.code if ended.code < 0 else ended.code - 128
        return f"the child died of {_signal_name(number)}; see {log}{last_line(folder)}"
    if ended.code != 0:
        return f"the worker failed (exit {ended.code}); see {log}{last_line(folder)}"
    if done is None:
        return f"the worker ended without its done file; see {log}{last_line(folder)}"
    if not done.complete:
        return f"the worker stopped before its end; see {log}{last_line(folder)}"
    return ""


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"exit status {number + 128}"


def last_line(folder: Path) -> str:
    """``: <the last line that the program said>``, shortened, or ""; nsys's own progress is no such line."""
    said = [line for line in log_lines(folder) if not _NSYS_PROGRESS.match(line)]
    return f": {without_place(said[-1], folder)[:200]}" if said else ""


def tidy_log(folder: Path) -> None:
    """Takes nsys's progress, which is most of a log and names this machine's folders, out of the worker's log."""
    log = folder / WORKER_LOG
    with suppress(OSError):
        lines = log.read_bytes().decode(errors="replace").replace("\r", "\n").split("\n")
        kept = [line for line in lines if not _NSYS_PROGRESS.match(line.strip())]
        log.write_text("\n".join(kept))


def log_lines(folder: Path) -> list[str]:
    """The last lines of the worker's log, stripped, without empty ones."""
    try:
        text = (folder / WORKER_LOG).read_bytes()[-8192:].decode(errors="replace")
    except OSError:
        return []
    return [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip()]


def short(folder: Path) -> str:
    """A capture's folder relative to its run directory: no path of this machine in any stored file."""
    return f"{folder.parent.name}/{folder.name}"


def without_place(text: str, folder: Path) -> str:
    """``text`` with the capture's absolute path shortened, for errors that other modules wrote."""
    return text.replace(str(folder.resolve()), short(folder)).replace(str(folder), short(folder))


def in_words(error: PerfgateError, folder: Path) -> str:
    """An error and its mend as one stored sentence."""
    return without_place(f"{error.text}; {error.mend}" if error.mend else error.text, folder)


def unwritable(folder: Path, error: OSError) -> str:
    """Why the capture's folder could not be written, with the next action."""
    return f"can't write {short(folder)}: {error.strerror or error}; free space or choose another --out"
