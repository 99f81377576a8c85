"""Two sets of ranges next to each other, B against A: ratio, difference and, with kernels, what it is made of. Pure.

One trace per side is one process per side. The interval given for it is of that process's own instances: how far its median
can be trusted. How much another process would differ it can't say, so it never makes a verdict: :mod:`perfgate.judge` says
TOO_FEW_SAMPLES. Two runs hold several processes per arm, and their interval is over these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from scipy.stats import binom

from perfgate.compare import arm, effect, sample
from perfgate.measure import Measurement
from perfgate.measure.codes import Ints, by_code, groups
from perfgate.model import ArmFigures, Comparison, Contribution, GateResult, Metric
from perfgate.traces.names import Bucket, bucket, display_name
from perfgate.traces.summary import RangeSummary, Stat

COVERAGE = 0.95  # of the interval of a ratio of two medians, each at the square root of it
METRICS: tuple[Metric, ...] = ("busy", "span", "host")


@dataclass(frozen=True)
class Row:
    """One range in A, in B or in both. Times are ns per instance (medians; means where a table gives no median)."""

    name: str
    bucket: Bucket
    a: RangeSummary | None
    b: RangeSummary | None
    a_ns: float | None
    b_ns: float | None
    total_delta_ns: float | None  # over all instances: what the leaderboard is ordered by
    ratio: float | None = None
    ratio_low: float | None = None  # within the two processes where there is one per side, else over processes
    ratio_high: float | None = None
    contributions: tuple[Contribution, ...] = ()

    @property
    def delta_ns(self) -> float | None:
        return None if self.a_ns is None or self.b_ns is None else self.b_ns - self.a_ns


def common_metric(a: Sequence[RangeSummary], b: Sequence[RangeSummary]) -> Metric:
    """The first of busy, span, host that both sides hold for some range."""
    for metric in METRICS:
        if all(any(_stat(row, metric) is not None for row in side) for side in (a, b)):
            return metric
    return "host"


def rows(a: Sequence[RangeSummary], b: Sequence[RangeSummary], metric: Metric) -> list[Row]:
    """Every range of either side; those of both first, by how much their totals differ."""
    left, right = ({row.name: row for row in side} for side in (a, b))
    found = [_row(name, left.get(name), right.get(name), metric) for name in dict.fromkeys([*left, *right])]
    return sorted(
        found, key=lambda row: (row.a is None or row.b is None, -abs(row.total_delta_ns or row.delta_ns or 0), row.name)
    )


def _row(name: str, a: RangeSummary | None, b: RangeSummary | None, metric: Metric) -> Row:
    a_ns, b_ns = _median(a, metric), _median(b, metric)
    totals = [None if row is None else getattr(_stat(row, metric), "total", None) for row in (a, b)]
    total_delta = None if totals[0] is None or totals[1] is None else totals[1] - totals[0]
    ratio = b_ns / a_ns if a_ns and b_ns is not None else None
    return Row(name, bucket(name), a, b, a_ns, b_ns, total_delta, ratio, contributions=_from_tables(a, b))


def _stat(row: RangeSummary, metric: Metric) -> Stat | None:
    stat: Stat | None = getattr(row, f"{metric}_ns")
    return stat


def _median(row: RangeSummary | None, metric: Metric) -> float | None:
    stat = None if row is None else _stat(row, metric)
    if row is None or stat is None:
        return None
    return stat.median if stat.median is not None or stat.total is None else stat.total / row.instances


def _from_tables(a: RangeSummary | None, b: RangeSummary | None) -> tuple[Contribution, ...]:
    """Kernel differences per instance (means of sums) where only tables of nsys stats are at hand."""
    if a is None or b is None or not a.kernels or not b.kernels or a.kernels[0].exclusive_ns is not None:
        return ()
    before, after = ({kernel.name: kernel.sum_ns / row.instances for kernel in row.kernels} for row in (a, b))
    found = []
    for name in dict.fromkeys([*before, *after]):
        change = round(after.get(name, 0) - before.get(name, 0))
        grown = "slower" if change > 0 else "faster"
        found.append(Contribution("added" if name not in before else "removed" if name not in after else grown, name, change))  # type: ignore[arg-type]
    return tuple(sorted((part for part in found if part.delta_ns), key=lambda part: -abs(part.delta_ns)))


class Arms:
    """One side's figures per range, its measurement split by range once."""

    def __init__(self, label: str, measurement: Measurement) -> None:
        self._label, self._measurement = label, measurement
        instances = measurement.instances
        group, example = groups(instances["domain"], instances["name"])
        self._keys = [(str(instances["domain"].iloc[row]), str(instances["name"].iloc[row])) for row in example]
        self._number = {display_name(*key): number for number, key in enumerate(self._keys)}
        self._rows = by_code(group, len(example))
        ops = measurement.ops
        self._ops = None if ops is None else by_code(group[ops["instance"].to_numpy()], len(example))

    def __contains__(self, name: object) -> bool:
        return name in self._number

    def figures(self, name: str) -> ArmFigures:
        """The range's samples (one process), kernels and timeline."""
        number = self._number[name]
        domain, plain = self._keys[number]
        whole = self._measurement
        ops = None if whole.ops is None or self._ops is None else whole.ops.iloc[_part(self._ops, number)]
        part = replace(whole, instances=whole.instances.iloc[_part(self._rows, number)], ops=ops)
        one = sample(part, plain, domain=domain, capture=self._label, block=0, position=0)
        return arm(self._label, [(part, one)], name=plain, domain=domain)


