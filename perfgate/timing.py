"""The verdict on time, in words: what a range's trial came to, why, and what to do next. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from perfgate.budgets import DEFAULTS
from perfgate.compare import values_of
from perfgate.estimate import Estimate
from perfgate.model import ArmFigures, BudgetRef, Comparison, Reason
from perfgate.sequential import FAIL, PASS, UNDECIDED, Looks, blocks_needed
from perfgate.signals import changing_kernels
from perfgate.units import format_limit, format_ns, format_percent

TIGHTEN_BY = 0.05  # a budget that could be this much lower, and still three MDE above what was measured, is too wide
SPARE_MDE = 3.0  # `perfgate budget suggest` writes measured + 3 × MDE


@dataclass
class Trial:
    """One range's test against its budget; :func:`perfgate.judge.judge` moves it on from look to look."""

    budget: BudgetRef
    evidence: Estimate
    blocks: int  # of the last look
    default: ArmFigures | None
    looks: Looks
    outcome: int = UNDECIDED
    alpha: float = 0.05
    alpha_low: float = 0.05
    family: int = 1
    looked: bool = False

    @property
    def budget_log(self) -> float:
        return math.log1p(self.budget.overhead)

    @property
    def ceiling_log(self) -> float:
        """The budget with the absolute floor added, as a share of the default's fastest process: an excess below it is none."""
        samples = () if self.default is None else values_of(self.default, self.budget.metric)
        fastest = min((float(np.median(getattr(one, f"{self.budget.metric}_ns"))) for one in samples), default=0.0)
        return math.log1p(self.budget.overhead + (self.budget.abs_floor_ns / fastest if fastest > 0 else 0.0))

    def settle(self, outcome: int, blocks: int, alpha: float, alpha_low: float, family: int) -> None:
        """Takes in what a look came to."""
        self.outcome, self.blocks, self.alpha, self.alpha_low, self.family = outcome, blocks, alpha, alpha_low, family
        self.looked = True

    @property
    def doubtful(self) -> bool:
        """True where only the doubt (several modes, drift) keeps it from being decided."""
        over = self.evidence.low(self.alpha_low) > self.budget_log and self.evidence.log_ratio > self.ceiling_log
        return self.outcome == UNDECIDED and bool(over or self.evidence.high(self.alpha) <= self.ceiling_log)


def timing_reasons(one: Comparison, trial: Trial | None) -> Iterator[Reason]:
    """Why the time of a judged comparison passes, fails or stays open."""
    blocking = [reason for reason in one.signals if reason.code == "TOO_FEW_SAMPLES"]
    if one.metric in ("busy", "span"):
        blocking += [reason for arm in (one.default, one.deterministic) if arm and (reason := changing_kernels(arm))]
    if one.ratio is None:
        text = f"{one.name}: {one.metric} was not measured in both arms, or is 0"
        yield Reason("NOTHING_MEASURED", text, "a range without GPU work has no busy time: judge host, or look at the capture")
    elif blocking:
        yield from blocking
    elif trial is None:  # fewer processes than an interval needs, without a signal that says so: arms of stored results
        text = f"{one.name}: {format_percent(one.ratio - 1)} {one.metric} from too few processes to know the noise"
        yield Reason("TOO_FEW_SAMPLES", text, "measure more blocks (--blocks 3)")
    elif trial.outcome == FAIL:
        yield _over(one, trial)
    elif trial.outcome == PASS:
        yield _within(one, trial)
        if (tighter := _tighter(one, trial)) is not None:
            yield tighter
    else:
        yield from _undecided(one, trial)


def _over(one: Comparison, trial: Trial) -> Reason:
    cause = max(one.contributions, key=lambda part: part.delta_ns, default=None)
    most = f"; most of it: {cause.kind} {shorten(cause.kernel)} {format_ns(cause.delta_ns)}" if cause else ""
    text = f"{_figures(one, trial.budget)}: {_times(one)}{most}"
    place = f"{trial.budget.file}:{trial.budget.line}"
    return Reason("OVER_BUDGET", text, f"make it faster, or raise {place} with a reason ({trial.budget.owner} owns it)")


