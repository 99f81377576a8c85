"""Many runs of the same ranges: how ratio and times went from commit to commit, and which arm is slower than in a base run.

The gate compares the two arms of one run, so a slowdown that both share is invisible to it; here each arm is compared with
itself in other runs of the same kind of machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy import special

from perfgate.budgets import pattern_matches
from perfgate.change_points import Change, change_points
from perfgate.compare import process_medians
from perfgate.environment import unlike
from perfgate.errors import UsageError
from perfgate.estimate import critical, unpaired
from perfgate.model import ArmFigures, Comparison, GateResult, Metric, Status
from perfgate.store import load_result
from perfgate.units import format_limit

Quantity = Literal["ratio", "default", "deterministic"]
QUANTITIES: tuple[Quantity, ...] = ("ratio", "default", "deterministic")
ALPHA = 0.05  # one-sided, as the interval of a comparison
_UNKNOWN_ERROR = 0.01  # of a value whose run tells no interval


@dataclass(frozen=True)
class Value:
    """A ratio, or an arm's ns; ``low`` and ``high`` bound it at 5 % each, ``None`` where the run tells no interval."""

    value: float
    low: float | None
    high: float | None

    @property
    def error(self) -> float:
        """The standard error of its logarithm."""
        if self.low is None or self.high is None or self.low <= 0:
            return _UNKNOWN_ERROR
        return math.log(self.high / self.low) / (2 * float(special.ndtri(1 - ALPHA)))


@dataclass(frozen=True)
class Point:
    """One range in one run; ``environment`` names what had changed in the machine since the point before."""

    run: str
    started: str
    commit: str
    status: Status
    implementation: str
    values: dict[Quantity, Value]
    environment: tuple[str, ...] = ()


@dataclass(frozen=True)
class Series:
    """A range on one kind of card, oldest run first; ``changes`` index ``points``."""

    range: str
    card: str
    metric: Metric
    budget: float | None  # the latest one's overhead
    points: tuple[Point, ...]
    changes: dict[Quantity, tuple[Change, ...]]


@dataclass(frozen=True)
class History:
    """All series, and the runs that were left out with the reason."""

    series: tuple[Series, ...]
    runs: int
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class Regression:
    """One arm of one range against the same arm in a base run."""

    name: str  # default_regression | deterministic_regression
    range: str
    implementation: str
    status: Status
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    text: str


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """Every ``result.json`` that ``paths`` name or hold, each once. Raises :class:`UsageError` where one holds none."""
    found: dict[Path, None] = {}
    for path in paths:
        files = [path] if path.is_file() else sorted(path.rglob("result.json"))
        if not files:
            raise UsageError(f"{path} holds no result.json", "name run directories, or a folder of them such as runs/")
        found.update(dict.fromkeys(file.resolve() for file in files))
    return list(found)


def history(results: Iterable[GateResult], pattern: str = "*") -> History:
    """The series of all judged ranges that match ``pattern``; what is not :func:`usable` is left out, and said."""
    ordered = sorted(results, key=lambda result: (result.run.started, result.run.id))
    kept = usable(ordered)
    seen = {id(result) for result in kept}
    left_out = tuple(
        f"{result.run.id}: {'a part of a merged run' if result.run.complete else 'cut short'}"
        for result in ordered
        if id(result) not in seen
    )
    series: dict[tuple[str, str, Metric], list[tuple[GateResult, Comparison]]] = {}
    for result in kept:
        for comparison in result.comparisons:
            if comparison.judged and pattern_matches(pattern, comparison.range):
                key = (_called(result, comparison), card_of(result), comparison.metric)
                series.setdefault(key, []).append((result, comparison))
    made = tuple(_series(*key, members) for key, members in sorted(series.items(), key=lambda item: item[0]))
    return History(made, len(kept), left_out)


def usable(results: Sequence[GateResult]) -> list[GateResult]:
    """Without the runs that were cut short and those that another of them was merged from."""
    parts = {(part.id, part.started) for result in results for part in result.run.merged}
    return [result for result in results if result.run.complete and (result.run.id, result.run.started) not in parts]


def regressions(base: GateResult, now: GateResult, allow: float = 0.02) -> list[Regression]:
    """Both arms of every judged range of ``now`` against ``base``, and of those that vanished.

    Fail: surely slower by more than ``allow`` (Holm over all tests at 5 %). Pass: surely not. A range or an arm that is gone
    is invalid, as is everything where the two machines differ in what matters.
    """
    before = {c.range: c for c in base.comparisons if c.judged}
    after = {c.range: c for c in now.comparisons if c.judged}
    other = "; ".join(str(difference) for difference in unlike(base.environment, now.environment))
    made: list[Regression] = []
    tests: list[tuple[int, float]] = []
    for name in sorted(before.keys() | after.keys()):
        for arm in ("default", "deterministic"):
            one, p = _regression(arm, name, before.get(name), after.get(name), other, allow)
            if p is not None:
                tests.append((len(made), p))
            made.append(one)
    failed = _holm(tests)
    return [replace(one, status="fail") if place in failed else one for place, one in enumerate(made)]


