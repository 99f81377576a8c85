"""What ``report.html`` shows, worked out before any template runs."""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from perfgate import units
from perfgate.model import Comparison, GateResult, Metric, Reason, Status
from perfgate.render import _view
from perfgate.render._text import cut, visible
from perfgate.render.html.axis import RatioAxis, ratio_axis
from perfgate.render.html.figures import summary_figures
from perfgate.render.html.kernels import KernelTable, kernels_of
from perfgate.render.html.strips import Samples, samples_of
from perfgate.render.html.timeline import Timeline, timeline_of
from perfgate.render.html.waterfall import Waterfall, waterfall_of
from perfgate.render.perfetto import events

DETAILS_FOR_ALL = 120  # comparisons; in a larger run only the judged implementation of each range has its details in the page
LINKED_OPERATIONS = 150  # a longer timeline is exported by the command line only
_FACTS = (
    ("card", ("gpu.name", "cpu.name", "device")),
    ("driver", ("gpu.driver",)),
    ("CUDA", ("cuda",)),
    ("torch", ("torch",)),
    ("triton", ("triton",)),
    ("nsys", ("nsys",)),
    ("Python", ("python",)),
    ("commit", ("git.commit",)),
)


@dataclass(frozen=True)
class Tile:
    """One of the four counts; ``statuses`` are what it counts and what a click on it shows."""

    count: int
    word: str
    icon: str
    statuses: tuple[Status, ...]


@dataclass(frozen=True)
class Detail:
    """One implementation against the default of its range, drawn."""

    comparison: Comparison
    entry: _view.Entry
    samples: Samples | None
    waterfall: Waterfall | None
    timeline: Timeline | None
    kernels: KernelTable | None
    command: str
    trace: str
    figures: tuple[tuple[Metric, int | None, int | None], ...]
    time: units.Scale


@dataclass(frozen=True)
class Section:
    """One range: its rows in the leaderboard and its details further down, linked by ``anchor``."""

    anchor: str
    group: _view.Group
    head: _view.Entry
    ahead: str
    details: tuple[Detail, ...]
    left_out: int
    keys: dict[str, float | str]  # what the leaderboard can be sorted by; absent where not measured
    words: str  # what the filter searches


@dataclass(frozen=True)
class Page:
    result: GateResult
    sentence: str
    tiles: tuple[Tile, ...]
    banners: list[Reason]
    findings: list[Reason]
    skipped: tuple[Section, ...]
    facts: list[tuple[str, str]]
    environment: list[tuple[str, str]]
    figures: list[tuple[str, str, Markup]]
    sections: tuple[Section, ...]
    axis: RatioAxis
    metric: Metric
    time: units.Scale
    delta: units.Scale
    memory: units.Scale
    several: bool  # whether any range has rivals


def page_of(result: GateResult) -> Page:
    """Everything ``report.html.j2`` shows."""
    groups = _view.groups(result)
    comparisons = [entry.comparison for group in groups for entry in group.entries]
    anchors = _anchors(group.range for group in groups)
    everywhere = len(comparisons) <= DETAILS_FOR_ALL
    sections = tuple(_section(result, group, anchor, everywhere) for group, anchor in zip(groups, anchors, strict=True))
    return Page(
        result=result,
        sentence=_view.verdict_sentence(result),
        tiles=_tiles(result),
        banners=_view.banners(result),
        findings=_view.findings(result),
        skipped=tuple(s for s in sections if s.group.head.judged and s.group.head.status == "skipped"),
        facts=_facts(result),
        environment=_view.environment(result),
        figures=summary_figures(groups),
        sections=sections,
        axis=ratio_axis(_axis_values(comparisons)),
        metric=_view.main_metric(result),
        time=units.time_scale(_times(comparisons)),
        delta=units.time_scale(_median_size(c.delta_ns for c in comparisons)),
        memory=units.byte_scale(_median_size(_view.memory_delta(c) for c in comparisons)),
        several=any(len(group.entries) > 1 for group in groups),
    )


def repro(result: GateResult, comparison: Comparison) -> str:
    """The command that measures just this implementation again; the run's own where the range is not one of our ops'."""
    if not comparison.case or not result.run.command.startswith(("perfgate run", "perfgate merge")):
        return result.run.command
    named = ("--op", comparison.op, "--case", comparison.case, "--implementation", comparison.implementation)
    return shlex.join(["perfgate", "run", "--mode", "both", *named])


def data_link(comparison: Comparison) -> str:
    """The median instances as a ``data:`` link to a Chrome trace; "" where there are none or too many operations."""
    count = sum(len(arm.timeline) for arm in (comparison.default, comparison.deterministic) if arm is not None)
    if not 0 < count <= LINKED_OPERATIONS:
        return ""
    text = json.dumps({"traceEvents": events([comparison])}, separators=(",", ":"))
    return "data:application/json;base64," + base64.b64encode(text.encode()).decode()


