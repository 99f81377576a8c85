"""A stored run stands in for the GPU: its captures are copied instead of run, so the whole gate works without one."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from perfgate.errors import PerfgateError, UsageError
from perfgate.model import Capture, RunSpec
from perfgate.profilers.child import Ended, prepare, settle, short, unwritable
from perfgate.profilers.spec_file import CAPTURE, DONE, SPEC, load_capture, load_done, load_spec

CAPTURES = "captures"


@dataclass(frozen=True)
class ReplayProfiler:
    """Answers each spec with the capture of the same id from the run directory ``stored``.

    Raises :class:`UsageError` where ``stored`` holds no captures at all.
    """

    stored: Path
    name: str = "replay"

    def __post_init__(self) -> None:
        if not any(self.stored.glob(f"{CAPTURES}/*/{SPEC}")):
            raise UsageError(f"{self.stored} holds no stored captures", f"name a run directory that has {CAPTURES}/<id>/{SPEC}")

    def holds(self, name: str) -> bool:
        """Whether the stored run has a capture of this id."""
        return (self.stored / CAPTURES / name / SPEC).exists()

    def capture(self, spec: RunSpec, folder: Path, *, timeout_s: float) -> Capture:  # noqa: ARG002 - nothing runs
        """See :class:`perfgate.profilers.Profiler`; a capture that is not stored, or not of these variants, is an error."""
        source = self.stored / CAPTURES / spec.id
        try:
            prepare(spec, folder)
        except OSError as error:
            return Capture(spec, short(folder), error=unwritable(folder, error))
        try:
            stored = load_capture(source / CAPTURE)
            problem = unlike(load_spec(source / SPEC), spec) or stored.error
            load_done(source / DONE)  # a damaged one would read as a child that said nothing
        except PerfgateError as error:
            return settle(
                spec, folder, Ended(0, 0.0), profiler_error=f"the stored run has no usable {CAPTURES}/{spec.id}: {error.text}"
            )
        if not problem:
            try:
                for path in source.iterdir():
                    if path.is_file() and path.name not in (CAPTURE, SPEC):
                        shutil.copy2(path, folder / path.name)
            except OSError as error:
                problem = unwritable(folder, error)
        spec = replace(spec, profiler=stored.spec.profiler)
        return settle(
            spec, folder, Ended(0, stored.wall_seconds), trace="" if problem else stored.trace, profiler_error=problem
        )


def unlike(stored: RunSpec, asked: RunSpec) -> str:
    """Why the stored capture does not answer what is asked, or ""."""
    if (stored.purpose, stored.mode) != (asked.purpose, asked.mode):
        return (
            f"the stored {asked.id} is {stored.purpose}/{stored.mode}, asked was {asked.purpose}/{asked.mode}; record it again"
        )
    if stored.device != asked.device:
        return f"the stored {asked.id} ran on {stored.device}, its run on {asked.device}; record it again"
    lacking = [variant.name for variant in asked.variants if variant not in stored.variants]
    if lacking:
        return f"the stored {asked.id} lacks {lacking[0]} ({len(lacking)} of {len(asked.variants)}); record it again"
    return ""
