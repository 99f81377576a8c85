"""Which rule decides what GPU work belongs to a range, and the proof that a range may claim its whole process.

- ``process``: every launch of the range's process whose API call lies inside the range, whatever its thread;
- ``same-thread``: those launched by the thread that opened the range;
- ``cross-thread``: those launched by the thread that opened and the thread that closed it.

One rule holds for all instances of a name within a process, so that their figures can be compared.
"""

from __future__ import annotations

import itertools
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfgate.measure.codes import by_code, groups, is_one_of

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
    """The index into :data:`RULES` per row of ``ranges``, which are in order of their starts within a process.

    All of them are needed, the unfinished included: they dispute too.
    """
    if attribution == "process":
        return np.full(len(ranges), PROCESS, dtype=np.int8)
    crossing = (ranges["thread"] != ranges["end_thread"]).to_numpy()
    if attribution == "same-thread":
        return np.where(crossing, CROSS_THREAD, SAME_THREAD).astype(np.int8)
    own = is_one_of(ranges["domain"], (OWN_DOMAIN, LEFT_OUT_DOMAIN))
    library = is_one_of(ranges["domain"], LIBRARY_DOMAINS)
    alone = np.ones(len(ranges), dtype=bool)
    if library.any():  # a library's range disputes no program's
        alone[~own] = _alone(ranges[~own])
    alone[~own & ~library] = _alone(ranges[~own & ~library])
    group, example = groups(ranges["process"], ranges["domain"], ranges["name"])
    disputed = np.bincount(group[~alone], minlength=len(example)) > 0
    crosses = np.bincount(group[crossing], minlength=len(example)) > 0
    rule = np.where(disputed, np.where(crosses, CROSS_THREAD, SAME_THREAD), PROCESS)[group]
    return np.where(own, PROCESS, rule).astype(np.int8)


def _alone(ranges: pd.DataFrame) -> NDArray[np.bool_]:
    """Whether no range that another thread of the same process opened overlaps in time; ``ranges`` in order of their starts."""
    start = ranges["start"].to_numpy()
    end = np.where(ranges["closed"].to_numpy(), ranges["end"].to_numpy(), _FOREVER)
    process, _ = groups(ranges["process"])
    thread, example = groups(ranges["process"], ranges["thread"])
    alone = np.ones(len(ranges), dtype=bool)
    if len(example) == int(process.max(initial=-1)) + 1:
        return alone
    several = np.bincount(process[example]) > 1
    every, edges = by_code(process, len(several))
    for number in np.flatnonzero(several):
        places = every[edges[number] : edges[number + 1]]
        threads, owner = np.unique(thread[places], return_inverse=True)
        own, bounds = by_code(owner, len(threads))
        mine = [places[own[low:high]] for low, high in itertools.pairwise(bounds)]
        stretches = [_stretches(start[some], end[some]) for some in mine]
        together = tuple(np.sort(np.concatenate(sides)) for sides in zip(*stretches, strict=True))
        for some, (begins, ends) in zip(mine, stretches, strict=True):
            alone[some] = _met(start[some], end[some], *together) == _met(start[some], end[some], begins, ends)
    return alone


def _stretches(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Begins and ends of the stretches of time that some of these ranges, in order of their starts, cover."""
    lasting = end > start
    start, end = start[lasting], end[lasting]
    if not len(start):
        return start, end
    reached = np.maximum.accumulate(end)
    begins = np.flatnonzero(np.append(True, start[1:] >= reached[:-1]))
    return start[begins], reached[np.append(begins[1:] - 1, len(end) - 1)]


def _met(start: Ints, end: Ints, begins: Ints, ends: Ints) -> Ints:
    """How many of some stretches (begins and ends, each sorted) every range overlaps for more than an instant."""
    return np.searchsorted(begins, end, side="left") - np.searchsorted(ends, start, side="right")
