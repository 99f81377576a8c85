"""What is wrong, or soon will be, with a set of budget files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import combinations
from pathlib import Path

from perfgate.budgets import Budgets, matches_device, read
from perfgate.errors import UsageError
from perfgate.model import Reason

SOON = timedelta(days=30)
OF_RANGES = ("UNMATCHED_BUDGET", "NOT_BUDGETED")


@dataclass(frozen=True)
class Lint:
    """``errors`` must be mended, ``warnings`` soon must be."""

    files: int
    budgets: int
    errors: tuple[Reason, ...]
    warnings: tuple[Reason, ...]


def lint(paths: Sequence[Path], ranges: Iterable[str], today: date) -> Lint:
    """Reads every file against the registered ``ranges``; a broken one does not hide what is wrong with the others."""
    errors: list[Reason] = []
    warnings: list[Reason] = []
    read_: list[Budgets] = []
    known = sorted(ranges)
    for path in paths:
        try:
            read_.append(read(path, today))
        except UsageError as error:
            errors.append(Reason("BROKEN_FILE", error.text, error.mend))
    for one in read_:
        found = [reason for reason in one.findings(known, known) if not (_of_a_program(one) and reason.code in OF_RANGES)]
        errors += [reason for reason in found if reason.code == "UNMATCHED_BUDGET"]
        warnings += [reason for reason in found if reason.code != "UNMATCHED_BUDGET"]
        warnings += _expiring(one, today)
    errors += [reason for pair in combinations(read_, 2) if (reason := _claimed_twice(*pair))]
    return Lint(len(paths), sum(len(one.content.budget) for one in read_), tuple(errors), tuple(warnings))


def _of_a_program(budgets: Budgets) -> bool:
    """Whether the file is for a program, whose step is judged: which ranges that has, only a run of it shows."""
    return any(entry.range == "step" for entry in budgets.content.budget)


def _expiring(budgets: Budgets, today: date) -> list[Reason]:
    return [
        Reason(
            "EXPIRES_SOON",
            f"{budgets.file}:{budgets.line(entry)}: budget {entry.range!r} ({entry.owner}) expires on {entry.expires}",
            "measure again, then renew it with a reason (`perfgate budget suggest RUN`)",
        )
        for entry in budgets.content.budget
        if today <= entry.expires < today + SOON
    ]


def _claimed_twice(first: Budgets, second: Budgets) -> Reason | None:
    """A device name that both files match: either would refuse to be chosen."""
    pairs = ((first, second), (second, first))
    for one, other in pairs:
        for pattern in other.content.match:
            if matches_device(one, pattern):
                text = f"{one.file} and {other.file} both match the device {pattern!r}"
                return Reason("DEVICE_CLAIMED_TWICE", text, "narrow match in one of them")
    return None
