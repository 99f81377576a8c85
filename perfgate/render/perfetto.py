"""The median instances of every arm in Chrome's trace event format, which ui.perfetto.dev and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from perfgate.model import ArmFigures, Comparison, GateResult
from perfgate.render import _view
from perfgate.render._text import shorten


def render(result: GateResult) -> str:
    """One process per range, one thread per implementation; every range starts at 0. Open it at ui.perfetto.dev."""
    made: list[dict[str, Any]] = []
    for number, group in enumerate(_view.groups(result), start=1):
        made += events([entry.comparison for entry in group.entries], number)
    lines = ",\n".join(json.dumps(event) for event in made)
    return f'{{"displayTimeUnit": "ns", "traceEvents": [\n{lines}\n]}}\n'


def events(comparisons: Sequence[Comparison], process: int = 1) -> list[dict[str, Any]]:
    """The events of one range: complete ("X") events in us, the default once and then each implementation."""
    made = [_named("process_name", process, 0, comparisons[0].range)]
    default = next((one.default for one in comparisons if one.default is not None), None)
    thread = 1
    for arm in (default, *(one.deterministic for one in comparisons)):
        if arm is not None and arm.timeline:
            thread = _arm(made, arm, process, thread)
    return made


def _arm(made: list[dict[str, Any]], arm: ArmFigures, process: int, thread: int) -> int:
    """Adds one arm's operations, those that overlap on threads of their own; the next free thread."""
    free: list[int] = []
    for kernel, start, end in sorted(arm.timeline, key=lambda operation: operation[1:]):
        row = next((number for number, until in enumerate(free) if until <= start), len(free))
        if row == len(free):
            free.append(0)
            made.append(_named("thread_name", process, thread + row, arm.implementation + (f" (overlap {row})" if row else "")))
        free[row] = end
        times = {"ts": start / 1000, "dur": (end - start) / 1000}
        made.append({"name": shorten(kernel, 120), "ph": "X", **times, "pid": process, "tid": thread + row})
    return thread + len(free)


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": shorten(name, 200)}}
