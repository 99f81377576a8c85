"""What a CI has to say about a run, worst first: each problem with its level and the comparison it belongs to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from perfgate.model import Comparison, GateResult, Reason
from perfgate.reasons import CODES
from perfgate.render import _view

Level = Literal["error", "warning", "note"]
_ORDER: tuple[Level, ...] = ("error", "warning", "note")
_PLACE = re.compile(r"([\w./-]{1,200}\.toml):(\d{1,9})\b")
_SAID_ENOUGH = ("WITHIN_BUDGET", "SAME_KERNELS")  # what a pass is made of


@dataclass(frozen=True)
class Problem:
    """``comparison`` is ``None`` for what concerns the run as a whole; ``file`` is "" where no budget file is known."""

    level: Level
    reason: Reason
    comparison: Comparison | None
    file: str
    line: int  # from 1

    @property
    def text(self) -> str:
        """What is wrong, with what, and the next action."""
        subject = f"{self.comparison.name}: " if self.comparison else ""
        return subject + said(self.reason)


def said(reason: Reason) -> str:
    """A reason's text with its next action."""
    return f"{reason.text}; next: {reason.next}" if reason.next else reason.text


def problems(result: GateResult) -> list[Problem]:
    """Of the run, then of the judged comparisons in the leaderboard's order, sorted by level; findings are warnings.

    A judged comparison that did not pass always has at least one: where it names no reason, its status is the reason. Each
    stands on its budget's line, on the line its text names, or on the first line of the budget file.
    """
    found: list[tuple[Reason, Comparison | None]] = [(reason, None) for reason in _view.banners(result)]
    for group in _view.groups(result):
        found += [(reason, entry.comparison) for entry in group.entries for reason in _of(entry.comparison)]
    found += [(finding, None) for finding in _view.findings(result)]
    anywhere = next((c.budget.file for c in result.comparisons if c.budget), "")
    made = [Problem(_level(reason, c), reason, c, *_place(reason, c, anywhere)) for reason, c in found]
    return sorted(made, key=lambda problem: _ORDER.index(problem.level))


def _place(reason: Reason, comparison: Comparison | None, anywhere: str) -> tuple[str, int]:
    if comparison is not None and comparison.budget is not None:
        return comparison.budget.file, max(comparison.budget.line, 1)
    named = _PLACE.match(reason.text)
    return (named[1], max(int(named[2]), 1)) if named else (anywhere, 1)


def _of(comparison: Comparison) -> list[Reason]:
    if not comparison.judged:
        return []
    reasons = [reason for reason in comparison.reasons if reason.code not in _SAID_ENOUGH]
    if not reasons and comparison.status != "pass":
        reasons = [Reason(comparison.status.upper(), f"status {comparison.status} without a reason")]
    return reasons


def _level(reason: Reason, comparison: Comparison | None) -> Level:
    """By the code's status, or the comparison's where the code is unknown: red is an error, undecided or a remark a warning."""
    if reason.code in CODES:
        status = CODES[reason.code].status
    elif comparison is not None:
        status = comparison.status
    else:
        return "warning"
    levels: dict[str, Level] = {"pass": "note", "skipped": "note", "inconclusive": "warning"}
    return levels.get(status, "error")
