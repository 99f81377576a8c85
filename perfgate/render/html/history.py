"""The history as one self-contained page: a row per range with sparklines of overhead and both arms, changes marked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perfgate.history import QUANTITIES, History, Quantity, Regression, Series
from perfgate.render._history import TITLES, change_words, shown
from perfgate.render.html import environment, page_parts

WIDTH, HEIGHT = 240, 48


@dataclass(frozen=True)
class Spark:
    """One quantity of one series: SVG paths in a box of WIDTH × HEIGHT, and the same in words."""

    title: str
    line: str
    band: str
    dots: tuple[tuple[float, float, str], ...]  # x, y, what it is
    changes: tuple[float, ...]  # x
    budget: float | None  # y
    latest: str
    words: tuple[str, ...]
    label: str


def render(history: History, regressions: Sequence[Regression] = ()) -> str:
    """The page; the same runs give the same bytes."""
    rows = [(series, [_spark(series, quantity) for quantity in QUANTITIES]) for series in history.series]
    parts = page_parts("report.css", "history.js")
    return environment().get_template("history.html.j2").render(history=history, rows=rows, regressions=regressions, **parts)


def _spark(series: Series, quantity: Quantity) -> Spark:
    known = [(place, point.values[quantity], point) for place, point in enumerate(series.points) if quantity in point.values]
    bounds = [math.log(bound) for _, v, _ in known for bound in (v.low or v.value, v.value, v.high or v.value) if bound > 0]
    budget = math.log1p(series.budget) if quantity == "ratio" and series.budget is not None and series.budget > -1 else None
    if budget is not None and bounds and min(bounds) - 0.2 < budget < max(bounds) + 0.2:
        bounds.append(budget)
    low, high = min(bounds, default=0.0), max(bounds, default=0.0)
    room = max((high - low) * 0.08, 0.002)
    low, high = low - room, high + room

    def x(place: int) -> float:
        return round(4 + (WIDTH - 8) * (place / max(len(series.points) - 1, 1)), 1)

    def y(value: float) -> float:
        share = (math.log(value) - low) / (high - low) if value > 0 else 0.0
        return round(HEIGHT * (1 - min(max(share, 0.0), 1.0)), 1)

    upper = [f"{x(place)} {y(v.high or v.value)}" for place, v, _ in known]
    lower = [f"{x(place)} {y(v.low or v.value)}" for place, v, _ in reversed(known)]
    words = tuple(change_words(series, quantity))
    latest = shown(known[-1][1].value, quantity) if known else "not measured"
    return Spark(
        title=TITLES[quantity].replace("determin.", "deterministic"),
        line="M" + "L".join(f"{x(place)} {y(v.value)}" for place, v, _ in known) if known else "",
        band="M" + "L".join(upper + lower) + "Z" if known else "",
        dots=tuple(
            (x(p), y(v.value), f"{point.commit[:10] or point.run}: {shown(v.value, quantity)}") for p, v, point in known
        ),
        changes=tuple(x(change.at) for change in series.changes[quantity]),
        budget=None if budget is None or not low <= budget <= high else y(math.exp(budget)),
        latest=latest,
        words=words,
        label=f"{TITLES[quantity]} over {len(known)} runs, latest {latest}; " + ("; ".join(words) or "no change"),
    )