def card_of(result: GateResult) -> str:
    """What kind of device a run was made on."""
    environment: dict[str, Any] = result.environment
    part = environment.get("gpu") or environment.get("cpu") or {}
    return str((part.get("name") if isinstance(part, dict) else None) or result.run.device or "unknown")


def _called(result: GateResult, comparison: Comparison) -> str:
    """The range; of a program with its command, for every program has a "step"."""
    return comparison.range if result.program is None else f"{comparison.op} of {result.program.command}"


def _series(name: str, card: str, metric: Metric, members: Sequence[tuple[GateResult, Comparison]]) -> Series:
    points = []
    before: GateResult | None = None
    for result, comparison in members:
        differences = unlike(before.environment, result.environment) if before is not None else ()
        points.append(_point(result, comparison, tuple(str(difference) for difference in differences)))
        before = result
    budget = members[-1][1].budget
    return Series(
        range=name,
        card=card,
        metric=metric,
        budget=None if budget is None else budget.overhead,
        points=tuple(points),
        changes={quantity: _changes(points, quantity) for quantity in QUANTITIES},
    )


def _changes(points: Sequence[Point], quantity: Quantity) -> tuple[Change, ...]:
    known = [(place, point.values[quantity]) for place, point in enumerate(points) if quantity in point.values]
    found = change_points([math.log(value.value) for _, value in known], [value.error for _, value in known])
    return tuple(Change(known[change.at][0], change.before, change.after) for change in found)


def _point(result: GateResult, comparison: Comparison, environment: tuple[str, ...]) -> Point:
    values: dict[Quantity, Value] = {}
    if comparison.ratio is not None and comparison.ratio > 0:
        values["ratio"] = Value(comparison.ratio, comparison.ratio_low, comparison.ratio_high)
    arms: dict[Quantity, ArmFigures | None] = {"default": comparison.default, "deterministic": comparison.deterministic}
    for quantity, arm in arms.items():
        if (value := _time(arm, comparison.metric)) is not None:
            values[quantity] = value
    git = result.environment.get("git")
    commit = str(git.get("commit") or "") + ("+" if git.get("dirty") else "") if isinstance(git, dict) else ""
    run = result.run
    return Point(run.id, run.started, commit, comparison.status, comparison.implementation, values, environment)


def _time(arm: ArmFigures | None, metric: Metric) -> Value | None:
    """The arm's figure with the interval that its processes give."""
    figure = getattr(arm, f"{metric}_ns") if arm is not None else None
    if arm is None or not figure:
        return None
    logs = process_medians(arm, metric)
    if logs.size < 2 or not np.isfinite(logs).all():
        return Value(float(figure), None, None)
    reach = float(critical(ALPHA, np.asarray(logs.size - 1.0)) * logs.std(ddof=1) / math.sqrt(logs.size))
    middle = math.exp(float(logs.mean()))
    return Value(middle, middle * math.exp(-reach), middle * math.exp(reach))


def _regression(
    arm: str, name: str, base: Comparison | None, now: Comparison | None, other: str, allow: float
) -> tuple[Regression, float | None]:
    """The comparison of one arm, passed or undecided, and the p value of "no slower than allowed" where it was tested."""
    before, after = (getattr(one, arm) if one is not None else None for one in (base, now))
    old, shown = (figures.implementation if figures is not None else "" for figures in (before, after))

    def made(
        status: Status, text: str, ratio: float | None = None, low: float | None = None, high: float | None = None
    ) -> Regression:
        return Regression(f"{arm}_regression", name, shown or old, status, ratio, low, high, text)

    if base is None:
        return made("skipped", "new: the base run does not have it"), None
    if now is None or after is None:
        return made("invalid", "VANISHED: the base run has it, this run does not"), None
    if other:
        return made("invalid", f"ENVIRONMENT_CHANGED: {other}"), None
    metric = now.metric
    logs = [process_medians(figures, metric) if figures is not None else np.empty(0) for figures in (before, after)]
    if min(one.size for one in logs) < 2 or not np.isfinite(np.concatenate(logs)).all():
        return made("inconclusive", f"TOO_FEW_SAMPLES of {metric} in one of the runs"), None
    found = unpaired(*logs)
    limit = np.asarray(math.log1p(allow))
    bounds = [math.exp(float(bound)) for bound in (found.log_ratio, found.lowest(ALPHA), found.highest(ALPHA))]
    renamed = f"; {old} became {shown}" if old != shown else ""
    status: Status = "pass" if float(found.highest(ALPHA)) <= float(limit) else "inconclusive"
    return made(status, f"allowed {format_limit(allow)} {metric}{renamed}", *bounds), float(found.p_above(limit))


def _holm(tests: Sequence[tuple[int, float]]) -> set[int]:
    """The places whose p value stands Holm's test at 5 %."""
    failed: set[int] = set()
    for rank, (place, p) in enumerate(sorted(tests, key=lambda test: test[1])):
        if p > ALPHA / (len(tests) - rank):
            break
        failed.add(place)
    return failed


def load(paths: Iterable[Path]) -> list[GateResult]:
    """The results of all runs under ``paths``. Raises :class:`UsageError` for the first that can't be read."""
    return [load_result(path) for path in find_runs(paths)]
