"""Comparison × Budget -> Verdict. Pure: no I/O, no clock, no environment; the same samples always give the same verdict.

:func:`judge` replays the planned looks on the samples at hand (first 3 blocks, first 6, ...), so a stored run that is judged
again gives what the run itself gave. The decision rule is :mod:`perfgate.sequential`, the codes are :mod:`perfgate.reasons`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np

from perfgate.budgets import Budgets
from perfgate.checks import accuracy_reason, bits_reason, kernels_reason, memory_reason
from perfgate.compare import complete_blocks, effect, estimate, values_of
from perfgate.estimate import Estimate
from perfgate.model import BudgetRef, Comparison, Exempt, Metric, Reason, RunVerdict, Status
from perfgate.reasons import CODES, STATUS_OF_EXIT, by_severity, exit_code
from perfgate.sequential import UNDECIDED, Looks, decide
from perfgate.signals import changing_kernels
from perfgate.timing import Trial, timing_reasons

PROBLEMS = frozenset(code for code, meaning in CODES.items() if meaning.status in ("error", "invalid", "skipped"))


@dataclass
class _Open:
    """A judged range whose time can be tested, and how far its test has come."""

    comparison: Comparison
    trial: Trial
    looks: list[int]


def judge(
    comparisons: Sequence[Comparison],
    budgets: Budgets,
    *,
    looks: Looks | None = None,
    final: bool = True,
    foreign: bool = False,
    family: int = 0,
) -> tuple[Comparison, ...]:
    """``comparisons`` with budget, status, reasons and the interval at the level that decided.

    ``looks`` is the run's plan (default: 3, 6, 12, 24 blocks);
    ``final`` says that no more blocks will come. ``foreign`` runs bring no bits, memory or accuracy of their own: none is
    demanded. ``family`` is how many ranges are tested together where these are a part of them (a shard); at least these are.
    Problems that earlier stages found stand in ``signals`` and are kept. Unjudged comparisons get an interval and
    what is wrong with them, but no verdict.
    """
    looks = looks or Looks()
    refs = [budgets.find(one.range) if one.judged else None for one in comparisons]
    trials = _test(comparisons, refs, looks, final, family)
    return tuple(
        _judged(one, refs[place], trials.get(place), foreign) if one.judged else _ranked(one, foreign)
        for place, one in enumerate(comparisons)
    )


def undecided_blocks(comparisons: Sequence[Comparison]) -> list[int]:
    """The numbers of blocks of the judged ranges that more blocks may decide, for :func:`perfgate.sequential.next_look`."""
    return [one.blocks for one in comparisons if one.judged and one.status == "inconclusive" and not _kernels_change(one)]


def verdict(
    comparisons: Sequence[Comparison],
    reasons: Sequence[Reason] = (),
    *,
    complete: bool = True,
    on_inconclusive: str = "fail",
    exempt: Sequence[Exempt] = (),
) -> RunVerdict:
    """The run's verdict: the most severe exit code of its judged comparisons and of ``reasons`` (of the run as a whole).

    ``complete`` False can never pass. ``on_inconclusive`` "pass" turns exit code 4 into 0; the status stays inconclusive.
    """
    judged = [one for one in comparisons if one.judged]
    counts = dict.fromkeys(get_args(Status), 0) | dict(Counter(one.status for one in judged))
    counts["skipped"] += len(exempt)
    whole = list(reasons)
    if not complete:
        whole.append(Reason("INCOMPLETE", "the run was cut short", "run it again; what it measured is kept"))
    if all(one.status == "skipped" for one in judged) and not exit_code(whole):
        whole.append(Reason("NOTHING_MEASURED", "nothing was judged", "`perfgate run --dry-run` shows what would run"))
    code = exit_code([*whole, *(reason for one in judged for reason in one.reasons)])
    code = 5 if code is None else code
    text = _sentence(code, judged, whole, counts)
    if code == 4 and on_inconclusive == "pass":
        return RunVerdict("inconclusive", 0, counts, f"{text}; accepted by --on-inconclusive pass", tuple(whole))
    return RunVerdict(STATUS_OF_EXIT[code], code, counts, text, tuple(whole))


def foreign_no_effect(comparisons: Sequence[Comparison]) -> Reason | None:
    """NO_EFFECT for a foreign run whose mode changed the kernels of no range at all; never with metric host."""
    tested = [one for one in comparisons if one.metric != "host" and one.default and one.deterministic]
    if not tested or any(kernels_reason(one) is None for one in tested):
        return None
    text = f"all {len(tested)} ranges launched the same kernels in both arms: the mode had no effect"
    return Reason("NO_EFFECT", text, "check that the program reads the mode, and that the flag reaches its libraries")


def _test(
    comparisons: Sequence[Comparison], refs: Sequence[BudgetRef | None], looks: Looks, final: bool, family: int
) -> dict[int, Trial]:
    """Replays the looks over all judged ranges that have a budget and figures."""
    open_ranges: dict[int, _Open] = {}
    for place, (one, ref) in enumerate(zip(comparisons, refs, strict=True)):
        if ref is not None and (evidence := _evidence(one, ref, None)) is not None:
            blocks = _blocks(one, ref.metric)
            trial = Trial(ref, evidence, blocks, one.default, looks)
            open_ranges[place] = _Open(one, trial, looks.until(blocks, final))
    family = max(family, len(open_ranges))
    failed = 0
    for look in sorted({look for tested in open_ranges.values() for look in tested.looks}):
        due = [tested for tested in open_ranges.values() if look in tested.looks and tested.trial.outcome == UNDECIDED]
        for tested in due:
            tested.trial.evidence = _evidence(tested.comparison, tested.trial.budget, look) or tested.trial.evidence
        if due:
            failed += _look(due, look, looks, family, failed)
    return {place: tested.trial for place, tested in open_ranges.items()}


def _look(due: Sequence[_Open], look: int, looks: Looks, family: int, failed: int) -> int:
    """One look at the ranges that are due; returns how many failed at it."""
    earlier = [before for before in due[0].looks if before < look]
    alpha = looks.level(look, earlier[-1] if earlier else 0)
    together = Estimate(
        *(np.array([getattr(one.trial.evidence, name) for one in due]) for name in Estimate.__dataclass_fields__)
    )
    budget = np.array([one.trial.budget_log for one in due])
    ceiling = np.array([one.trial.ceiling_log for one in due])
    outcomes, levels = decide(together, budget, ceiling, alpha=alpha, family=family, failed=failed)
    for one, outcome, level in zip(due, outcomes, levels, strict=True):
        one.trial.settle(int(outcome), look, alpha, float(level), family)
    return int((outcomes == 1).sum())


def _evidence(one: Comparison, ref: BudgetRef, most: int | None) -> Estimate | None:
    if one.default is None or one.deterministic is None:
        return None
    return estimate(*complete_blocks(one.default, one.deterministic, ref.metric, most), ref.metric)


def _blocks(one: Comparison, metric: Metric) -> int:
    if one.default is None or one.deterministic is None:
        return 0
    pair = complete_blocks(one.default, one.deterministic, metric)
    return len({sample.block for sample in values_of(pair[0], metric)})


def _judged(one: Comparison, ref: BudgetRef | None, trial: Trial | None, foreign: bool) -> Comparison:
    one = _with_effect(one, ref, trial)
    problems = [reason for reason in one.signals if reason.code in PROBLEMS]
    if problems and all(CODES[reason.code].status == "skipped" for reason in problems):
        return replace(one, budget=ref, status="skipped", reasons=by_severity(problems))
    found: list[Reason | None] = [*problems, *_missing(one, ref, problems)]
    found += [bits_reason(one, demanded=not foreign and not problems), accuracy_reason(one)]
    if ref is not None:
        found.append(memory_reason(one, ref, demanded=not foreign and not problems))
    if one.default is not None and one.deterministic is not None:
        found.append(kernels_reason(one))
        found += timing_reasons(one, trial) if ref is not None else []
    reasons = by_severity(reason for reason in found if reason is not None)
    code = exit_code(reasons)
    return replace(one, budget=ref, status=STATUS_OF_EXIT[5 if code is None else code], reasons=reasons)


def _with_effect(one: Comparison, ref: BudgetRef | None, trial: Trial | None) -> Comparison:
    """The effect in the budget's metric, on the blocks and at the levels that decided."""
    if one.default is None or one.deterministic is None:
        return one
    metric = one.metric if ref is None else ref.metric
    pair = (one.default, one.deterministic)
    if trial is None:
        found = effect(*pair, metric)
    else:
        limited = complete_blocks(*pair, metric, trial.blocks)
        found = effect(*limited, metric, alpha=trial.alpha, alpha_low=trial.alpha_low)
    own = tuple(reason for reason in one.signals if reason.code not in ("MULTIMODAL", "DRIFT", "TOO_FEW_SAMPLES"))
    return replace(
        one,
        metric=metric,
        ratio=found.ratio,
        ratio_low=found.ratio_low,
        ratio_high=found.ratio_high,
        ratio_hodges_lehmann=found.ratio_hodges_lehmann,
        mde=found.mde,
        blocks=found.blocks,
        delta_ns=found.delta_ns,
        contributions=found.contributions,
        signals=own + found.signals,
    )


