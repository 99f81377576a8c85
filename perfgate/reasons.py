"""The table of reason codes: the status each stands for and the exit code that follows (DESIGN.md's one table)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from perfgate.model import Reason, Status


class Meaning(NamedTuple):
    status: Status
    exit_code: int | None  # None: shown and counted, without a say in the exit code


CODES: dict[str, Meaning] = {
    "WITHIN_BUDGET": Meaning("pass", 0),
    "SAME_KERNELS": Meaning("pass", 0),
    "FASTER_THAN_BUDGET": Meaning("pass", 0),
    "OVER_BUDGET": Meaning("fail", 1),
    "MEMORY_OVER_BUDGET": Meaning("fail", 1),
    "WRONG_RESULT": Meaning("fail", 1),
    "UNMATCHED_BUDGET": Meaning("error", 2),
    "BITS_DIFFER": Meaning("fail", 3),
    "STRADDLES_BUDGET": Meaning("inconclusive", 4),
    "MULTIMODAL": Meaning("inconclusive", 4),
    "BUDGET_BELOW_NOISE": Meaning("inconclusive", 4),
    "TOO_FEW_SAMPLES": Meaning("inconclusive", 4),
    "DRIFT": Meaning("inconclusive", 4),
    "NOT_BUDGETED": Meaning("invalid", 5),
    "VANISHED": Meaning("invalid", 5),
    "NO_EFFECT": Meaning("invalid", 5),
    "ENVIRONMENT_CHANGED": Meaning("invalid", 5),
    "NOTHING_MEASURED": Meaning("invalid", 5),
    "INCOMPLETE": Meaning("invalid", 5),
    "WORKLOAD_FAILED": Meaning("error", 6),
    "PROFILER_FAILED": Meaning("error", 6),
    "UNSUPPORTED": Meaning("skipped", None),
    "EXEMPT": Meaning("skipped", None),
}
SEVERITY = (2, 6, 3, 5, 1, 4, 0)  # exit codes, most severe first
STATUS_OF_EXIT: dict[int, Status] = {
    2: "error",
    6: "error",
    3: "fail",
    5: "invalid",
    1: "fail",
    4: "inconclusive",
    0: "pass",
}


def exit_code(reasons: Iterable[Reason]) -> int | None:
    """The most severe exit code among ``reasons``; ``None`` where none of them has one. Unknown codes have none."""
    met = {CODES[one.code].exit_code for one in reasons if one.code in CODES}
    return next((code for code in SEVERITY if code in met), None)


def by_severity(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """``reasons`` with the most severe first, otherwise in their order."""

    def rank(reason: Reason) -> int:
        code = CODES[reason.code].exit_code if reason.code in CODES else None
        return len(SEVERITY) if code is None else SEVERITY.index(code)

    return tuple(sorted(reasons, key=rank))
