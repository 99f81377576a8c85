"""The metrics that a program writes (loss, grad norm, ...): kept per run, and compared bit by bit within each arm."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from perfgate.determinism.metrics import Run, compare_runs, read_run
from perfgate.errors import PerfgateError, UnusableError, UsageError
from perfgate.model import Bits
from perfgate.program.arms import METRICS, RUN

KEPT = "metrics-kept"  # a run's metrics that were written to a place of the program's own choice


@dataclass(frozen=True)
class Checked:
    """All runs of one arm against its first one."""

    runs: int
    differing: int
    values: int  # per run
    first_difference: str = ""
    warning: str = ""

    def bits(self, default: Checked | None) -> Bits:
        """As a comparison stores it: each run after the first is a replay in a fresh process."""
        return Bits(
            replays=self.runs - 1,
            differing=self.differing,
            default_differing=None if default is None else default.differing,
            default_replays=0 if default is None else default.runs - 1,
            processes=self.runs,
            first_difference=self.first_difference,
        )


def refuse_stale(path: str) -> None:
    """Raises :class:`UsageError` where ``--metrics`` names a fixed place that holds something before the first run."""
    if path and RUN not in path and Path(path).exists():
        raise UsageError(
            f"--metrics {path} is there before any run: an old file could pass for a new one",
            f"move it away, or let the program write to $PERFGATE_METRICS_DIR (or {RUN}/...)",
        )


def collect(path: str, own: Path) -> Path | None:
    """What one run, whose folder is ``own``, left for comparison; ``None`` where it was asked for nothing and left nothing.

    What lies at a fixed place is moved into ``own``, so that the next run can't be mixed with it.
    Raises :class:`UnusableError` where ``--metrics`` names something that the run did not write.
    """
    if path:
        place = Path(path.replace(RUN, str(own.resolve())))
        if not place.exists():
            raise UnusableError(
                f"the run left no metrics at {path}", "does the program write there? {run} is each run's own folder"
            )
        if RUN in path:
            return place
        kept = own / KEPT
        kept.mkdir()
        shutil.move(place, kept / place.name)
        return kept / place.name
    folder = own / METRICS
    return folder if any(one.is_file() for one in folder.rglob("*")) else None


class Comparer:
    """Compares each run of an arm with the arm's first; every run is read once."""

    def __init__(self) -> None:
        self._first: dict[str, Run] = {}
        self._found: dict[str, Checked] = {}

    def add(self, arm: str, capture: str, path: Path) -> Checked:
        """Takes in one run's metrics and returns how the arm stands. Raises :class:`PerfgateError` where they can't be read."""
        try:
            run = read_run(path)
        except PerfgateError as error:
            raise UnusableError(f"{capture}: {error.text}", error.mend) from error
        if arm not in self._first:
            self._first[arm] = run
            self._found[arm] = Checked(1, 0, 0)
            return self._found[arm]
        known = self._found[arm]
        seen = compare_runs(self._first[arm], run)
        first = known.first_difference
        if seen.differences and not first:
            one = seen.differences[0]
            values = ["missing" if side is None else repr(side.value) for side in (one.first, one.second)]
            stream = "" if one.rank == "." else f"{one.rank}, "  # a rank's folder or file, where there are several
            first = f"step {one.step}, {stream}{one.tag}: {values[0]} in the first run, {values[1]} in {capture}"
            first += f" ({len(seen.differences)} of {seen.values} values)"
        warning = known.warning or "; ".join(seen.warnings)
        self._found[arm] = Checked(known.runs + 1, known.differing + bool(seen.differences), seen.values, first, warning)
        return self._found[arm]

    def of(self, arm: str) -> Checked | None:
        """How an arm stands; ``None`` where no run of it left metrics."""
        return self._found.get(arm)
