"""The decision rule: looks, alpha spending, Holm over ranges, three outcomes. Pure numpy; ``judge`` and ``simulate`` share it.

Both errors are spent over the looks: a range can only pass *or* fail with what its look may spend, so that a false pass is as
bounded as a false fail. Spending follows Lan and DeMets (Biometrika 1983), Pocock type: alpha * ln(1 + (e - 1) * t) at the
fraction t of the most blocks; what a look adds is used as a level of its own (a union bound: valid whatever the correlation of
the looks). Over ranges, Holm for FAIL (family-wise) and no correction for PASS (the promise is per range).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfgate.errors import UsageError
from perfgate.estimate import ROUNDING, Estimate, FloatArray, critical

UNDECIDED, PASS, FAIL = 0, -1, 1
SPENT = 0.04  # of the 5 % promised (a false fail in a run, a false pass of a range); the rest is for noise that is not normal
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Looks:
    """When the data may be looked at (numbers of blocks) and the error that may be spent over all looks together."""

    at: tuple[int, ...] = (3, 6, 12, 24)
    alpha: float = SPENT

    @classmethod
    def plan(cls, first: int = 3, limit: int = 24, alpha: float = SPENT) -> Looks:
        """Looks at ``first`` blocks, then at twice as many each time, the last at ``limit``.

        Raises :class:`UsageError` where first < 1 or limit < first.
        """
        if first < 1:
            raise UsageError(f"--blocks {first}: at least one block is needed", "use --blocks 3")
        if limit < first:
            raise UsageError(f"--max-blocks {limit} is less than --blocks {first}", f"use --max-blocks {first} or more")
        at = [first]
        while at[-1] * 2 < limit:
            at.append(at[-1] * 2)
        return cls((*at, limit) if limit > at[-1] else tuple(at), alpha)

    def spent(self, blocks: int) -> float:
        """Cumulative error spent once the data of ``blocks`` blocks have been looked at."""
        return self.alpha * math.log1p((math.e - 1) * min(1.0, blocks / self.at[-1]))

    def level(self, blocks: int, before: int = 0) -> float:
        """What a look at ``blocks`` may spend when the previous look was at ``before`` (0: none)."""
        return self.spent(blocks) - (self.spent(before) if before else 0.0)

    def until(self, blocks: int, final: bool = True) -> list[int]:
        """The looks due with ``blocks`` blocks at hand; when nothing more will come (``final``), one at ``blocks`` itself."""
        due = [look for look in self.at if look <= blocks]
        if final and blocks > 0 and blocks < self.at[-1] and blocks not in due:
            due.append(blocks)
        return due

    def after(self, blocks: int) -> int | None:
        """The next look's number of blocks, or ``None`` where the last one has been."""
        return next((look for look in self.at if look > blocks), None)


def decide(
    evidence: Estimate, budget: FloatArray, ceiling: FloatArray, *, alpha: float, family: int, failed: int
) -> tuple[IntArray, FloatArray]:
    """One look at some undecided ranges of a family of ``family``, of which ``failed`` have failed at earlier looks.

    ``budget`` is log(1 + overhead), ``ceiling`` the same with the absolute floor added (>= budget): FAIL needs the lower bound
    above the budget and the estimate above the ceiling, PASS the upper bound at or below the ceiling. Returns the outcomes
    (UNDECIDED, PASS, FAIL) and the level at which each range's lower bound was compared (Holm's).
    """
    over = evidence.p_above(budget)
    outcome = np.where(evidence.p_below(ceiling) <= alpha, PASS, UNDECIDED)
    levels = np.full(over.shape, alpha)
    rejected = failed
    for index in np.argsort(over, kind="stable"):
        levels[index] = alpha / max(1, family - rejected)
        if over[index] > levels[index]:
            break
        rejected += 1
        if evidence.log_ratio[index] > ceiling[index] + ROUNDING:
            outcome[index] = FAIL
    open_ranges = over > alpha / max(1, family - rejected)
    levels[open_ranges] = alpha / max(1, family - rejected)
    return outcome, levels


def blocks_needed(evidence: Estimate, blocks: int, budget: float, ceiling: float, looks: Looks, family: int) -> int | None:
    """About how many blocks one undecided range needs, its ratio and noise staying as they are.

    ``None`` where it lies so close to its budget that ten times the most blocks planned would not do.
    """
    ratio, error = float(evidence.log_ratio), float(evidence.error)
    over = ratio > ceiling
    distance = ratio - budget - float(evidence.drift_low) if over else ceiling - ratio - float(evidence.drift_high)
    alpha = looks.level(looks.at[-1], looks.at[-2] if len(looks.at) > 1 else 0) / (family if over else 1)
    for wanted in range(blocks + 1, 10 * looks.at[-1] + 1):
        freedom = np.asarray(3.0 * wanted - 1.5)  # of arms that are alike: see perfgate.estimate
        if distance > float(critical(alpha, freedom)) * error * math.sqrt(blocks / wanted):
            return wanted
    return None


def next_look(undecided_blocks: Sequence[int], looks: Looks) -> int:
    """How many more blocks the undecided ranges need until their next look; 0 where nothing is undecided or the looks are over.

    ``undecided_blocks`` holds the number of blocks each of them has now.
    """
    wanted = [after - blocks for blocks in undecided_blocks if (after := looks.after(blocks)) is not None]
    return min(wanted, default=0)