def _section(result: GateResult, group: _view.Group, anchor: str, everywhere: bool) -> Section:
    head = next(entry for entry in group.entries if entry.comparison is group.head)
    shown = [head, *(entry for entry in group.entries if entry is not head)] if everywhere else [head]
    return Section(
        anchor=anchor,
        group=group,
        head=head,
        ahead=_ahead(group, head),
        details=tuple(_detail(result, entry, everywhere) for entry in shown),
        left_out=len(group.entries) - len(shown),
        keys=_keys(group.head),
        words=" ".join(_searched(group)).lower(),
    )


def _detail(result: GateResult, entry: _view.Entry, linked: bool) -> Detail:
    comparison = entry.comparison
    metrics: tuple[Metric, ...] = ("busy", "span", "host", "step_wall")
    figures = [(m, _view.figure(comparison.default, m), _view.figure(comparison.deterministic, m)) for m in metrics]
    scale = units.time_scale(value for _, *arms in figures for value in arms)
    return Detail(
        comparison=comparison,
        entry=entry,
        samples=samples_of(comparison),
        waterfall=waterfall_of(comparison),
        timeline=timeline_of(comparison),
        kernels=kernels_of(comparison),
        command=repro(result, comparison),
        trace=data_link(comparison) if linked else "",
        figures=tuple(row for row in figures if row[1] is not None or row[2] is not None),
        time=scale,
    )


def _ahead(group: _view.Group, head: _view.Entry) -> str:
    """``1 of 3, leads``, or who is ahead and by how much; "" where the head was not measured or is the only one that was."""
    mine, leader = head.comparison.ratio, group.entries[0]
    measured = sum(entry.rank is not None for entry in group.entries)
    if head.rank is None or measured == 1 or mine is None or leader.comparison.ratio is None:
        return ""
    if head.rank == 1:
        return f"{head.place} of {measured}, {'tied for first' if head.tied else 'leads'}"
    behind = units.format_percent(mine / leader.comparison.ratio - 1, sign=False)
    racy = ", not deterministic" if leader.comparison.role == "contender" else ""
    return f"{head.place} of {measured}, {behind} behind {cut(visible(leader.comparison.implementation), 40)}{racy}"


def _keys(head: Comparison) -> dict[str, float | str]:
    keys: dict[str, Any] = {
        "status": _view.severity(head),
        "name": head.range,
        "overhead": head.ratio,
        "budget": head.budget.overhead if head.budget else None,
        "default": _view.figure(head.default, head.metric),
        "this": _view.figure(head.deterministic, head.metric),
        "delta": head.delta_ns,
        "ops": head.deterministic.ops if head.deterministic else None,
        "memory": _view.memory_delta(head),
        "bits": head.bits.differing if head.bits.replays else None,
        "error": head.accuracy.deterministic,
    }
    return {name: value for name, value in keys.items() if value is not None}


def _searched(group: _view.Group) -> Iterator[str]:
    yield group.range
    for entry in group.entries:
        yield entry.comparison.implementation[:80]
        yield entry.comparison.status
    yield from (reason.code for reason in group.head.reasons)


def _tiles(result: GateResult) -> tuple[Tile, ...]:
    counts = _view.counts(result)
    tiles = [Tile(counts[s], _view.MARKS[s].word, _view.MARKS[s].icon, (s,)) for s in ("pass", "fail", "inconclusive")]
    broken: tuple[Status, ...] = ("invalid", "error")
    return (*tiles, Tile(sum(counts[s] for s in broken), "invalid or error", "!", broken))


def _facts(result: GateResult) -> list[tuple[str, str]]:
    """The few things that decide whether two runs can be compared, as (label, text)."""
    known = dict(_view.environment(result))
    facts = [("run", result.run.id), ("started", result.run.started)]
    facts += [(label, text) for label, keys in _FACTS if (text := next((known[key] for key in keys if key in known), ""))]
    facts += [("profiler", result.run.profiler), ("mode", result.run.mode), ("parts", _view.parts(result))]
    return [(label, text[:12] if label == "commit" else text) for label, text in facts if text]


def _anchors(names: Iterable[str]) -> list[str]:
    """Ids that are safe in a URL, unique on the page and the same for the same ranges."""
    used: dict[str, int] = {}
    anchors = []
    for name in names:
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", name)[:80].strip("-") or "range"
        used[slug] = used.get(slug, 0) + 1
        anchors.append(f"r-{slug}" + (f"--{used[slug]}" if used[slug] > 1 else ""))
    return anchors


def _axis_values(comparisons: list[Comparison]) -> Iterator[float | None]:
    for comparison in comparisons:
        yield from (comparison.ratio_low, comparison.ratio, comparison.ratio_high)
        if comparison.budget and comparison.budget.overhead < 1:
            yield 1 + comparison.budget.overhead


def _times(comparisons: list[Comparison]) -> Iterator[int | None]:
    for comparison in comparisons:
        for arm in (comparison.default, comparison.deterministic):
            yield _view.figure(arm, comparison.metric)


def _median_size(values: Iterable[int | None]) -> list[int]:
    """Only the middle of the sizes: differences lie around zero, and the smallest must not choose the column's unit."""
    sizes = sorted(abs(value) for value in values if value)
    return sizes[len(sizes) // 2 :][:1]