def _missing(one: Comparison, ref: BudgetRef | None, problems: Sequence[Reason]) -> list[Reason]:
    if problems:  # they say already why something is missing
        return []
    name = one.range.removesuffix("::")
    if one.default is None:
        return [Reason("NOTHING_MEASURED", f"{name}: the default was not measured", "run with --mode both")]
    if one.deterministic is None:
        text = f"{one.name} was not measured, its default was"
        return [Reason("VANISHED", text, "run with --mode both; `perfgate list` shows what is registered")]
    if ref is None:
        text = f"{name} has no budget"
        return [Reason("NOT_BUDGETED", text, "`perfgate budget suggest RUN` writes one; or set overhead in [defaults]")]
    return []


def _ranked(one: Comparison, foreign: bool) -> Comparison:
    """An unjudged comparison: what is wrong with it is named, but nothing counts."""
    one = _with_effect(one, None, None)
    problems = [reason for reason in one.signals if reason.code in PROBLEMS]
    if one.role != "contender" and not foreign:
        problems += [reason for reason in (bits_reason(one, demanded=False), accuracy_reason(one)) if reason]
    failed = any(CODES[reason.code].status == "error" for reason in problems)
    return replace(one, budget=None, status="error" if failed else "skipped", reasons=by_severity(problems))


def _kernels_change(one: Comparison) -> bool:
    arms = (one.default, one.deterministic)
    return one.metric in ("busy", "span") and any(changing_kernels(figures) for figures in arms if figures is not None)


def _sentence(code: int, judged: Sequence[Comparison], whole: Sequence[Reason], counts: dict[str, int]) -> str:
    """What decided the exit code; the views put the status before it."""
    total = len(judged)
    skipped = f", {counts['skipped']} skipped" if counts["skipped"] else ""
    if code == 0:
        return f"{counts['pass']} of {total} judged ranges within budget{skipped}"
    first = next((reason for reason in whole if exit_code([reason]) == code), None)
    if first is not None:
        return f"{first.text} ({first.code})"
    met = [(one, reason) for one in judged for reason in one.reasons if exit_code([reason]) == code]
    one, reason = met[0]
    ranges = len({other.name for other, _ in met})
    return f"{ranges} of {total} judged ranges {reason.code}{skipped}; first {one.name}: {reason.text}"
