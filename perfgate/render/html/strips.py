"""Every sample of both arms: one strip per arm on a shared axis, and each again on an axis of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from perfgate import units
from perfgate.model import ArmFigures, Comparison
from perfgate.render import _view
from perfgate.render.html.axis import LinearAxis, Tick

ROW = 4  # height of one process in a strip's own coordinates
WIDTH = 1000


@dataclass(frozen=True)
class Strip:
    """One arm's samples as an SVG path of short strokes: x its time, one row per process in the order in which they ran."""

    path: str
    height: int
    median: float  # percent
    ticks: list[Tick]
    samples: int
    processes: int
    low_ns: int
    median_ns: int
    high_ns: int


@dataclass(frozen=True)
class Samples:
    """Both arms on one axis, the allowed and the measured overhead as places on it, and each arm on its own axis."""

    metric: str
    shared: tuple[Strip, Strip]
    zoomed: tuple[Strip, Strip]
    ticks: list[Tick]
    budget: float | None  # percent
    interval: tuple[float, float] | None  # percent


def samples_of(comparison: Comparison) -> Samples | None:
    """The drawing, or ``None`` where an arm has no samples of the judged metric."""
    default, other = _rows(comparison.default, comparison.metric), _rows(comparison.deterministic, comparison.metric)
    medians = [_view.figure(arm, comparison.metric) for arm in (comparison.default, comparison.deterministic)]
    if not default or not other or medians[0] is None or medians[1] is None:
        return None
    budget = medians[0] * (1 + comparison.budget.overhead) if comparison.budget else None
    bounds = [medians[0] * bound for bound in (comparison.ratio_low, comparison.ratio_high) if bound is not None]
    axis = _axis([*_all(default), *_all(other), *bounds, *([] if budget is None else [budget])])
    return Samples(
        metric=comparison.metric,
        shared=(_strip(default, medians[0], axis), _strip(other, medians[1], axis)),
        zoomed=(_strip(default, medians[0], _axis(_all(default))), _strip(other, medians[1], _axis(_all(other)))),
        ticks=axis.ticks(),
        budget=None if budget is None else axis.at(budget),
        interval=(axis.at(bounds[0]), axis.at(bounds[1])) if len(bounds) == 2 else None,
    )


def describe(samples: Samples) -> str:
    """The drawing in words."""
    said = []
    for name, strip in zip(("default", "this implementation"), samples.shared, strict=True):
        spread = units.format_percent((strip.high_ns - strip.low_ns) / strip.median_ns if strip.median_ns else None, sign=False)
        figures = ", ".join(units.format_ns(value) for value in (strip.low_ns, strip.median_ns, strip.high_ns))
        said.append(
            f"{name}: {strip.samples} samples in {strip.processes} processes, lowest, median, highest {figures}, {spread}"
        )
    return "; ".join(said)


def _rows(arm: ArmFigures | None, metric: str) -> list[tuple[int, ...]]:
    """The values per process, in the order in which the processes ran."""
    if arm is None:
        return []
    ordered = sorted(arm.samples, key=lambda one: (one.block, one.position))
    return [values for one in ordered if (values := getattr(one, f"{metric}_ns"))]


def _all(rows: list[tuple[int, ...]]) -> list[int]:
    return [value for row in rows for value in row]


def _axis(values: Iterable[float]) -> LinearAxis:
    present = list(values)
    low, high = min(present), max(present)
    room = (high - low) * 0.02 or max(high * 0.01, 1.0)
    return LinearAxis(low - room, high + room)


def _strip(rows: list[tuple[int, ...]], median: int, axis: LinearAxis) -> Strip:
    values = _all(rows)
    strokes = []
    for number, row in enumerate(rows):
        places = sorted({round(axis.at(value) * WIDTH / 100) for value in row})
        strokes += [f"M{place} {number * ROW}v{ROW - 1}" for place in places]
    return Strip(
        path="".join(strokes),
        height=len(rows) * ROW,
        median=axis.at(median),
        ticks=axis.ticks(3),
        samples=len(values),
        processes=len(rows),
        low_ns=min(values),
        median_ns=median,
        high_ns=max(values),
    )
