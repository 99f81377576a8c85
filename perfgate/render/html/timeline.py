"""The median instance of each arm on one ns scale: what ran when, on how many rows, and where the GPU had nothing to do."""

from __future__ import annotations

from dataclasses import dataclass

from perfgate import units
from perfgate.model import ArmFigures, Comparison
from perfgate.render._text import shorten
from perfgate.render.html.axis import LinearAxis, Tick
from perfgate.render.html.kernels import COLOURS, letters_of, name_of

_FINEST = 0.12  # percent: neighbours of one kernel that would be thinner are drawn as one
_MOST = 400  # bars per arm


@dataclass(frozen=True)
class Bar:
    """``count`` operations of one kernel; ``left`` and ``width`` in percent of the shared axis."""

    letter: str
    colour: int
    row: int
    left: float
    width: float
    words: str


@dataclass(frozen=True)
class Lane:
    name: str
    bars: tuple[Bar, ...]
    rows: int
    left_out: int
    end_ns: int


@dataclass(frozen=True)
class Timeline:
    lanes: tuple[Lane, Lane]
    ticks: list[Tick]


def timeline_of(comparison: Comparison) -> Timeline | None:
    """The drawing, or ``None`` where neither arm has a timeline."""
    arms = [("default", comparison.default), (comparison.implementation, comparison.deterministic)]
    ends = [max((end for _, _, end in arm.timeline), default=0) if arm else 0 for _, arm in arms]
    if not max(ends):
        return None
    axis = LinearAxis(0, max(ends))
    letters = letters_of(comparison)
    default, other = (_lane(name, arm, axis, letters) for name, arm in arms)
    return Timeline((default, other), axis.ticks(6))


def _lane(name: str, arm: ArmFigures | None, axis: LinearAxis, letters: dict[str, int]) -> Lane:
    operations = sorted(arm.timeline if arm else (), key=lambda op: (op[1], op[2]))
    merged: list[tuple[str, int, int, int, int]] = []  # name, start, end, row, count
    free: list[int] = []  # when each row is free again
    for kernel, start, end in operations:
        row = next((number for number, until in enumerate(free) if until <= start), len(free))
        if row == len(free):
            free.append(0)
        free[row] = end
        last = next((index for index in range(len(merged) - 1, -1, -1) if merged[index][3] == row), None)
        if last is not None and merged[last][0] == kernel and _thin(axis, merged[last][1], end):
            merged[last] = (kernel, merged[last][1], end, row, merged[last][4] + 1)
        else:
            merged.append((kernel, start, end, row, 1))
    bars = tuple(_bar(*one, axis, letters) for one in merged[:_MOST])
    return Lane(
        name, bars, max(len(free), 1), sum(one[4] for one in merged[_MOST:]), max((op[2] for op in operations), default=0)
    )


def _thin(axis: LinearAxis, start: int, end: int) -> bool:
    return axis.at(end) - axis.at(start) < _FINEST


def _bar(kernel: str, start: int, end: int, row: int, count: int, axis: LinearAxis, letters: dict[str, int]) -> Bar:
    number = letters[kernel]
    times = f"{count} × " if count > 1 else ""
    words = f"{times}{shorten(kernel, 80)}: {units.format_ns(end - start)}, from {units.format_ns(start)}"
    left = axis.at(start)
    return Bar(name_of(number), number % COLOURS, row, left, max(axis.at(end) - left, _FINEST), words)
