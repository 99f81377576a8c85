"""Workflow commands for GitHub Actions: annotations on the budget's line, worst first. Print them on stdout in a job's step."""

from __future__ import annotations

from perfgate.model import GateResult
from perfgate.render import _view
from perfgate.render._problems import Problem, problems
from perfgate.render._text import cut, visible

PER_LEVEL = 10  # GitHub shows ten annotations of each level per step and drops the rest
_LONGEST = 4000


def render(result: GateResult) -> str:
    """``::error file=thresholds/h200.toml,line=12,title=...::...`` lines, then the verdict as plain text."""
    shown: list[str] = []
    found = problems(result)
    for level in ("error", "warning", "note"):
        of_level = [problem for problem in found if problem.level == level]
        shown += [_command(problem) for problem in of_level[:PER_LEVEL]]
        if len(of_level) > PER_LEVEL:
            shown.append(f"perfgate: {len(of_level) - PER_LEVEL} more {level}s are in the step summary and in report.html")
    return "\n".join([*shown, _view.verdict_sentence(result)]) + "\n"


def _command(problem: Problem) -> str:
    place = {"file": problem.file, "line": str(problem.line)} if problem.file else {}
    subject = f" {problem.comparison.range}" if problem.comparison else ""
    properties = {**place, "title": cut(visible(f"perfgate {problem.reason.code}{subject}"), 200)}
    listed = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    level = "notice" if problem.level == "note" else problem.level
    return f"::{level} {listed}::{_data(cut(visible(problem.text), _LONGEST))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(visible(text)).replace(":", "%3A").replace(",", "%2C")