def _part(ordered: tuple[Ints, Ints], number: int) -> Ints:
    places, edges = ordered
    return np.sort(places[edges[number] : edges[number + 1]])


def explained(row: Row, a: ArmFigures, b: ArmFigures, metric: Metric) -> Row:
    """``row`` with its kernel-level contributions and the interval within the two processes."""
    found = effect(a, b, metric)
    low, high = found.ratio_low, found.ratio_high
    if low is None:
        low, high = within(_values(a, metric), _values(b, metric))
    return replace(row, contributions=found.contributions, ratio_low=low, ratio_high=high)


def compared(name: str, a: ArmFigures | None, b: ArmFigures | None, metric: Metric) -> Comparison:
    """The comparison that budgets judge. A name of four parts is one of ours; else the whole name is the op."""
    op, case, phase, implementation = name.rsplit(":", 3) if name.count(":") == 3 and "/" in name else (name, "", "", "B")
    return Comparison(op, case, phase, implementation, "champion", judged=True, default=a, deterministic=b, metric=metric)


def of_result(result: GateResult) -> dict[str, ArmFigures]:
    """Every arm that a run measured, by ``op:case:phase:implementation``."""
    found: dict[str, ArmFigures] = {}
    for one in result.comparisons:
        for figures in (one.default, one.deterministic):
            if figures is not None:
                found[f"{one.range}:{figures.implementation}"] = figures
    return found


def relabelled(figures: ArmFigures, side: str) -> ArmFigures:
    """The same figures with captures of their own: those of another run are other processes, whatever their names."""
    return replace(figures, samples=tuple(replace(one, capture=f"{side}/{one.capture}") for one in figures.samples))


def summary_of(name: str, figures: ArmFigures) -> RangeSummary:
    """The row of an arm whose trace is gone: medians only."""

    def stat(value: int | None) -> Stat | None:
        return None if value is None else Stat(None, value, None, None)

    return RangeSummary(
        name,
        "",
        sum(len(one.host_ns) for one in figures.samples),
        busy_ns=stat(figures.busy_ns),
        span_ns=stat(figures.span_ns),
        host_ns=stat(figures.host_ns),
        ops=stat(figures.ops),
    )


def within(a: Sequence[int], b: Sequence[int]) -> tuple[float | None, float | None]:
    """Bounds of median(b) / median(a) from order statistics of each (any distribution); ``None`` with too few instances.

    Each median lies between two of its ordered instances with probability sqrt(0.95) (binomial), so the ratio of the bounds
    holds 0.95 at least. Source: the sign test's interval for a median.
    """
    sides = [_median_bounds(np.sort(np.asarray(side))) for side in (a, b)]
    if sides[0] is None or sides[1] is None or sides[0][0] <= 0:
        return None, None
    return sides[1][0] / sides[0][1], sides[1][1] / sides[0][0]


def _median_bounds(ordered: Ints) -> tuple[float, float] | None:
    rank = _rank(len(ordered))
    return None if rank < 0 else (float(ordered[rank]), float(ordered[-1 - rank]))


@cache
def _rank(count: int) -> int:
    """The largest rank from either end between which the median lies often enough; -1 where not even the extremes do."""
    return int(binom.ppf((1 - COVERAGE**0.5) / 2, count, 0.5)) - 1 if count else -1


def _values(figures: ArmFigures, metric: Metric) -> tuple[int, ...]:
    return tuple(value for one in figures.samples for value in getattr(one, f"{metric}_ns"))
