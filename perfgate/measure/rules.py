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
from numpy.typing import NDArray

from perfgate.measure.codes import Owners, groups
from perfgate.traces._coded import Codes
from perfgate.traces.table import Ints, Mask, Table

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


def choose(ranges: Table, attribution: Attribution, opened: Owners, closed: Owners | None) -> NDArray[np.int8]:
    """The index into :data:`RULES` per row of ``ranges``, which are in order of their starts within a process.

    All of them are needed, the unfinished included: they dispute too. ``opened`` and ``closed`` are the threads that opened and
    that closed them, ``None`` where these are the same.
    """
    count = len(ranges)
    if attribution == "process":
        return _all(PROCESS, count)
    crossing = None if closed is None else opened.codes != closed.codes
    if attribution == "same-thread":
        return _all(SAME_THREAD, count) if crossing is None else np.where(crossing, CROSS_THREAD, SAME_THREAD).astype(np.int8)
    domains = ranges.texts("domain")
    own = domains.is_one_of((OWN_DOMAIN, LEFT_OUT_DOMAIN))
    library = domains.is_one_of(LIBRARY_DOMAINS)
    group, example = groups(ranges.ints("process"), domains, ranges.texts("name"))
    disputed = np.zeros(len(example), dtype=bool)
    if library.any():  # a library's range disputes no program's
        _dispute(*_some(ranges, group, opened, ~own), disputed, library if not own.any() else library[~own])
    _dispute(*_some(ranges, group, opened, ~(own | library)), disputed)
    crosses = np.zeros(len(example), dtype=bool)
    if crossing is not None:
        crosses[group[crossing]] = True
    rule = np.where(disputed, np.where(crosses, CROSS_THREAD, SAME_THREAD), PROCESS).astype(np.int8)
    if not own.any() and (rule == rule[:1]).all():
        return _all(int(rule[0]), count) if count else rule[group]
    return np.where(own, np.int8(PROCESS), rule[group])


def _all(rule: int, count: int) -> NDArray[np.int8]:
    return np.broadcast_to(np.int8(rule), count)


def _some(ranges: Table, group: Codes, opened: Owners, which: Mask) -> tuple[Table, Codes, Owners]:
    return (ranges, group, opened) if which.all() else (ranges.take(which), group[which], opened.take(which))


def _dispute(ranges: Table, group: Codes, opened: Owners, disputed: Mask, asked: Mask | None = None) -> None:
    """Marks the groups with a range that overlaps in time one that another thread of its process opened.

    With ``asked`` only the ranges that it marks can be disputed, but all dispute.
    """
    start, end, closed = ranges.ints("start"), ranges.ints("end"), ranges.mask("closed")
    if not closed.all():
        end = np.where(closed, end, _FOREVER)
    processes = [process for process, _ in opened.keys]
    for process in dict.fromkeys(processes):
        mine = [opened.places(number) for number, each in enumerate(processes) if each == process]
        if sum(len(rows) > 0 for rows in mine) < 2:
            continue
        stretches = [_stretches(start[rows], end[rows]) for rows in mine]
        together = tuple(np.sort(np.concatenate(sides)) for sides in zip(*stretches, strict=True))
        for rows, (begins, ends) in zip(mine, stretches, strict=True):
            left = rows if asked is None else rows[asked[rows]]
            for low, high in itertools.pairwise(_growing(len(left))):
                part = left[low:high]
                part = part[~disputed[group[part]]]  # of a disputed group nothing more needs to be known
                met = _met(start[part], end[part], *together) != _met(start[part], end[part], begins, ends)
                disputed[group[part[met]]] = True


def _growing(count: int) -> list[int]:
    """Edges of stretches that grow eightfold from a thousand."""
    edges, size = [0], 1024
    while edges[-1] < count:
        edges.append(min(count, edges[-1] + size))
        size *= 8
    return edges


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
