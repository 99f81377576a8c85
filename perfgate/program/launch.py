"""One run of a program: its folder, its environment, nsys around it or inside its launcher, and what its end means."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from perfgate.determinism.contract import Contract
from perfgate.errors import PerfgateError, UnusableError
from perfgate.model import Capture, RunSpec
from perfgate.profilers.child import Ended, in_words, log_lines, run, settle, short, tidy_log, without_place
from perfgate.profilers.nsys import (
    REPORT,
    STARTS,
    STREAM,
    STUCK,
    STUCK_MEND,
    TRACE,
    cleaned,
    export,
    nsys_error,
    profile_arguments,
    ready_report,
    scratch,
)
from perfgate.profilers.nsys_found import NsysFacts
from perfgate.profilers.spec_file import WORKER_LOG, dump_spec
from perfgate.program.arms import METRICS, STEPS, Arm, command_of, environment_of
from perfgate.program.options import ProgramOptions
from perfgate.traces.slim import slim

PROGRAM = "program"  # the run's own folder inside its capture's
RANK_MODULE = "perfgate.program.rank"
RANK_CAPTURE = "PERFGATE_RANK_CAPTURE"  # tells the wrapper inside the launcher where and how to profile
SHOWN_LINES = 6  # of the program's log in an error
Watched = Literal["gpu", "ranges", ""]  # nsys with CUDA and NVTX, with NVTX alone, nothing


@dataclass(frozen=True)
class Launcher:
    """Runs the program of ``options``; ``facts`` is ``None`` where no nsys is needed."""

    options: ProgramOptions
    contract: Contract
    facts: NsysFacts | None
    timeout_s: float
    keep_report: bool = False

    @property
    def per_rank(self) -> bool:
        """Whether nsys runs inside the launcher, once per rank."""
        return self.options.per_rank or RANK_MODULE in self.options.command

    def capture(self, spec: RunSpec, arm: Arm, folder: Path, watched: Watched) -> Capture:
        """One run of ``arm`` to its end, or to the timeout; whatever it started is ended then.

        The program's folder, log and (where ``watched``) traces stay in ``folder``. Raises ``UsageError`` where the arm may not
        run as it is asked to.
        """
        spec = replace(spec, profiler="nsys" if watched else "none")
        own = (folder / PROGRAM).resolve()
        for name in (METRICS, STEPS):
            (own / name).mkdir(parents=True, exist_ok=True)
        dump_spec(spec, folder / "spec.json")
        environment = environment_of(arm, self.options, own, os.environ, self.contract)
        command = command_of(arm, self.options, own)
        if not watched:
            ended = self._run(command, environment, folder)
            return settle(spec, folder, ended, workload_error=self._failed(arm, ended, folder))
        environment["PERFGATE_PROFILED"] = "1"
        watching = self._inside if self.per_rank else self._around
        with cleaned(folder, keep_report=self.keep_report):
            return watching(spec, arm, folder, command, environment, watched)

    def _around(
        self, spec: RunSpec, arm: Arm, folder: Path, command: Sequence[str], environment: dict[str, str], watched: Watched
    ) -> Capture:
        """One nsys over the launcher: one report holds the processes of all ranks."""
        note = ""
        for start in range(STARTS):
            with scratch(self._nsys) as (extra, flags):
                before = [str(self._nsys.path), *nsys_arguments(self._nsys, folder, watched), *flags]
                ended = self._run([*before, *command], {**environment, **extra}, folder)
            error = nsys_error(folder, ended, capture_range=False)
            if not error or ended.code == 0:
                break
            if start + 1 < STARTS:
                note = f"{spec.id}: nsys was started again: {error}"
        died = "" if error else self._failed(arm, ended, folder)
        trace = ""
        if not error and not died:
            trace, error = slim_trace(self._nsys, folder)
        tidy_log(folder)
        return settle(spec, folder, ended, trace=trace, workload_error=died, profiler_error=error, note=note)

    def _inside(
        self, spec: RunSpec, arm: Arm, folder: Path, command: Sequence[str], environment: dict[str, str], watched: Watched
    ) -> Capture:
        """One nsys per rank, which the wrapper inside the launcher starts: ``rank-<n>/`` for each."""
        where = {"nsys": str(self._nsys.path), "folder": str(folder.resolve()), "watched": watched}
        ended = self._run(command, {**environment, RANK_CAPTURE: json.dumps(where)}, folder)
        died = self._failed(arm, ended, folder)
        error, traces = "", []
        ranks = sorted(folder.glob("rank-*"), key=lambda one: int(one.name.partition("-")[2]))
        if not died and not ranks:
            error = f"no rank left a report: the launcher must start each rank as `python -m {RANK_MODULE} -- PROGRAM`"
        with ExitStack() as stack:
            for rank in ranks:
                stack.enter_context(cleaned(rank, keep_report=self.keep_report))
            silent = [rank.name for rank in ranks if not wrote_report(rank)]
            if died and silent and any(STUCK in line for line in log_lines(folder)):
                died, error = "", f"nsys failed in {', '.join(silent)}: {STUCK}; {STUCK_MEND}"
            for rank in () if died or error else ranks:
                trace, problem = slim_trace(self._nsys, rank)
                error = error or (f"{rank.name}: {problem}" if problem else "")
                traces.append(f"{rank.name}/{trace}")
        tidy_log(folder)
        trace = traces[0] if traces and not error else ""
        return settle(spec, folder, ended, trace=trace, workload_error=died, profiler_error=error)

    @property
    def _nsys(self) -> NsysFacts:
        assert self.facts is not None  # noqa: S101 — prepare() finds it wherever something is watched
        return self.facts

    def _run(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> Ended:
        return run(command, environment, folder / WORKER_LOG, timeout_s=self.timeout_s)

    def _failed(self, arm: Arm, ended: Ended, folder: Path) -> str:
        """What went wrong with the program, in words with its last lines, or "" where it ended with exit status 0."""
        log = f"{short(folder)}/{WORKER_LOG}"
        if ended.problem:
            return f"arm {arm.name}: {ended.problem.removesuffix('; try `perfgate doctor`')}: is it on PATH, and executable?"
        if ended.code is None:
            return (
                f"arm {arm.name}: the program did not end within {self.timeout_s:g} s, so it was ended with all that it started"
                f"{self._said(folder)}; raise --timeout, or see where it hangs: {log}"
            )
        if ended.code == 0:
            return ""
        how = f"was ended by signal {-ended.code}" if ended.code < 0 else f"failed with exit status {ended.code}"
        return f"arm {arm.name}: the program {how}{self._said(folder)}; all of it: {log}"

    def _said(self, folder: Path) -> str:
        tidy_log(folder)
        lines = [without_place(line, folder)[:200] for line in log_lines(folder)[-SHOWN_LINES:]]
        return f"; its last lines: {' | '.join(lines)}" if lines else "; it said nothing"


def nsys_arguments(facts: NsysFacts, folder: Path, watched: Watched) -> list[str]:
    """What stands between nsys and the program. ``ranges``: NVTX alone, so that CUPTI costs no step anything."""
    arguments = profile_arguments(facts, folder, capture_range=False)
    return ["--trace=nvtx" if one.startswith("--trace=") and watched == "ranges" else one for one in arguments]


def slim_trace(facts: NsysFacts, folder: Path) -> tuple[str, str]:
    """(``trace.sqlite`` made of the report in ``folder``, what failed). ("", "") where the report holds nothing at all."""
    full = folder / "full.sqlite"
    try:
        if not wrote_report(folder):
            return "", f"nsys wrote no report; see {short(folder)}"
        export(facts, ready_report(facts, folder), full)
        slim(full, folder / TRACE)
    except UnusableError:
        return "", ""
    except PerfgateError as error:
        return "", in_words(error, folder)
    except OSError as error:
        return "", f"can't write {short(folder)}: {error.strerror or error}; free space or choose another --out"
    return TRACE, ""


def wrote_report(folder: Path) -> bool:
    """Whether nsys left anything in ``folder``: else it never started its program."""
    return any((folder / name).exists() for name in (REPORT, STREAM))


def traces_of(folder: Path) -> list[Path]:
    """The traces that a run left: one of all ranks, or one per rank in their order."""
    ranks = sorted(folder.glob(f"rank-*/{TRACE}"), key=lambda one: int(one.parent.name.partition("-")[2]))
    return ranks or [one for one in (folder / TRACE,) if one.exists()]
