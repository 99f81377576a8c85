"""What a profile must hold before it counts: every expected range, and on a GPU the work of every measured launch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pandas as pd

from perfgate.errors import PerfgateError
from perfgate.model import RunSpec
from perfgate.profilers.child import in_words
from perfgate.profilers.spec_file import DONE, load_done
from perfgate.profilers.versions import numbers
from perfgate.traces.schema import Trace

DOMAIN = "perfgate"  # of measured ranges

# API calls that must leave a GPU operation behind; used to find losses, never to attribute time
_LAUNCH_CALL = r"^(?:cuda|cu)(?:LaunchKernel|LaunchCooperativeKernel|GraphLaunch)"


def missing_from(trace: Path, spec: RunSpec, folder: Path) -> str:
    """What ``trace`` lacks against the worker's done file in ``folder``, in words with the next action, or ""."""
    from perfgate.traces import read

    try:
        done = load_done(folder / DONE)
        held = read(trace)
    except PerfgateError as error:
        return in_words(error, folder)
    if done is None:
        return ""  # the worker's own failure says more
    expected = {name: one.instances for name, one in done.variants.items() if one.status == "ok"}
    return missing_ranges(held, expected) or (missing_gpu_work(held) if expected and spec.device != "cpu" else "")


def missing_ranges(trace: Trace, expected: Mapping[str, int]) -> str:
    """Which ranges were recorded less (or more) often than the worker opened them, or ""."""
    ranges = trace.ranges[(trace.ranges["domain"] == DOMAIN) & trace.ranges["closed"]]
    recorded = ranges["name"].value_counts()
    wrong = {name: count for name, count in expected.items() if int(recorded.get(name, 0)) != count}
    if not wrong:
        return ""
    if not any(int(recorded.get(name, 0)) for name in expected):
        return f"the profile holds none of the {len(expected)} measured ranges; {lost_ranges_mend(trace.tool_version)}"
    name, count = next(iter(wrong.items()))
    more = f" (and {len(wrong) - 1} more ranges)" if len(wrong) > 1 else ""
    return f"range {name}: {int(recorded.get(name, 0))} of {count} instances recorded{more}; run it again, or `perfgate doctor`"


def missing_gpu_work(trace: Trace) -> str:
    """Why a GPU capture can't be measured: no GPU activity at all, or launches without their kernels; else ""."""
    said = profiler_said(trace.diagnostics)
    if not trace.has_gpu or trace.ops.empty:
        return f"the profile is empty: ranges, but no GPU activity{said}; `perfgate doctor` checks driver and profiler"
    lost, launched = lost_launches(trace)
    if lost:
        return f"{lost} of {launched} measured launches have no kernel in the profile{said}; run it again with fewer iterations"
    return ""


def profiler_said(diagnostics: Sequence[str]) -> str:
    """`` (the profiler said: ...)`` with what of its messages concerns the GPU, the driver first; else ""."""
    concerning = [text for text in diagnostics if re.search(r"CUDA|CUPTI|GPU|driver", text)]
    concerning.sort(key=lambda text: not re.search(r"driver|not supported|permission", text))
    return f" (the profiler said: {' '.join(concerning[0].split())[:200]})" if concerning else ""


def lost_launches(trace: Trace) -> tuple[int, int]:
    """(launch calls inside measured ranges whose GPU operation is missing, all such calls)."""
    calls = trace.launches[trace.launches["name"].str.match(_LAUNCH_CALL)]
    calls = calls[_inside_measured(calls, trace.ranges)]
    done = pd.MultiIndex.from_frame(trace.ops[["process", "correlation"]])
    here = pd.MultiIndex.from_frame(calls[["process", "correlation"]])
    return int((~here.isin(done)).sum()), len(calls)


def _inside_measured(calls: pd.DataFrame, ranges: pd.DataFrame) -> pd.Series:
    """True for calls that start inside a closed range of our domain (these never overlap within a process)."""
    measured = ranges[(ranges["domain"] == DOMAIN) & ranges["closed"]].sort_values("start")
    inside = pd.Series(False, index=calls.index)
    for process, mine in measured.groupby("process"):
        rows = calls[calls["process"] == process]
        place = mine["start"].searchsorted(rows["start"], side="right") - 1
        ends = mine["end"].to_numpy()[place.clip(min=0)]
        inside[rows.index] = (place >= 0) & (rows["start"].to_numpy() <= ends)
    return inside


def lost_ranges_mend(nsys_version: str) -> str:
    """The most likely reason why an nsys recorded no range at all, with what mends it."""
    try:
        nvtx = version("nvtx")
    except PackageNotFoundError:
        return "the Python package nvtx is missing: pip install 'nvtx<0.2.12'"
    if numbers(nvtx) >= (0, 2, 12) and numbers(nsys_version)[:2] <= (2024, 2):
        return f"nvtx {nvtx} emits ranges that nsys {nsys_version} rejects: pip install 'nvtx<0.2.12', or a newer nsys"
    return "`perfgate doctor` captures one probe range and says what breaks it"
