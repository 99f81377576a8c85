"""Measured instances -> one row per range name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfgate.measure import Measurement
from perfgate.measure.codes import Ints, by_code, groups
from perfgate.traces.names import display_name
from perfgate.traces.summary import METRICS, KernelSum, RangeSummary, Stat

_FEW = 4096  # groups: up to here each is partitioned, beyond all are sorted at once


def rename(measurement: Measurement, name: Callable[[str], str]) -> Measurement:
    """The measurement with every range called ``name(its name)``; ranges that become equal count as one range."""
    instances = measurement.instances
    codes, example = groups(instances["name"])
    new = pd.Categorical([name(text) for text in instances["name"].iloc[example]])
    renamed = instances.assign(name=new.take(codes))
    return replace(measurement, instances=renamed)


def summarize(measurement: Measurement) -> list[RangeSummary]:
    """One :class:`RangeSummary` per (domain, name), the one with the most busy (without a GPU: host) time first.

    Kernels are given where the measurement holds its operations.
    """
    instances = measurement.instances
    group, example = groups(instances["domain"], instances["name"])
    order, edges = by_code(group, len(example))
    stats = {metric: _stats(instances[metric].to_numpy()[order], group[order], len(example)) for metric in METRICS}
    kernels = _kernels(measurement.ops, group, len(example))
    missing = measurement.missing if len(measurement.missing) else np.zeros(len(group), dtype=np.int64)
    lost, incomplete = (_sums(figure, group, len(example)) for figure in (missing, (missing > 0).astype(np.int64)))
    rules = _rules(instances["rule"], group, len(example))
    rows = [
        RangeSummary(
            name=display_name(domain, name),
            domain=domain,
            instances=int(edges[number + 1] - edges[number]),
            rules=rules[number],
            missing_launches=int(lost[number]),
            incomplete=int(incomplete[number]),
            kernels=kernels[number],
            **{metric: stats[metric][number] for metric in METRICS},
        )
        for number, (domain, name) in enumerate(
            zip(instances["domain"].iloc[example], instances["name"].iloc[example], strict=True)
        )
    ]
    return sorted(rows, key=_weight)


def _weight(row: RangeSummary) -> tuple[float, float, str]:
    busy, host = row.busy_ns, row.host_ns
    return (-(busy.total or 0) if busy else 0, -(host.total or 0) if host else 0, row.name)


def _stats(values: Ints, group: Ints, count: int) -> list[Stat | None]:
    """Per group of the sorted rows, over its known values (not -1); ``None`` for a group without any."""
    known = values >= 0
    if not known.all():
        values, group = values[known], group[known]
    sizes = np.bincount(group, minlength=count)
    present = np.flatnonzero(sizes)
    found: list[Stat | None] = [None] * count
    if not len(present):
        return found
    edges = np.append(0, np.cumsum(sizes[present]))
    least, most, total = (step.reduceat(values, edges[:-1]) for step in (np.minimum, np.maximum, np.add))
    for number, sum_, median, low, high in zip(present, total, _medians(values, group, edges), least, most, strict=True):
        found[number] = Stat(int(sum_), median, int(low), int(high))
    return found


def _medians(values: Ints, group: Ints, edges: Ints) -> list[float]:
    """Exact: an int, or halfway between two where that is no int."""
    lower = edges[:-1] + (np.diff(edges) - 1) // 2
    upper = edges[:-1] + np.diff(edges) // 2
    if len(edges) - 1 <= _FEW:
        values = values.copy()
        for low, high, first, second in zip(edges[:-1], edges[1:], lower, upper, strict=True):
            values[low:high].partition((first - low, second - low))
    else:
        values = values[np.lexsort((values, group))]
    pairs = zip(values[lower].tolist(), values[upper].tolist(), strict=True)
    return [low if low == high else _halfway(low, high) for low, high in pairs]


def _halfway(low: int, high: int) -> float:
    middle = low + high
    return middle // 2 if middle % 2 == 0 else middle / 2


def _rules(rule: pd.Series, group: Ints, count: int) -> list[tuple[str, ...]]:
    _, example = groups(group, rule)
    found: list[set[str]] = [set() for _ in range(count)]
    for number, name in zip(group[example], rule.iloc[example], strict=True):
        found[number].add(str(name))
    return [tuple(sorted(names)) for names in found]


def _kernels(ops: pd.DataFrame | None, group: Ints, count: int) -> list[tuple[KernelSum, ...]]:
    found: list[list[KernelSum]] = [[] for _ in range(count)]
    if ops is not None and len(ops):
        owner = group[ops["instance"].to_numpy()]
        key, example = groups(owner, ops["kind"], ops["name"])
        sums = _sums((ops["end"] - ops["start"]).to_numpy(), key, len(example))
        exclusive = _sums(ops["exclusive_ns"].to_numpy(), key, len(example))
        counts = np.bincount(key, minlength=len(example))
        names = zip(ops["name"].iloc[example], ops["kind"].iloc[example], counts, sums, exclusive, strict=True)
        for place, (name, kind, times, total, own) in enumerate(names):
            found[owner[example[place]]].append(KernelSum(str(name), str(kind), int(times), int(total), int(own)))
    return [tuple(sorted(kernels, key=lambda kernel: (-kernel.sum_ns, kernel.name))) for kernels in found]


def _sums(values: NDArray[np.int64], key: Ints, count: int) -> Ints:
    order, edges = by_code(key, count)
    sums: Ints = np.add.reduceat(values[order], edges[:-1])
    return sums
