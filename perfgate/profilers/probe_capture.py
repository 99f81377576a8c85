"""One tiny capture that must hold its range: the only proof that this nvtx, this nsys and this driver work together."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from perfgate.errors import PerfgateError
from perfgate.profilers.checks import DOMAIN, missing_gpu_work, missing_ranges
from perfgate.profilers.child import in_words, last_line, run
from perfgate.profilers.child_environment import for_tools
from perfgate.profilers.nsys import TRACE, cleaned, make_trace, nsys_error, profile_arguments, scratch
from perfgate.profilers.nsys_found import NsysFacts
from perfgate.profilers.spec_file import WORKER_LOG

RANGE = "probe:range:fwd:doctor"
INSTANCES = 2

# run as `python -c`, so that neither perfgate nor a workload can be what fails
ON_CPU = f"""
import nvtx
for _ in range({INSTANCES}):
    nvtx.push_range({RANGE!r}, domain={DOMAIN!r})
    nvtx.pop_range(domain={DOMAIN!r})
"""
ON_GPU = f"""
import nvtx, torch
x = torch.ones(1 << 20, device="cuda")
torch.cuda.synchronize()
torch.cuda.profiler.start()
for _ in range({INSTANCES}):
    nvtx.push_range({RANGE!r}, domain={DOMAIN!r})
    x.add_(1)
    torch.cuda.synchronize()
    nvtx.pop_range(domain={DOMAIN!r})
torch.cuda.profiler.stop()
"""


def probe_capture(facts: NsysFacts, folder: Path, *, on_gpu: bool, timeout_s: float = 120.0) -> str:
    """What keeps nsys from recording a known range (on a GPU: with its kernel) of a tiny program, in words, or ""."""
    program = [sys.executable, "-c", ON_GPU if on_gpu else ON_CPU]
    return problem_of(facts, program, folder, on_gpu=on_gpu, timeout_s=timeout_s)


def problem_of(facts: NsysFacts, program: Sequence[str], folder: Path, *, on_gpu: bool, timeout_s: float) -> str:
    """As :func:`probe_capture`, for any program that opens :data:`RANGE` :data:`INSTANCES` times."""
    from perfgate.traces import read

    with cleaned(folder), scratch(facts) as (environment, flags):
        command = [str(facts.path), *profile_arguments(facts, folder, capture_range=on_gpu), *flags, *program]
        ended = run(command, {**for_tools(), **environment}, folder / WORKER_LOG, timeout_s=timeout_s)
        if ended.problem:
            return ended.problem
        if ended.code is None:
            return f"nsys did not end in {timeout_s:g} s and was killed{last_line(folder)}"
        if problem := nsys_error(folder, ended, capture_range=on_gpu):
            return problem
        if ended.code != 0:
            return f"the probe program failed (exit {ended.code}){last_line(folder)}"
        if problem := make_trace(facts, folder):
            return problem
        try:
            trace = read(folder / TRACE)
        except PerfgateError as error:
            return in_words(error, folder)
        return missing_ranges(trace, {RANGE: INSTANCES}) or (missing_gpu_work(trace) if on_gpu else "")
