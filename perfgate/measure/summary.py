"""Measured instances -> one row per range name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from perfgate.measure import Measurement
from perfgate.measure.codes import by_code, groups
from perfgate.traces._coded import Codes, coded
from perfgate.traces._threads import side_by_side
from perfgate.traces.names import display_name
from perfgate.traces.summary import METRICS, KernelSum, RangeSummary, Stat
from perfgate.traces.table import Ints, Table, Texts, is_steady, table_in

_GLANCE = 256  # rows that tell most unequal columns apart
_FEW = 4096  # groups: up to here each is partitioned, beyond all are sorted at once


def rename(measurement: Measurement, name: Callable[[str], str]) -> Measurement:
    """The measurement with every range called ``name(its name)``; ranges that become equal count as one range."""
    instances = table_in(measurement, "instances")
    texts = instances.texts("name")
    return replace(measurement, instances=instances.with_columns(name=coded(texts.codes, [name(text) for text in texts.names])))


def summarize(measurement: Measurement) -> list[RangeSummary]:
    """One :class:`RangeSummary` per (domain, name), the one with the most busy (without a GPU: host) time first.

    Kernels are given where the measurement holds its operations.
    """
    instances = table_in(measurement, "instances")
    domains, names = instances.texts("domain"), instances.texts("name")
    group, example = groups(domains, names)
    order, edges = by_code(group, len(example))
    sizes = np.diff(edges).tolist()
    stats = _all_stats(instances, group, order, edges)
    kernels = _kernels(None if measurement.ops is None else table_in(measurement, "ops"), group, len(example))
    lost, incomplete = _lost(measurement.missing, group, len(example))
    rules = _rules(instances.texts("rule"), group, len(example))
    rows = [
        RangeSummary(
            name=display_name(domain, name),
            domain=domain,
            instances=sizes[number],
            rules=rules[number],
            missing_launches=lost[number],
            incomplete=incomplete[number],
            kernels=kernels[number],
            **{metric: stats[metric][number] for metric in METRICS},
        )
        for number, (domain, name) in enumerate(zip(domains.at(example), names.at(example), strict=True))
    ]
    return sorted(rows, key=_weight)


def _lost(missing: Ints, group: Codes, count: int) -> tuple[list[int], list[int]]:
    """Per group: launches without their GPU work, and instances with such launches."""
    some = np.flatnonzero(missing)
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, group[some], missing[some])
    return sums.tolist(), np.bincount(group[some], minlength=count).tolist()


def _weight(row: RangeSummary) -> tuple[float, float, str]:
    busy, host = row.busy_ns, row.host_ns
    return (-(busy.total or 0) if busy else 0, -(host.total or 0) if host else 0, row.name)


def _all_stats(instances: Table, group: Codes, order: Ints, edges: Ints) -> dict[str, list[Stat | None]]:
    """Per metric and group; columns that are equal are looked at once, as busy, span and sum of single kernels are."""
    alike: dict[str, str] = {}  # each metric and the first one that is equal
    for metric in METRICS:
        values = instances.ints(metric)
        alike[metric] = next((name for name in dict.fromkeys(alike.values()) if _equal(instances.ints(name), values)), metric)
    different = list(dict.fromkeys(alike.values()))
    stats = side_by_side(lambda metric: _stats(instances.ints(metric)[order], group, order, edges), different)
    found = dict(zip(different, stats, strict=True))
    return {metric: found[same] for metric, same in alike.items()}


def _equal(one: Ints, other: Ints) -> bool:
    return np.array_equal(one[:_GLANCE], other[:_GLANCE]) and np.array_equal(one, other)


def _stats(values: Ints, group: Codes, order: Ints, edges: Ints) -> list[Stat | None]:
    """Per group of the sorted rows, over its known values (not -1); ``None`` for a group without any. Reorders ``values``."""
    count = len(edges) - 1
    if len(values) and values.min() < 0:
        known = values >= 0
        values, edges = values[known], np.append(0, np.cumsum(known))[edges]
        group = group[order][known]
    else:
        group = group[order] if count > _FEW else group
    present = np.flatnonzero(np.diff(edges))
    found: list[Stat | None] = [None] * count
    if not len(present):
        return found
    edges = np.append(edges[present], edges[-1])
    least, most, total = (step.reduceat(values, edges[:-1]).tolist() for step in (np.minimum, np.maximum, np.add))
    medians = _medians(values, group, edges)
    for number, sum_, median, low, high in zip(present.tolist(), total, medians, least, most, strict=True):
        found[number] = Stat(sum_, median, low, high)
    return found


def _medians(values: Ints, group: Codes, edges: Ints) -> list[float]:
    """Exact: an int, or halfway between two where that is no int. Reorders ``values``."""
    lower = edges[:-1] + (np.diff(edges) - 1) // 2
    upper = edges[:-1] + np.diff(edges) // 2
    if len(edges) - 1 <= _FEW:
        for low, high, first, second in zip(edges[:-1], edges[1:], lower, upper, strict=True):
            values[low:high].partition((first - low, second - low))
    else:
        values = values[np.lexsort((values, group))]
    pairs = zip(values[lower].tolist(), values[upper].tolist(), strict=True)
    return [low if low == high else _halfway(low, high) for low, high in pairs]


def _halfway(low: int, high: int) -> float:
    middle = low + high
    return middle // 2 if middle % 2 == 0 else middle / 2


def _rules(rule: Texts, group: Codes, count: int) -> list[tuple[str, ...]]:
    if len(rule) and is_steady(rule.codes):
        return [(rule.names[rule.codes[0]],)] * count
    _, example = groups(group, rule)
    found: list[set[str]] = [set() for _ in range(count)]
    for number, name in zip(group[example].tolist(), rule.at(example), strict=True):
        found[number].add(name)
    return [tuple(sorted(names)) for names in found]


def _kernels(ops: Table | None, group: Codes, count: int) -> list[tuple[KernelSum, ...]]:
    found: list[list[KernelSum]] = [[] for _ in range(count)]
    if ops is not None and len(ops):
        owner = group[ops.ints("instance")]
        key, example = groups(owner, ops.texts("kind"), ops.texts("name"))
        sums = _sums(ops.ints("end") - ops.ints("start"), key, len(example))
        exclusive = _sums(ops.ints("exclusive_ns"), key, len(example))
        counts = np.bincount(key, minlength=len(example))
        names = zip(ops.texts("name").at(example), ops.texts("kind").at(example), counts, sums, exclusive, strict=True)
        for place, (name, kind, times, total, own) in enumerate(names):
            found[owner[example[place]]].append(KernelSum(str(name), str(kind), int(times), int(total), int(own)))
    return [tuple(sorted(kernels, key=lambda kernel: (-kernel.sum_ns, kernel.name))) for kernels in found]


def _sums(values: Ints, key: Codes, count: int) -> Ints:
    order, edges = by_code(key, count)
    sums: Ints = np.add.reduceat(values[order], edges[:-1])
    return sums
