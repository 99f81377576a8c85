"""Arms, comparisons, measurements and budgets as the judging tests need them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd

from perfgate.budgets import Budgets, File
from perfgate.model import Accuracy, ArmFigures, Bits, Comparison, KernelTime, ProcessSample
from perfgate.traces import schema

TODAY = date(2026, 11, 29)
ORDER = ((0, 3), (1, 2))  # positions of arm A in even and in odd blocks


def arm(name, microseconds, *, first_block=0, kernels=None, metric="busy", instances=9, side=0, captures=None):
    """An arm with two processes per block, each of constant instances; ``microseconds`` are the process medians."""
    samples = []
    for number, time in enumerate(microseconds):
        block, half = first_block + number // 2, number % 2
        position = ORDER[(block + side) % 2][half]
        values = (round(time * 1000),) * instances
        empty = {"busy_ns": (), "span_ns": (), "host_ns": (), "ops": ()}
        sample = ProcessSample(
            f"{name}-{block}-{position}", block, position, **empty, kernels=name if kernels is None else kernels
        )
        if metric == "busy":
            sample = replace(sample, busy_ns=values, span_ns=values, host_ns=values, ops=(1,) * instances)
        else:
            sample = replace(sample, **{f"{metric}_ns": values})
        samples.append(sample if captures is None else replace(sample, capture=captures[number]))
    return replace(ArmFigures(name, samples=tuple(samples)), **{f"{metric}_ns": getattr(samples[0], f"{metric}_ns")[0]})


def noisy(name, microseconds, *, blocks=3, noise=0.002, seed=0, **options):
    """An arm whose processes differ by ``noise`` (relative standard deviation)."""
    rng = np.random.default_rng(seed)
    return arm(name, microseconds * np.exp(noise * rng.standard_normal(2 * blocks)), **options)


def comparison(default, deterministic, **options):
    base = Comparison("moe/combine", "typical", "fwd", "new", "champion", judged=True)
    facts = {"bits": Bits(replays=5), "accuracy": Accuracy(1e-3, 1e-3), "default": default, "deterministic": deterministic}
    return replace(base, **(facts | options))


def budgets(overhead="15%", *, entries=(), today=TODAY, **defaults):
    """Budgets from ``[defaults]`` (floor 0) and ``entries`` as in a file; line numbers are 10, 20, ..."""
    own = {} if overhead is None else {"overhead": overhead}
    table = {"version": 1, "match": ["NVIDIA H200*"], "defaults": {"abs_floor": "0us"} | own | defaults}
    table["budget"] = [{"reason": "r", "owner": "o", "expires": date(2027, 5, 31)} | entry for entry in entries]
    lines = tuple(10 * (number + 1) for number in range(len(entries)))
    return Budgets("h200.toml", File.model_validate(table), lines, 4, today)


@dataclass(frozen=True)
class Measured:
    instances: pd.DataFrame
    ops: pd.DataFrame | None


GPU_TIMES = ("busy_ns", "span_ns", "sum_ns", "idle_ns")


def measured(instances, *, name="r", domain="perfgate", gpu=True, detail=True):
    """A measurement of one range; each instance is a list of (kernel, grid, start, end) on one stream."""
    rows: list[dict[str, object]] = []
    ops: list[dict[str, object]] = []
    for number, kernels in enumerate(instances):
        busy, span = _operations(number, kernels, ops)
        rows.append(
            dict.fromkeys(schema.INSTANCES, 1)
            | {"instance": number, "domain": domain, "name": name, "start": 1000 * number, "host_ns": span + 100}
            | dict(zip(GPU_TIMES, (busy, span, busy, span - busy) if gpu else (-1,) * 4, strict=True))
            | {"ops": len(kernels), "rule": "process"}
        )
    frame = schema.check(pd.DataFrame(rows), schema.INSTANCES, "instances")
    detailed = schema.check(pd.DataFrame(ops), schema.ATTRIBUTED, "ops") if ops else schema.empty(schema.ATTRIBUTED)
    return Measured(frame, detailed if detail else None)


def _operations(instance, kernels, ops):
    """Appends an instance's operations to ``ops``; returns its busy time and span."""
    covered, busy = 0, 0
    for kernel, grid, start, end in kernels:
        exclusive = max(0, end - max(start, covered))
        covered, busy = max(covered, end), busy + exclusive
        ops.append(
            dict.fromkeys(schema.ATTRIBUTED, 0)
            | {"kind": "KERNEL", "name": kernel, "grid": grid, "block": "128x1x1", "start": start, "end": end}
            | {"instance": instance, "exclusive_ns": exclusive}
        )
    ends, starts = [one[3] for one in kernels], [one[2] for one in kernels]
    return busy, max(ends, default=0) - min(starts, default=0)


def kernel(name, nanoseconds):
    return KernelTime(name, "KERNEL", "1x1x1", "128x1x1", 32, 0, 1, nanoseconds, nanoseconds)


def known(value):
    """``value``, which must not be ``None``; of no particular type, so that its attributes can be asked for."""
    assert value is not None
    return value


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path
