"""Measurements -> figures of an arm -> the effect between two arms. Pure: no I/O, no clock, no environment.

Medians are low medians, so that each is the figure of an instance that was measured: the *representative* one, whose kernels
explain a difference exactly. How two sets of processes become a ratio with an interval: :mod:`perfgate.estimate`.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pandas as pd

from perfgate.errors import UnusableError
from perfgate.estimate import Estimate, FloatArray, paired, unpaired
from perfgate.model import ArmFigures, Contribution, KernelTime, Metric, ProcessSample, Reason
from perfgate.signals import drift_shift, noticed

TIMELINE_LIMIT = 2000  # operations: an instance with more is not drawn, and its timeline stays empty
KERNEL_KEY = ("name", "kind", "grid", "block", "registers", "shared_memory")


class Measured(Protocol):
    """What ``measure`` hands on: :data:`perfgate.traces.schema.INSTANCES` and (or ``None``) ``ATTRIBUTED`` rows."""

    @property
    def instances(self) -> pd.DataFrame: ...
    @property
    def ops(self) -> pd.DataFrame | None: ...


@dataclass(frozen=True)
class Effect:
    """What the other arm costs against the default. ``ratio`` is ``None`` where the metric was not measured in both arms."""

    metric: Metric
    ratio: float | None
    ratio_low: float | None  # None with fewer than two processes per arm: then nothing is known of the noise
    ratio_high: float | None
    ratio_hodges_lehmann: float | None
    mde: float | None
    blocks: int
    delta_ns: int | None
    contributions: tuple[Contribution, ...]
    signals: tuple[Reason, ...]


def sample(
    measurement: Measured, name: str, *, domain: str = "perfgate", capture: str, block: int, position: int
) -> ProcessSample:
    """All instances of one range in one capture. Raises :class:`UnusableError` where there is none."""
    rows = _rows(measurement, name, domain)
    if rows.empty:
        raise UnusableError(f"capture {capture} holds no range {name!r} in domain {domain!r}", "`perfgate doctor` checks nvtx")
    gpu = bool((rows["busy_ns"] >= 0).all())
    return ProcessSample(
        capture=capture,
        block=block,
        position=position,
        busy_ns=_integers(rows["busy_ns"]) if gpu else (),
        span_ns=_integers(rows["span_ns"]) if gpu else (),
        host_ns=_integers(rows["host_ns"]),
        ops=_integers(rows["ops"]) if gpu else (),
        kernels=_fingerprint(measurement.ops, rows["instance"]),
    )


def arm(
    implementation: str,
    parts: Sequence[tuple[Measured, ProcessSample]],
    *,
    name: str,
    domain: str = "perfgate",
    confirmations: Sequence[ProcessSample] = (),
) -> ArmFigures:
    """One arm's figures: low medians over the pooled instances of all ``parts``, kernels and timeline of the median instance.

    ``confirmations`` are unprofiled children's samples (only ``step_wall_ns``): they give the arm its ``step_wall_ns``.
    """
    samples = tuple(one for _, one in parts)
    pooled = sorted((busy, number, place) for number, one in enumerate(samples) for place, busy in enumerate(one.busy_ns))
    kernels: tuple[KernelTime, ...] = ()
    timeline: tuple[tuple[str, int, int], ...] = ()
    if pooled:
        _, number, place = pooled[(len(pooled) - 1) // 2]
        measurement = parts[number][0]
        kernels, timeline = _inside(measurement.ops, int(_rows(measurement, name, domain)["instance"].iloc[place]))
    return ArmFigures(
        implementation=implementation,
        busy_ns=_low_median(value for one in samples for value in one.busy_ns),
        span_ns=_low_median(value for one in samples for value in one.span_ns),
        host_ns=_low_median(value for one in samples for value in one.host_ns),
        step_wall_ns=_low_median(value for one in confirmations for value in one.step_wall_ns),
        ops=_low_median(value for one in samples for value in one.ops),
        samples=(*samples, *confirmations),
        kernels=kernels,
        timeline=timeline,
    )


def effect(
    default: ArmFigures, other: ArmFigures, metric: Metric, *, alpha: float = 0.05, alpha_low: float | None = None
) -> Effect:
    """The cost of ``other`` against ``default`` in ``metric``, from process medians.

    The bounds are one-sided at levels ``alpha_low`` (the lower one; ``alpha`` where not given) and ``alpha``. Arms that ran in
    the same processes are paired by process.
    """
    delta, contributions = explain(default, other, metric)
    pair = complete_blocks(default, other, metric)
    evidence = estimate(*pair, metric)
    signals = noticed(*pair, metric, evidence)
    blocks = len({one.block for one in values_of(pair[0], metric)} & {one.block for one in values_of(pair[1], metric)})
    if evidence is None:
        ratio = _bare_ratio(process_medians(pair[0], metric), process_medians(pair[1], metric))
        return Effect(metric, ratio, None, None, None, None, blocks, delta, contributions, signals)
    low_level = alpha if alpha_low is None else alpha_low
    return Effect(
        metric=metric,
        ratio=float(np.exp(evidence.log_ratio)),
        ratio_low=float(np.exp(evidence.low(low_level))),
        ratio_high=float(np.exp(evidence.high(alpha))),
        ratio_hodges_lehmann=float(np.exp(evidence.hodges_lehmann)),
        mde=float(evidence.detectable(low_level)),
        blocks=blocks,
        delta_ns=delta,
        contributions=contributions,
        signals=signals,
    )


def estimate(default: ArmFigures, other: ArmFigures, metric: Metric) -> Estimate | None:
    """The evidence in these arms' samples; ``None`` with fewer than two processes per arm or a median of 0."""
    logs = process_medians(default, metric), process_medians(other, metric)
    if min(logs[0].size, logs[1].size) < 2 or not np.isfinite([*logs[0], *logs[1]]).all():
        return None
    evidence = paired(logs[1] - logs[0]) if _shared(default, other, metric) else unpaired(*logs)
    shift = drift_shift(values_of(default, metric), values_of(other, metric), metric)
    return replace(evidence, drift_low=np.asarray(max(0.0, -shift)), drift_high=np.asarray(max(0.0, shift)))


