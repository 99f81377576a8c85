"""Nsight Systems: runs a child under `nsys profile`, makes a slim SQLite trace of it, tells every way to fail apart."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from perfgate.errors import PerfgateError, ProfilerError, UnusableError
from perfgate.model import Capture, RunSpec
from perfgate.profilers.checks import lost_ranges_mend, missing_from, profiler_said
from perfgate.profilers.child import (
    Ended,
    in_words,
    last_line,
    log_lines,
    run_worker,
    settle,
    short,
    tidy_log,
    unwritable,
    worker_error,
)
from perfgate.profilers.child_environment import for_tools
from perfgate.profilers.nsys_found import NsysFacts, find_nsys, probe
from perfgate.profilers.spec_file import DONE, WORKER_LOG

TRACE = "trace.sqlite"
REPORT = "profile.nsys-rep"
STREAM = "profile.qdstrm"
STARTS = 2  # nsys has been seen to fail once before it started the program (sem_open, on a loaded machine)
EXPORT_SECONDS = 600.0
LONGEST_SCRATCH = 50  # characters of the temporary folder's path: nsys makes Unix sockets in it, whose paths end at 107
SQLITE_MAGIC = b"SQLite format 3\0"


@dataclass(frozen=True)
class NsysProfiler:
    """Profiles each worker with the nsys of ``facts``; the report is deleted after export unless ``keep_report``.

    A report embeds the child's environment and can't be scrubbed, which is why it is not kept by default.
    """

    facts: NsysFacts
    keep_report: bool = False
    name: str = "nsys"

    @classmethod
    def found(cls, *, keep_report: bool = False) -> NsysProfiler:
        """The profiler around the nsys found here. Raises :class:`ProfilerError` where none is found or it can't report."""
        facts = probe(find_nsys())
        if facts.importer is None:
            raise ProfilerError(f"nsys {facts.version} is unusable: {facts.importer_problem}", facts.importer_mend)
        return cls(facts, keep_report)

    def capture(self, spec: RunSpec, folder: Path, *, timeout_s: float) -> Capture:
        """See :class:`perfgate.profilers.Profiler`; the trace is ``trace.sqlite``, slimmed and without the environment."""
        spec = replace(spec, profiler=self.name)
        with cleaned(folder, keep_report=self.keep_report):
            capture_range = spec.device != "cpu"
            arguments = profile_arguments(self.facts, folder, capture_range=capture_range)
            note = ""
            for start in range(STARTS):
                with scratch(self.facts) as (environment, flags):
                    before = [str(self.facts.path), *arguments, *flags]
                    ended = run_worker(spec, folder, timeout_s=timeout_s, before=before, extra=environment)
                error = nsys_error(folder, ended, capture_range=capture_range)
                if not error or ended.code == 0:
                    break
                if start + 1 < STARTS:
                    note = f"{spec.id}: nsys was started again: {error}"
            died = "" if error else worker_error(folder, ended, timeout_s)
            if not error and not died:
                error = make_trace(self.facts, folder) or missing_from(folder / TRACE, spec, folder)
            tidy_log(folder)
            trace = TRACE if (folder / TRACE).exists() else ""
            return settle(spec, folder, ended, trace=trace, workload_error=died, profiler_error=error, note=note)


@contextmanager
def cleaned(folder: Path, *, keep_report: bool = False) -> Iterator[None]:
    """Whatever happens inside, only the slim trace stays: raw files embed the whole environment."""
    try:
        yield
    finally:
        for pattern in ("full.sqlite*", "*.qdstrm", *(() if keep_report else ("*.nsys-rep",))):
            for path in folder.glob(pattern):
                path.unlink(missing_ok=True)


@contextmanager
def scratch(facts: NsysFacts) -> Iterator[tuple[dict[str, str], list[str]]]:
    """(variables for nsys, flags that undo them for the program): a folder of its own for nsys's scratch files.

    An nsys that is killed leaves a .qdstrm of gigabytes there, with the whole environment in it; the folder is removed.
    """
    usual = tempfile.gettempdir()
    if not facts.offers("--env-var") or len(usual) > LONGEST_SCRATCH or "," in usual:
        yield {}, []
        return
    with tempfile.TemporaryDirectory(prefix="nsys-", ignore_cleanup_errors=True) as folder:
        yield {"TMPDIR": folder}, [f"--env-var=TMPDIR={usual}"]


def make_trace(facts: NsysFacts, folder: Path) -> str:
    """Makes ``trace.sqlite`` of what nsys left in ``folder``: import, export, slim. What failed, in words, or ""."""
    from perfgate.traces.slim import slim

    full = folder / "full.sqlite"
    try:
        export(facts, ready_report(facts, folder), full)
        slim(full, folder / TRACE)
    except UnusableError as error:
        said = profiler_said(error.mend.split(" / "))
        return f"the profile is empty: neither ranges nor GPU work in it{said}; {lost_ranges_mend(facts.version)}"
    except PerfgateError as error:
        return in_words(error, folder)
    except OSError as error:
        return unwritable(folder, error)
    return ""


