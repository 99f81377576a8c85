"""The measured instances: each in an NVTX range of its own; flush, set-up and synchronisation outside of it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from perfgate.model import RunSpec
from perfgate.worker.job import Job, Outcome, attempt
from perfgate.worker.ranges import AUX, MEASURED, Ranges, ranges_for, within

SETTLE_CALLS = 3  # inside the capture, after the inputs were made again and before the first measured instance


def run(spec: RunSpec, jobs: list[Job], folder: Path) -> list[Outcome]:
    """Warms every job up before the capture starts, then measures one job after the other.

    Warm-up first for all jobs: compilation, library handles and the clocks are settled before the profiler looks.
    """
    ranges = ranges_for(spec.profiler)
    flush = l2_flush(spec.device)
    warm = {job.variant.name: attempt(job, lambda job=job: _warm_up(job, spec.warmup)) for job in jobs}  # type: ignore[misc]
    gc.collect()
    gc.freeze()  # what modules hold for good need not be looked at again before every range
    outcomes = []
    with _recording(spec, folder):
        for job in jobs:
            outcome = warm[job.variant.name]
            if outcome.status == "ok":
                seconds = outcome.details
                outcome = attempt(job, lambda job=job: _measure(job, spec.iterations, ranges, flush))  # type: ignore[misc]
                outcome = replace(outcome, details=seconds | outcome.details)
            outcomes.append(outcome)
    return outcomes


def synchronise(device: str) -> None:
    """Waits until the device has nothing left to do; nothing on a CPU."""
    if device != "cpu":
        torch.cuda.synchronize()


def l2_flush(device: str) -> Callable[[], None]:
    """A call that evicts the L2 cache by writing a buffer of twice its size; does nothing on a CPU."""
    if device == "cpu":
        return lambda: None
    size = 2 * int(torch.cuda.get_device_properties(device).L2_cache_size)
    buffer = torch.empty(size, dtype=torch.int8, device=device)

    def flush() -> None:
        buffer.zero_()

    return flush


def _warm_up(job: Job, calls: int) -> Outcome:
    began = time.perf_counter()
    call = job.ready(job.make_inputs())
    for _ in range(calls):
        call()
    synchronise(job.device)
    return Outcome(job.variant.name, "ok", details={"warm_up_s": round(time.perf_counter() - began, 3)})


def _measure(job: Job, instances: int, ranges: Ranges, flush: Callable[[], None]) -> Outcome:
    name = job.variant.name
    began = time.perf_counter()
    with within(ranges, AUX, f"setup:{name}"):
        call = job.ready(job.make_inputs())
        for _ in range(SETTLE_CALLS):
            call()
        synchronise(job.device)
    with _without_garbage_collection():
        for _ in range(instances):
            with within(ranges, AUX, "flush"):
                flush()
                synchronise(job.device)
            with within(ranges, MEASURED, name):
                outputs = call()
            with within(ranges, AUX, "settle"):
                synchronise(job.device)
                del outputs
    return Outcome(name, "ok", instances=instances, details={"measure_s": round(time.perf_counter() - began, 3)})


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def _recording(spec: RunSpec, folder: Path) -> Iterator[None]:
    """Tells the profiler to look at what is inside the block."""
    manager: Any = nullcontext()
    if spec.profiler == "torch":
        from perfgate.profilers.torch_profiler import recording

        manager = recording(folder / "trace.json")
    starts_capture = spec.profiler == "nsys" and spec.device != "cpu"
    with manager:
        if starts_capture:
            torch.cuda.profiler.start()
        try:
            yield
        finally:
            synchronise(spec.device)
            if starts_capture:
                torch.cuda.profiler.stop()
