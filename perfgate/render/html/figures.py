"""The summary figures, drawn by matplotlib as inline SVG in the page's own colours; the same result gives the same bytes."""

from __future__ import annotations

import io
import math
import re
import warnings
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from perfgate import units
from perfgate.model import Comparison
from perfgate.render import _view
from perfgate.render._text import cut, visible
from perfgate.render.html.axis import ratio_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 25  # ranges a figure shows
_STYLE: Any = {  # matplotlib's own type for it is a literal of every key, and changes with its version
    "svg.fonttype": "none",
    "svg.hashsalt": "perfgate",
    "text.parse_math": False,
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "axes.unicode_minus": True,
}
# Stand-ins that matplotlib accepts, replaced by what the style sheet defines for light and dark.
_TEXT, _FAINT, _DEFAULT, _OTHER, _LIMIT = "#010101", "#020202", "#030303", "#040404", "#050505"
_VARIABLES = {_TEXT: "--fg", _FAINT: "--line", _DEFAULT: "--default", _OTHER: "--this", _LIMIT: "--limit"}


def summary_figures(groups: list[_view.Group]) -> list[tuple[str, str, Markup]]:
    """(Caption, description, SVG) per figure; none where fewer than two ranges were measured."""
    heads = [group.head for group in groups if group.head.ratio is not None and group.head.delta_ns is not None]
    if len(heads) < 2:
        return []
    by_overhead = sorted(heads, key=lambda c: (-(c.ratio or 0.0), c.range))
    by_delta = sorted(heads, key=lambda c: (-abs(c.delta_ns or 0), c.range))
    drawn = [
        ("Overhead against budget", _forest(_ends(by_overhead)), _told(by_overhead, "highest overhead")),
        ("Where the time is", _deltas(by_delta[:MOST]), _told(by_delta, "largest difference")),
    ]
    return [
        (caption + _shown(len(heads)), words, _inline(figure, f"figure{number}-"))
        for number, (caption, figure, words) in enumerate(drawn)
    ]


def _ends(ordered: list[Comparison]) -> list[Comparison]:
    """The dearest and the cheapest where not all have room."""
    return ordered if len(ordered) <= MOST else [*ordered[: MOST - 8], *ordered[-8:]]


def _shown(count: int) -> str:
    return f" ({MOST} of {count} ranges)" if count > MOST else ""


def _told(ordered: list[Comparison], what: str) -> str:
    first = ordered[0]
    figures = f"{units.format_percent(units.overhead(first.ratio))}, {units.format_ns(first.delta_ns)}"
    return f"{len(ordered)} ranges; {what}: {visible(first.range)}, {figures}. The leaderboard lists every figure."


def _forest(comparisons: list[Comparison]) -> Figure:
    figure, axes = _sheet(len(comparisons))
    budgets = [1 + c.budget.overhead if c.budget else None for c in comparisons]
    axis = ratio_axis(value for c in comparisons for value in (c.ratio, c.ratio_low, c.ratio_high))
    for place, (comparison, budget) in enumerate(zip(comparisons, budgets, strict=True)):
        ratio = comparison.ratio or 1.0
        low, high = comparison.ratio_low or ratio, comparison.ratio_high or ratio
        axes.plot([low, high], [place, place], color=_OTHER, linewidth=3, solid_capstyle="butt")
        axes.plot([ratio], [place], color=_TEXT, marker="|", markersize=9, markeredgewidth=1.6)
        if budget is not None and axis.low <= budget <= axis.high:
            axes.plot([budget, budget], [place - 0.4, place + 0.4], color=_LIMIT, linewidth=2)
    axes.set_xscale("log")
    axes.set_xlim(axis.low, axis.high)
    ticks = _ratio_ticks(axis.low, axis.high)
    axes.set_xticks([ratio for ratio, _ in ticks], labels=[text for _, text in ticks])
    axes.minorticks_off()
    axes.axvline(1.0, color=_FAINT, linewidth=1, zorder=0)
    axes.set_xlabel("overhead of the deterministic arm (bar: interval, thick tick: budget)", color=_TEXT)
    _name(axes, comparisons)
    return figure


def _deltas(comparisons: list[Comparison]) -> Figure:
    figure, axes = _sheet(len(comparisons))
    values = [c.delta_ns or 0 for c in comparisons]
    scale = units.time_scale([max(map(abs, values))])
    colours = [_OTHER if value > 0 else _DEFAULT for value in values]
    axes.barh(range(len(values)), [value / scale.divisor for value in values], color=colours, height=0.62)
    reach = max(map(abs, values)) / scale.divisor or 1.0
    for place, value in enumerate(values):
        text = f"{'+' if value > 0 else ''}{units.format_ns(value)}"
        axes.text(max(value, 0) / scale.divisor + 0.02 * reach, place, text, va="center", ha="left", color=_TEXT)
    room = 0.4 * (max(0, *values) - min(0, *values)) / scale.divisor
    axes.set_xlim(min(0.0, *values) / scale.divisor - 0.05 * room, max(0.0, *values) / scale.divisor + room)
    axes.axvline(0.0, color=_TEXT, linewidth=1)
    axes.set_xlabel(f"deterministic minus default, {scale.unit} per instance", color=_TEXT)
    _name(axes, comparisons)
    return figure


def _ratio_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Round overheads between the ends, no two so near that their labels meet; no overhead always."""
    steps = (0.1, 0.2, 0.5, 0.75, 0.9, 0.95, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0, 8.0)
    chosen = [1.0]
    for step in sorted(steps, key=lambda step: -abs(math.log(step))):
        apart = min(abs(math.log(step / other)) for other in chosen) / math.log(high / low)
        if low <= step <= high and apart > 0.13:
            chosen.append(step)
    return [(step, units.format_limit(step - 1)) for step in sorted(chosen)]


def _sheet(rows: int) -> tuple[Figure, Axes]:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(7.2, 0.9 + 0.27 * rows), layout="constrained")
        axes = figure.add_subplot()
    figure.patch.set_alpha(0)
    axes.patch.set_alpha(0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_FAINT)
    axes.tick_params(colors=_TEXT, length=0)
    axes.grid(axis="x", color=_FAINT, linewidth=0.5)
    axes.set_axisbelow(True)
    return figure, axes


def _name(axes: Axes, comparisons: list[Comparison]) -> None:
    axes.set_yticks(range(len(comparisons)), labels=[cut(visible(c.range), 34) for c in comparisons])
    axes.set_ylim(len(comparisons) - 0.4, -0.6)


def _inline(figure: Figure, prefix: str) -> Markup:
    """The figure as an ``<svg>`` without file header, its ids unique on the page and its colours the style sheet's."""
    import matplotlib as mpl

    buffer = io.StringIO()
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the reader's browser draws the text, not matplotlib
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{prefix}', text)
    text = re.sub(r"(url\(#|href=\"#)", rf"\g<1>{prefix}", text)
    text = re.sub(
        r'^<svg[^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true" focusable="false">', text, count=1
    )
    for stand_in, variable in _VARIABLES.items():
        text = text.replace(stand_in, f"var({variable})")
    return Markup(re.sub(r"\n\s*", "\n", text))  # noqa: S704 - matplotlib escapes the names it writes
