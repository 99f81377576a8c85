"""The embedded default: torch.profiler inside the worker, where nsys or a GPU is missing.

Never under nsys: only one of them can subscribe to CUPTI. torch is imported in the worker only, not in the parent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from perfgate.model import Capture, RunSpec
from perfgate.profilers.checks import missing_from
from perfgate.profilers.child import run_worker, settle, short, worker_error

TRACE = "trace.json"


@dataclass(frozen=True)
class TorchProfiler:
    """Runs the worker, which records itself with :func:`recording` because its spec says ``profiler: torch``."""

    name: str = "torch"

    def capture(self, spec: RunSpec, folder: Path, *, timeout_s: float) -> Capture:
        """See :class:`perfgate.profilers.Profiler`; the trace is a Chrome trace, ``trace.json``."""
        spec = replace(spec, profiler=self.name)
        ended = run_worker(spec, folder, timeout_s=timeout_s)
        trace = TRACE if (folder / TRACE).exists() else ""
        died = worker_error(folder, ended, timeout_s)
        lost = f"torch.profiler left no {TRACE}; see {short(folder)}/worker.log"
        error = "" if died else missing_from(folder / TRACE, spec, folder) if trace else lost
        return settle(spec, folder, ended, trace=trace, workload_error=died, profiler_error=error)


@contextmanager
def recording(path: Path) -> Iterator[None]:
    """Records CPU and, where there is one, CUDA activity of the body into a Chrome trace at ``path``.

    The trace is written only when the body ends without an exception.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    profiler.export_chrome_trace(str(path))
