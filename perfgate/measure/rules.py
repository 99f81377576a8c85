"""Which rule decides what GPU work belongs to a range, and the proof that a range may claim its whole process.

- ``process``: every launch of the range's process whose API call lies inside the range, whatever its thread;
- ``same-thread``: those launched by the thread that opened the range;
- ``cross-thread``: those launched by the thread that opened and the thread that closed it.

One rule holds for all instances of a name within a process, so that their figures can be compared.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfgate.measure.codes import factorize_rows

Ints = NDArray[np.int64]
Attribution = Literal["auto", "process", "same-thread"]
RULES = ("same-thread", "process", "cross-thread")
SAME_THREAD, PROCESS, CROSS_THREAD = range(3)
OWN_DOMAIN = "perfgate"
LEFT_OUT_DOMAIN = "perfgate.aux"
# Domains in which CUDA's own libraries mark their calls on whatever thread calls them: no claim of a program's own range.
LIBRARY_DOMAINS = (
    "CCCL",
    "cuBLAS",
    "cuBLASLt",
    "cuDNN",
    "cuFFT",
    "cuRAND",
    "cuSOLVER",
    "cuSPARSE",
    "cuTENSOR",
    "NCCL",
    "NVSHMEM",
)
_FOREVER = np.iinfo(np.int64).max


def choose(ranges: pd.DataFrame, attribution: Attribution) -> NDArray[np.int8]:
    """The index into :data:`RULES` per row of ``ranges`` (all of them, the unfinished included: they disprove too)."""
    if attribution == "process":
        return np.full(len(ranges), PROCESS, dtype=np.int8)
    crossing = (ranges["thread"] != ranges["end_thread"]).to_numpy()
    if attribution == "same-thread":
        return np.where(crossing, CROSS_THREAD, SAME_THREAD).astype(np.int8)
    own = ranges["domain"].isin([OWN_DOMAIN, LEFT_OUT_DOMAIN]).to_numpy()
    library = ranges["domain"].isin(LIBRARY_DOMAINS).to_numpy()
    alone = np.ones(len(ranges), dtype=bool)
    for disputing in (~own, ~own & ~library):  # a library's range disputes only another library's
        alone[disputing] = _alone(ranges[disputing])
    groups = factorize_rows(ranges["process"], ranges["domain"], ranges["name"])
    names = int(groups.max()) + 1 if len(groups) else 0
    disputed = np.bincount(groups[~alone], minlength=names) > 0
    crosses = np.bincount(groups[crossing], minlength=names) > 0
    rule = np.where(disputed, np.where(crosses, CROSS_THREAD, SAME_THREAD), PROCESS)[groups]
    return np.where(own, PROCESS, rule).astype(np.int8)


def _alone(ranges: pd.DataFrame) -> NDArray[np.bool_]:
    """Whether no range that another thread of the same process opened overlaps in time."""
    start = ranges["start"].to_numpy()
    end = np.where(ranges["closed"].to_numpy(), ranges["end"].to_numpy(), _FOREVER)
    process = factorize_rows(ranges["process"])
    thread = factorize_rows(ranges["process"], ranges["thread"])
    result: NDArray[np.bool_] = _overlaps(process, start, end) == _overlaps(thread, start, end)
    return result


def _overlaps(group: Ints, start: Ints, end: Ints) -> Ints:
    """How many ranges of its group each range overlaps for more than an instant; itself not counted the same way everywhere."""
    counts = np.zeros(len(group), dtype=np.int64)
    order = np.argsort(group, kind="stable")
    for places in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        starts, ends = np.sort(start[places]), np.sort(end[places])
        begun = np.searchsorted(starts, end[places], side="left")
        over = np.searchsorted(ends, start[places], side="right")
        counts[places] = begun - over
    return counts