def complete_blocks(
    default: ArmFigures, other: ArmFigures, metric: Metric, most: int | None = None
) -> tuple[ArmFigures, ArmFigures]:
    """Both arms with the samples of complete blocks only (as many processes of one arm as of the other), the first ``most``.

    Where no block is complete (a foreign run of three captures against two), all samples stay.
    """
    counts = [Counter(one.block for one in values_of(arm_, metric)) for arm_ in (default, other)]
    complete = sorted(block for block in counts[0] if counts[0][block] == counts[1][block])
    if not complete:
        return default, other
    chosen = set(complete[:most])

    def within(figures: ArmFigures) -> ArmFigures:
        kept = (one for one in values_of(figures, metric) if one.block in chosen)
        return replace(figures, samples=tuple(sorted(kept, key=lambda one: (one.block, one.position, one.capture))))

    return within(default), within(other)


def values_of(figures: ArmFigures, metric: Metric) -> tuple[ProcessSample, ...]:
    """The samples that hold ``metric``."""
    return tuple(one for one in figures.samples if getattr(one, f"{metric}_ns"))


def process_medians(figures: ArmFigures, metric: Metric) -> FloatArray:
    """Log of each process's median of ``metric``; -inf where that is 0 (nothing ran inside the range)."""
    medians = [np.median(getattr(one, f"{metric}_ns")) for one in values_of(figures, metric)]
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(medians, dtype=np.float64))


def explain(default: ArmFigures, other: ArmFigures, metric: Metric) -> tuple[int | None, tuple[Contribution, ...]]:
    """The difference other - default in ns and its parts, largest first. They sum to it exactly.

    Kernels by their exclusive time, ``idle`` what span adds to busy, ``host`` what wall time adds to span (all of it for
    metric host). Empty where the kernels of an arm are not known.
    """
    figures = getattr(default, f"{metric}_ns"), getattr(other, f"{metric}_ns")
    if figures[0] is None or figures[1] is None:
        return None, ()
    delta = figures[1] - figures[0]
    if metric == "host":
        return delta, _drop_zero([Contribution("host", "", delta)])
    known = [sum(kernel.exclusive_ns for kernel in one.kernels) == one.busy_ns for one in (default, other)]
    if not all(known):
        return delta, ()
    parts = _kernel_changes(default.kernels, other.kernels)
    if metric != "busy":
        idle = (other.span_ns or 0) - (other.busy_ns or 0) - (default.span_ns or 0) + (default.busy_ns or 0)
        parts.append(Contribution("idle", "", idle))
    if metric == "step_wall":
        parts.append(Contribution("host", "", delta - sum(part.delta_ns for part in parts)))
    return delta, _drop_zero(parts)


