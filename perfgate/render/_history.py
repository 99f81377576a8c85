"""The history of a repository's runs as a table for terminals, and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from perfgate import units
from perfgate.history import QUANTITIES, History, Quantity, Regression, Series
from perfgate.render import _view
from perfgate.render._text import visible
from perfgate.render.terminal import STYLES, Leaderboard

_BARS = "▁▂▃▄▅▆▇█"
_LONGEST_SPARK = 24
TITLES: dict[Quantity, str] = {"ratio": "overhead", "default": "default", "deterministic": "determin."}


def table(history: History, regressions: Sequence[Regression], *, width: int) -> Leaderboard:
    """Per range: overhead and both arms over the runs, with their changes; then the regressions. Print it with rich."""
    width = max(width, 60)
    board = Leaderboard()
    board.wrap(f"{history.runs} runs, {len(history.series)} ranges", width, "  ", "bold")
    for text in history.left_out:
        board.wrap(f"! left out: {visible(text)}", width, "  ", "bold yellow")
    for series in history.series:
        board.add()
        latest = series.points[-1]
        about = f"{series.range} · {latest.implementation} · {series.card} · {series.metric} · {len(series.points)} runs"
        board.wrap(visible(about), width, "  ", "bold")
        for quantity in QUANTITIES:
            _line(board, series, quantity, width)
    if regressions:
        board.add()
        for one in regressions:
            _regression(board, one, width)
    return board


def dumps(history: History, regressions: Sequence[Regression]) -> str:
    """Everything as JSON, unrounded; a change's levels are logarithms, ``at`` the index of its first point."""
    content = {**dataclasses.asdict(history), "regressions": [dataclasses.asdict(one) for one in regressions]}
    return json.dumps(content, indent=1) + "\n"


def change_words(series: Series, quantity: Quantity) -> list[str]:
    """``+3.2 % since 0123456789 (2026-11-20)``, and what else had changed by then."""
    said = []
    for change in series.changes[quantity]:
        point = series.points[change.at]
        where = point.commit[:10] + ("+" if point.commit.endswith("+") else "") or point.run
        because = f"; the machine changed too: {', '.join(point.environment)}" if point.environment else ""
        what = "ratio " if quantity == "ratio" else ""  # of the ratio, not points of the overhead
        said.append(visible(f"{what}{units.format_percent(change.fraction)} since {where} ({point.started[:10]}){because}"))
    return said


def shown(value: float | None, quantity: Quantity) -> str:
    """A ratio as overhead, a time with its unit."""
    return units.format_percent(units.overhead(value)) if quantity == "ratio" else units.format_ns(value)


def _line(board: Leaderboard, series: Series, quantity: Quantity, width: int) -> None:
    values = [point.values[quantity].value if quantity in point.values else None for point in series.points]
    known = [value for value in values if value is not None]
    if not known:
        board.add(f"  {TITLES[quantity]:<10}not measured", "dim")
        return
    ends = f"{shown(known[0], quantity)} → {shown(known[-1], quantity)}"
    changes = change_words(series, quantity)
    told = "; ".join(changes) if changes else "no change" if len(known) >= 5 else f"{len(known)} runs, changes need 5"
    board.wrap(f"  {TITLES[quantity]:<10}{_spark(values)}  {ends}  {told}", width, " " * 12, "" if changes else "dim")


def _spark(values: Sequence[float | None]) -> str:
    recent = values[-_LONGEST_SPARK:]
    known = [value for value in recent if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    if high - low < 0.002 * abs(high):  # noise is not to look like mountains
        return "".join(" " if value is None else _BARS[3] for value in recent)
    return "".join(" " if value is None else _BARS[round((value - low) / (high - low) * 7)] for value in recent)


def _regression(board: Leaderboard, one: Regression, width: int) -> None:
    mark = _view.MARKS[one.status]
    bounds = ""
    if one.ratio is not None and one.ratio_low is not None and one.ratio_high is not None:
        low, high = (units.percent_number(bound - 1) for bound in (one.ratio_low, one.ratio_high))
        bounds = f" {units.format_percent(one.ratio - 1)} ({low} … {high})"
    text = visible(f"{mark.icon} {mark.word}  {one.name} {one.range}:{one.implementation}{bounds}: {one.text}")
    board.wrap(text, width, "    ", STYLES[one.status] if one.status != "pass" else "")
