"""No profiler: the child alone, for purposes bits and confirm."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from perfgate.model import Capture, RunSpec
from perfgate.profilers.child import run_worker, settle, worker_error


@dataclass(frozen=True)
class PlainProfiler:
    """Runs the worker without anything that watches it."""

    name: str = "none"

    def capture(self, spec: RunSpec, folder: Path, *, timeout_s: float) -> Capture:
        """See :class:`perfgate.profilers.Profiler`; the capture has no trace."""
        spec = replace(spec, profiler=self.name)
        ended = run_worker(spec, folder, timeout_s=timeout_s)
        return settle(spec, folder, ended, workload_error=worker_error(folder, ended, timeout_s))
