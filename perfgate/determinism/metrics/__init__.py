"""Two training runs' recorded scalars, compared bit by bit: what proves that a whole run is deterministic.

Reads TensorBoard event files, JSON lines and CSV. Imports neither torch nor pandas.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfgate.determinism.metrics.comparison import Verification, compare_runs
from perfgate.determinism.metrics.runs import Run, read_run
from perfgate.errors import UsageError

__all__ = ["Run", "Verification", "compare_runs", "read_run", "verify"]


def verify(first: Path, second: Path, *, exclude: Sequence[str] = (), include: Sequence[str] = ()) -> Verification:
    """Compares two runs. Raises :class:`UsageError` for a run that can't be read, and for one compared with itself."""
    if first.exists() and second.exists() and first.samefile(second):
        raise UsageError(f"{first} and {second} are the same", "give two independent runs")
    return compare_runs(read_run(first), read_run(second), exclude=exclude, include=include)