def _within(one: Comparison, trial: Trial) -> Reason:
    assert one.ratio_high is not None  # noqa: S101 — a trial has an interval
    floor = ""
    if one.ratio_high - 1 > trial.budget.overhead:
        floor = f"; what may exceed it is less than the floor of {format_ns(trial.budget.abs_floor_ns)}"
    goal = ""
    if trial.budget.goal is not None:
        reached = "reached" if one.ratio_high - 1 <= trial.budget.goal else "not reached"
        goal = f"; goal {format_limit(trial.budget.goal)} {reached}"
    return Reason("WITHIN_BUDGET", f"{_figures(one, trial.budget)}: {_times(one)}{floor}{goal}")


def _tighter(one: Comparison, trial: Trial) -> Reason | None:
    if one.ratio is None or one.mde is None or trial.budget.range == DEFAULTS or trial.budget.provisional:
        return None
    enough = one.ratio - 1 + SPARE_MDE * one.mde
    if trial.budget.overhead - enough <= TIGHTEN_BY:
        return None
    place = f"{trial.budget.file}:{trial.budget.line}"
    text = f"a budget of {format_limit(round(enough, 3))} would do, it is {format_limit(trial.budget.overhead)}"
    return Reason("FASTER_THAN_BUDGET", text, f"tighten {place}, so that the win can't be lost unseen")


def _undecided(one: Comparison, trial: Trial) -> Iterator[Reason]:
    if not trial.looked:
        text = f"{one.name}: {trial.blocks} of the {trial.looks.at[0]} blocks that the first look needs"
        yield Reason("TOO_FEW_SAMPLES", text, "let the run finish")
        return
    if trial.doubtful:
        doubts = [reason for reason in one.signals if reason.code in ("MULTIMODAL", "DRIFT")]
        reach = [format_percent(float(np.expm1(value))) for value in _reach(trial)]
        for reason in doubts:
            text = f"{reason.text}; so it may lie anywhere from {reach[0]} to {reach[1]}, {_budget(trial.budget)}"
            yield Reason(reason.code, text, reason.next)
        if doubts:
            return
    below = one.mde is not None and abs(trial.budget.overhead) < one.mde
    code = "BUDGET_BELOW_NOISE" if below else "STRADDLES_BUDGET"
    noise = f"; the noise hides anything below {format_percent(one.mde, sign=False)}" if below else ""
    text = f"{_figures(one, trial.budget)} after {_blocks(trial.blocks)}{noise}"
    yield Reason(code, text, _more_blocks(trial))


def _more_blocks(trial: Trial) -> str:
    needed = blocks_needed(trial.evidence, trial.blocks, trial.budget_log, trial.ceiling_log, trial.looks, trial.family)
    if needed is None:
        return "it lies on its budget: no reasonable number of blocks decides it; make it faster or move the budget"
    return f"about {_blocks(needed)} would decide it: --max-blocks {needed}"


def _reach(trial: Trial) -> tuple[float, float]:
    return float(trial.evidence.lowest(trial.alpha_low)), float(trial.evidence.highest(trial.alpha))


def _figures(one: Comparison, budget: BudgetRef) -> str:
    """``busy +23.1 % [+22.8 %, +23.4 %], budget +15 % (h200.toml:12)``."""
    ratio, low, high = (
        format_percent(None if value is None else value - 1) for value in (one.ratio, one.ratio_low, one.ratio_high)
    )
    return f"{one.metric} {ratio} [{low}, {high}], {_budget(budget)}"


def _budget(budget: BudgetRef) -> str:
    provisional = "provisional " if budget.provisional else ""
    return f"{provisional}budget {format_limit(budget.overhead)} ({budget.file}:{budget.line})"


def _times(one: Comparison) -> str:
    times = [getattr(figures, f"{one.metric}_ns", None) for figures in (one.default, one.deterministic)]
    return f"{format_ns(times[0])} -> {format_ns(times[1])}"


def _blocks(number: int) -> str:
    return "1 block" if number == 1 else f"{number} blocks"


def shorten(kernel: str, most: int = 60) -> str:
    """A kernel's name that fits into a sentence: no control characters, at most ``most`` characters."""
    plain = "".join(letter if letter.isprintable() else " " for letter in kernel[: 4 * most])
    return plain if len(plain) <= most else plain[: most - 1] + "…"