def _kernel_changes(default: Sequence[KernelTime], other: Sequence[KernelTime]) -> list[Contribution]:
    before: Counter[str] = Counter()
    after: Counter[str] = Counter()
    for counts, kernels in ((before, default), (after, other)):
        for kernel in kernels:
            counts[kernel.name] += kernel.exclusive_ns
    changes = []
    for name in dict.fromkeys([*before, *after]):
        change = after[name] - before[name]
        if name not in before:
            changes.append(Contribution("added", name, change))
        elif name not in after:
            changes.append(Contribution("removed", name, change))
        else:
            changes.append(Contribution("slower" if change > 0 else "faster", name, change))
    return changes


def _drop_zero(parts: Sequence[Contribution]) -> tuple[Contribution, ...]:
    return tuple(sorted((part for part in parts if part.delta_ns), key=lambda part: -abs(part.delta_ns)))


def _bare_ratio(default: FloatArray, other: FloatArray) -> float | None:
    """The ratio where nothing is known of its error; ``None`` where an arm has no figure or one of 0."""
    if not default.size or not other.size or not np.isfinite([*default, *other]).all():
        return None
    return float(np.exp(other.mean() - default.mean()))


def _shared(default: ArmFigures, other: ArmFigures, metric: Metric) -> bool:
    """True where both arms ran in the same processes (the contender beside the default)."""
    return [one.capture for one in values_of(default, metric)] == [one.capture for one in values_of(other, metric)]


def _rows(measurement: Measured, name: str, domain: str) -> pd.DataFrame:
    instances = measurement.instances
    return instances[(instances["name"] == name) & (instances["domain"] == domain)].sort_values(["start", "instance"])


def _ops_of(ops: pd.DataFrame | None, instances: Sequence[int]) -> pd.DataFrame | None:
    """The attributed operations of ``instances``, in launch order; ``None`` where no detail was measured."""
    if ops is None or ops.empty:
        return None
    column = ops["instance"]
    if len(instances) == 1 and column.is_monotonic_increasing:  # the usual case, and much faster on millions of rows
        first, last = column.searchsorted(instances[0], "left"), column.searchsorted(instances[0], "right")
        return ops.iloc[first:last]
    return ops[column.isin(instances)]


def _fingerprint(ops: pd.DataFrame | None, instances: pd.Series[int]) -> str:
    rows = _ops_of(ops, list(instances))
    if rows is None or rows.empty:
        return ""
    launches: dict[int, list[list[str]]] = {int(number): [] for number in instances}
    for number, *launch in zip(rows["instance"], rows["name"], rows["grid"], rows["block"], strict=True):
        launches[int(number)].append(launch)
    lists = {json.dumps(launched) for launched in launches.values()}
    return hashlib.sha256(lists.pop().encode()).hexdigest()[:16] if len(lists) == 1 else "mixed"


def _inside(ops: pd.DataFrame | None, instance: int) -> tuple[tuple[KernelTime, ...], tuple[tuple[str, int, int], ...]]:
    """Kernel times (largest first) and timeline of one instance, on its busiest device."""
    rows = _ops_of(ops, [instance])
    if rows is None or rows.empty:
        return (), ()
    columns = [rows[name].tolist() for name in ("device", "start", "end", "exclusive_ns", *KERNEL_KEY)]
    launches = list(zip(*columns, strict=True))
    busy: Counter[int] = Counter()
    for device, _, _, exclusive, *_ in launches:
        busy[device] += exclusive
    busiest = min(busy, key=lambda device: (-busy[device], device))
    launches = [launch for launch in launches if launch[0] == busiest]
    times: dict[tuple[str, str, str, str, int, int], list[int]] = {}
    for _, start, end, exclusive, name, kind, grid, block, registers, shared in launches:
        total = times.setdefault((str(name), str(kind), str(grid), str(block), registers, shared), [0, 0, 0])
        for place, amount in enumerate((1, end - start, exclusive)):
            total[place] += amount
    kernels = [KernelTime(*key, count=count, sum_ns=sum_, exclusive_ns=own) for key, (count, sum_, own) in times.items()]
    kernels.sort(key=lambda one: -one.exclusive_ns)
    return tuple(kernels), _timeline(launches) if len(launches) <= TIMELINE_LIMIT else ()


def _timeline(launches: Sequence[tuple[Any, ...]]) -> tuple[tuple[str, int, int], ...]:
    """(kernel, start, end) from the first start, in the order of their starts, of (device, start, end, …, name, …) rows."""
    first = min(start for _, start, *_ in launches)
    ordered = sorted(launches, key=lambda launch: launch[1])
    return tuple((str(name), start - first, end - first) for _, start, end, _, name, *_ in ordered)


def _integers(column: pd.Series[int]) -> tuple[int, ...]:
    return tuple(int(value) for value in column)


def _low_median(values: Iterable[int]) -> int | None:
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2] if ordered else None
