"""From the default's time to the other's, step by step; the steps are the comparison's contributions and sum exactly."""

from __future__ import annotations

from dataclasses import dataclass

from perfgate.model import Comparison
from perfgate.render import _view
from perfgate.render.html.axis import LinearAxis

ORDER = ("slower", "added", "faster", "removed", "idle", "host")
WORDS = {
    "slower": "kernels in both arms that got slower",
    "added": "kernels only this implementation launches",
    "faster": "kernels in both arms that got faster",
    "removed": "kernels only the default launches",
    "idle": "gaps between kernels",
    "host": "time outside the GPU's work",
    "unexplained": "not explained by known kernels",
}
_BROKEN_BELOW = 0.35  # changes smaller than this share of the whole are drawn on an axis that does not start at 0


@dataclass(frozen=True)
class Step:
    """A bar from ``start`` to ``end`` (ns); ``left`` and ``width`` in percent; ``kind`` "total" for the two ends."""

    label: str
    words: str
    kind: str
    delta_ns: int
    left: float
    width: float


@dataclass(frozen=True)
class Waterfall:
    """``steps`` between the two totals sum to ``delta_ns``; ``from_zero`` is False where the axis starts at ``low_ns``."""

    default_ns: int
    other_ns: int
    delta_ns: int
    steps: tuple[Step, ...]
    low_ns: float
    from_zero: bool


def waterfall_of(comparison: Comparison) -> Waterfall | None:
    """The drawing, or ``None`` where one arm was not measured. What no contribution explains is a step of its own."""
    default_ns = _view.figure(comparison.default, comparison.metric)
    other_ns = _view.figure(comparison.deterministic, comparison.metric)
    if default_ns is None or other_ns is None:
        return None
    sums = {kind: sum(part.delta_ns for part in comparison.contributions if part.kind == kind) for kind in ORDER}
    sums["unexplained"] = other_ns - default_ns - sum(sums.values())
    changes = [(kind, amount) for kind, amount in sums.items() if amount]
    levels = [default_ns]
    for _, amount in changes:
        levels.append(levels[-1] + amount)
    low, high = min(levels), max(levels)
    from_zero = high - low >= _BROKEN_BELOW * high or low <= 0
    start = min(0.0, low) if from_zero else low - (high - low) * 0.5 - 1
    axis = LinearAxis(start, float(high))
    steps = [_step("default", "", "total", default_ns, axis, max(start, 0.0), default_ns)]
    for (kind, amount), before, after in zip(changes, levels, levels[1:], strict=False):
        steps.append(_step(kind, WORDS[kind], kind, amount, axis, before, after))
    steps.append(_step(comparison.implementation, "", "total", other_ns, axis, max(start, 0.0), other_ns))
    return Waterfall(default_ns, other_ns, other_ns - default_ns, tuple(steps), start, from_zero)


def _step(label: str, words: str, kind: str, delta: int, axis: LinearAxis, start: float, end: float) -> Step:
    left, right = sorted((axis.at(start), axis.at(end)))
    return Step(label, words, kind, delta, left, right - left)
