"""The unprofiled confirmation: the same calls timed without a profiler, by CUDA events (wall clock on a CPU)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch

from perfgate.model import RunSpec
from perfgate.worker.job import Job, Outcome, attempt
from perfgate.worker.timing import SETTLE_CALLS, l2_flush, synchronise


def run(spec: RunSpec, jobs: list[Job], folder: Path) -> list[Outcome]:  # noqa: ARG001 - purposes share one signature
    """One outcome per job with ``step_wall_ns``: the time of every call in ns, L2 flushed before each."""
    flush = l2_flush(spec.device)
    return [attempt(job, lambda job=job: _confirm(job, spec, flush)) for job in jobs]  # type: ignore[misc]


def _confirm(job: Job, spec: RunSpec, flush: Callable[[], None]) -> Outcome:
    call = job.ready(job.make_inputs())
    for _ in range(spec.warmup + SETTLE_CALLS):
        call()
    synchronise(job.device)
    times = []
    for _ in range(spec.iterations):
        flush()
        synchronise(job.device)
        times.append(_by_clock(call) if job.device == "cpu" else _by_events(call))
    return Outcome(job.variant.name, "ok", instances=len(times), details={"step_wall_ns": times})


def _by_clock(call: Callable[[], object]) -> int:
    started = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - started


def _by_events(call: Callable[[], object]) -> int:
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    call()
    after.record()
    torch.cuda.synchronize()
    return round(float(before.elapsed_time(after)) * 1e6)