def profile_arguments(facts: NsysFacts, folder: Path, *, capture_range: bool) -> list[str]:
    """What stands between nsys and the program, as far as this version offers it.

    ``capture_range`` is for programs that call cudaProfilerStart and Stop. Nobody does so without a GPU, and no foreign
    program does (with it: exit 0 and no report). cuda is traced even on a CPU: --trace=nvtx alone has been seen to hang.
    """
    wanted = [
        "--trace=cuda,nvtx",
        "--sample=none",
        "--cpuctxsw=none",
        "--cuda-graph-trace=node",
        "--discard-environment=true",
        "--force-overwrite=true",
    ]
    if capture_range:
        wanted += ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
    offered = [flag for flag in wanted if facts.offers(flag.split("=")[0])]
    output = str(folder.resolve() / "profile").replace("%", "%%")  # nsys expands %p, %h, %q{...}
    return ["profile", *offered, f"--output={output}"]


def nsys_error(folder: Path, ended: Ended, *, capture_range: bool) -> str:
    """What nsys itself got wrong, in words, or "".

    A program that fails or dies under nsys leaves a report, or none where its capture range had not begun; that is the
    program's failure (:func:`perfgate.profilers.child.worker_error`), not nsys's.
    """
    if ended.problem or ended.code is None or (folder / REPORT).exists() or (folder / STREAM).exists():
        return ""
    log = f"{short(folder)}/{WORKER_LOG}"
    if ended.code == 0 and capture_range and (folder / DONE).exists():
        return f"nsys captured nothing: the child never called cudaProfilerStart (no GPU in it?); see {log}"
    if ended.code != 0 and (ended.code > 128 or any(line.startswith(_PROGRAM_RAN) for line in log_lines(folder))):
        return ""
    said = last_line(folder)
    how = "ended with exit 0" if ended.code == 0 else f"failed (exit {ended.code})"
    if STUCK in said:
        return f"nsys {how}{said}; {STUCK_MEND}"
    return f"nsys {how} and wrote no report{said}; `perfgate doctor` checks it, {log} holds all it said"


# What every nsys says, after ten seconds, once one was killed while it held the lock on the list of sessions that all share.
STUCK = "Agent launcher failed"
STUCK_MEND = "an nsys that was killed left its lock: where `pgrep -x nsys` finds none, `rm /dev/shm/NSys-*` frees it"

# what stands in the log of a program that nsys did start: nsys's own last word, or an exception's first
_PROGRAM_RAN = ("Generated:", "No reports were generated", "Traceback (most recent call last)", "Fatal Python error")


def ready_report(facts: NsysFacts, folder: Path) -> Path:
    """The report in ``folder``, imported from a left-over .qdstrm where nsys could not do that itself.

    Raises :class:`ProfilerError` that names what is missing.
    """
    report, stream = folder / REPORT, folder / STREAM
    if report.exists():
        return report
    if facts.importer is None:
        text = f"nsys left {STREAM}, which was never imported: {facts.importer_problem}"
        raise ProfilerError(text, facts.importer_mend)
    code, said = _tool([str(facts.importer), "-i", str(stream), "-o", str(report)])
    if not report.exists():
        raise ProfilerError(f"nsys left {STREAM} and its importer failed (exit {code}): {said}", f"ldd {facts.importer}")
    return report


def export(facts: NsysFacts, report: Path, target: Path) -> None:
    """Exports ``report`` to SQLite at ``target``; never reuses a file that was there.

    Raises :class:`ProfilerError` where nsys fails, writes nothing, or writes something else.
    """
    target.unlink(missing_ok=True)
    command = [str(facts.path), "export", "--type=sqlite", "--force-overwrite=true", f"--output={target}", str(report)]
    code, said = _tool(command)
    again = f"nsys export --type sqlite {report.name}"
    if code != 0:
        raise ProfilerError(
            f"nsys export failed (exit {code}): {said}", f"try by hand: {again} (--keep-report keeps the report)"
        )
    if not target.exists():
        raise ProfilerError(f"nsys export ended with exit 0 and wrote no file: {said}", f"try by hand: {again}")
    with target.open("rb") as file:
        if file.read(len(SQLITE_MAGIC)) != SQLITE_MAGIC:
            raise ProfilerError("nsys export wrote a file that is no SQLite database", "is the disk full? `df -h .`")


def _tool(command: Sequence[str]) -> tuple[int, str]:
    """(exit status, last line said) of an nsys tool; a timeout or a failed start reads as a failure."""
    try:
        ran = subprocess.run(
            command, capture_output=True, timeout=EXPORT_SECONDS, env=for_tools(), stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        return -1, f"no end after {EXPORT_SECONDS:g} s"
    except OSError as error:
        return -1, error.strerror or str(error)
    said = (ran.stderr + b"\n" + ran.stdout).decode(errors="replace").replace("\r", "\n").splitlines()
    return ran.returncode, next((line.strip()[:300] for line in reversed(said) if line.strip()), "it said nothing")
