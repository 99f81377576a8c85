"""Where a series of measured values changed its level: exact optimal segmentation with each value's own error.

Why no library: what is offered for performance histories (Apache Otava 0.8: numpy pinned to 2.2, plus clients for BigQuery,
PostgreSQL and Slack) or for signals in general takes bare values. Here every value comes with an interval, which tells a
change from noise after few runs. The method is penalised least squares by dynamic programming (Jackson et al., "An algorithm
for optimal partitioning of data on an interval", 2005); the penalty is ours, by simulation: see :func:`penalty`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

LEAST_RUNS = 5  # fewer tell nothing of how runs differ among themselves
FLOOR = 0.002  # runs differ by 0.2 % even where the processes of each agree better


@dataclass(frozen=True)
class Change:
    """From ``before`` to ``after`` (levels, logarithms) at position ``at``, the first value of the new level."""

    at: int
    before: float
    after: float

    @property
    def fraction(self) -> float:
        """0.05 for 5 % more."""
        return math.expm1(self.after - self.before)


def change_points(logs: Sequence[float], errors: Sequence[float], least: float = 0.01) -> list[Change]:
    """The changes in ``logs`` (natural logarithms, in order), each with a standard error.

    Changes smaller than the fraction ``least`` are not reported. None where there are fewer than :data:`LEAST_RUNS` values.
    """
    values, own = np.asarray(logs, dtype=np.float64), np.asarray(errors, dtype=np.float64)
    if values.size < LEAST_RUNS:
        return []
    weights = 1.0 / (own**2 + between_runs(values, own))
    bounds = [0, *_cuts(values, weights, penalty(values.size)), values.size]
    levels = [float(np.average(values[start:end], weights=weights[start:end])) for start, end in pairwise(bounds)]
    changes = [Change(at, *levels_) for at, levels_ in zip(bounds[1:], pairwise(levels), strict=False)]
    return [change for change in changes if abs(change.fraction) >= least]


def between_runs(values: np.ndarray, own: np.ndarray) -> float:
    """Variance between runs beyond their own errors, from the median step, which a few changes don't move."""
    step = 1.4826 * float(np.median(np.abs(np.diff(values)))) / math.sqrt(2)
    return max(step**2 - float(np.median(own**2)), FLOOR**2)


def penalty(count: int) -> float:
    """What a further segment must gain: at most one in a hundred series without a change shows one.

    Simulated for 5 to 120 runs whose level wanders between 0 and 7 times their own error (``test_change_points.py`` repeats a
    part); the less runs, the worse the wandering is known, and the dearer a change.
    """
    return 16.0 + 150.0 / count


def _cuts(values: np.ndarray, weights: np.ndarray, price: float) -> list[int]:
    """Where the cheapest partition begins a new segment: squared deviations over variance, plus ``price`` per segment."""
    count = values.size
    weight, first, second = (
        np.concatenate([[0.0], np.cumsum(part)]) for part in (weights, weights * values, weights * values**2)
    )
    best = np.full(count + 1, -price)
    came_from = np.zeros(count + 1, dtype=np.int64)
    for end in range(1, count + 1):
        starts = np.arange(end)
        rest = second[end] - second[starts] - (first[end] - first[starts]) ** 2 / (weight[end] - weight[starts])
        costs = best[starts] + rest + price
        came_from[end] = int(np.argmin(costs))
        best[end] = costs[came_from[end]]
    cuts: list[int] = []
    place = int(came_from[count])
    while place > 0:
        cuts.append(place)
        place = int(came_from[place])
    return cuts[::-1]
