"""No profiler: the child alone, for purposes bits and confirm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfgate.model import Capture, RunSpec
from perfgate.profilers.child import run_workers, settle, worker_error


@dataclass(frozen=True)
class PlainProfiler:
    """Runs the worker without anything that watches it."""

    name: str = "none"

    def capture(self, spec: RunSpec, folder: Path, *, timeout_s: float) -> Capture:
        """See :class:`perfgate.profilers.Profiler`; the capture has no trace."""
        (capture,) = self.capture_together([(spec, folder)], timeout_s=timeout_s)
        return capture

    def capture_together(self, work: Sequence[tuple[RunSpec, Path]], *, timeout_s: float) -> list[Capture]:
        """The captures of several children that run at one time: for what is not timed."""
        work = [(replace(spec, profiler=self.name), folder) for spec, folder in work]
        return [
            settle(spec, folder, ended, workload_error=worker_error(folder, ended, timeout_s))
            for (spec, folder), ended in zip(work, run_workers(work, timeout_s=timeout_s), strict=True)
        ]
