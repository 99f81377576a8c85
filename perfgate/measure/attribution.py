"""Which GPU operations belong to which range: their launching API call lies inside it, by the range's rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfgate.measure import rules, sweep
from perfgate.measure.codes import by_code, groups
from perfgate.traces._threads import side_by_side
from perfgate.traces.table import Ints, Mask, Table, distinct, is_steady, taken


@dataclass(eq=False, repr=False)  # bare: every start waits for it
class Launched:
    """GPU operations with the API call that launched each, by the call's begin. ``row`` is the place in ``trace.ops``."""

    row: Ints
    begin: Ints  # of the API call
    finish: Ints
    start: Ints  # on the GPU
    end: Ints
    device: Ints
    process: Ints
    thread: Ints

    def at(self, places: Ints) -> Launched:
        """The operations at ``places``, in that order, all of one process or thread."""
        if len(places) == len(self.row):
            return self
        row, begin, finish = self.row[places], self.begin[places], self.finish[places]
        device = taken(self.device, places)
        return Launched(row, begin, finish, self.start[places], self.end[places], device, self.process, self.thread)


def launched(ops: Table, launches: Table, launch: Ints) -> Launched:
    """The operations whose launch is known (``launch`` >= 0), ordered by its begin (ties: GPU start and end, then row)."""
    known: Ints | slice = slice(None) if len(launch) and launch.min() >= 0 else np.flatnonzero(launch >= 0)
    row = np.arange(len(launch))[known]
    call = launch[known]
    begin, start, end = launches.ints("start")[call], ops.ints("start")[known], ops.ints("end")[known]
    device = taken(ops.ints("device"), known)
    if not (begin[1:] > begin[:-1]).all():
        order = np.argsort(begin, kind="stable")
        if (begin[order[1:]] == begin[order[:-1]]).any():
            order = np.lexsort((row, end, start, begin))
        row, call, begin, start, end = (values[order] for values in (row, call, begin, start, end))
        device = taken(device, order)
    finish, process, thread = (taken(launches.ints(name), call) for name in ("end", "process", "thread"))
    return Launched(row, begin, finish, start, end, device, process, thread)


def unanswered(launches: Table, lost: Ints) -> Launched:
    """The launches at the places ``lost``, as operations that took no time, so that they can be counted per range."""
    lost = lost[np.argsort(launches.ints("start")[lost], kind="stable")]
    nothing = np.zeros(len(lost), dtype=np.int64)
    begin, finish, process, thread = (taken(launches.ints(name), lost) for name in ("start", "end", "process", "thread"))
    return Launched(lost, begin, finish, nothing, nothing, nothing, process, thread)


@dataclass(eq=False, repr=False)  # bare: every start waits for it
class Attributed:
    """What every range got. ``members`` are (range, op row) pairs in launch order, of the ranges asked for."""

    totals: sweep.Totals
    covered: Mask  # per row of trace.ops: some range claims it
    members: tuple[Ints, Ints]


def attribute(ranges: Table, rule: NDArray[np.int8], work: Launched, ops: int, listed: Mask | None) -> Attributed:
    """Totals per row of ``ranges``, what is covered of ``ops`` operations, and the members of the ``listed`` ranges."""
    totals = sweep.Totals.none(len(ranges))
    covered = np.zeros(ops, dtype=bool)
    twofold = _twofold(ranges, rule)
    halves: list[tuple[Ints, ...]] = []
    members: list[tuple[Ints, Ints]] = []
    start, end = ranges.ints("start"), ranges.ints("end")

    def plainly(scope: tuple[Ints, Ints]) -> tuple[_Window, Mask | None] | None:
        places, mine = scope
        window = _window(places, start, end, work.at(mine))
        loose = window.loose(twofold)
        window.add_plain(None if loose is None else ~loose, totals, covered)  # no two scopes share a plain range
        return None if loose is None and listed is None else (window, loose)

    for window, loose in filter(None, side_by_side(plainly, list(_scopes(ranges, rule, work)))):
        for owner, place in window.pairs(np.empty(0, dtype=np.int64) if loose is None else np.flatnonzero(loose)):
            covered[window.work.row[place]] = True
            parts = owner, window.work.start[place], window.work.end[place], window.work.device[place]
            both = np.zeros(len(owner), dtype=bool) if twofold is None else twofold[owner]
            halves.append(tuple(part[both] for part in parts))
            _add_loose(totals, *(part[~both] for part in parts))
        if listed is not None:
            members.extend(window.member_rows(listed))
    if halves:
        _add_loose(totals, *(np.concatenate(part) for part in zip(*halves, strict=True)))
    return Attributed(totals, covered, _in_launch_order(members, work))


def _twofold(ranges: Table, rule: NDArray[np.int8]) -> Mask | None:
    """The ranges that two threads share, ``None`` for none."""
    if is_steady(rule) and len(rule) and rule[0] != rules.CROSS_THREAD:
        return None
    twofold = (rule == rules.CROSS_THREAD) & (ranges.ints("thread") != ranges.ints("end_thread"))
    return twofold if twofold.any() else None


@dataclass(eq=False, repr=False)  # bare: every start waits for it
class _Window:
    """Ranges of one scope (a thread or a process) over its operations: ``[low, high)`` each, in launch order.

    ``straddled`` marks ranges in whose window some API call ends only after the range: such calls are not inside; ``None``
    where there are none.
    """

    ranges: Ints  # places in the ranges frame
    limit: Ints  # the ranges' ends
    work: Launched
    low: Ints
    high: Ints
    straddled: Mask | None

    def loose(self, twofold: Mask | None) -> Mask | None:
        """Which of the ranges need a look at every single operation, ``None`` for none."""
        if twofold is None:
            return self.straddled
        return twofold[self.ranges] if self.straddled is None else self.straddled | twofold[self.ranges]

    def add_plain(self, plain: Mask | None, totals: sweep.Totals, covered: Mask) -> None:
        """Adds the ranges whose window is exactly what belongs to them: ``plain``, or all."""
        work = self.work
        ranges, low, high = (each if plain is None else each[plain] for each in (self.ranges, self.low, self.high))
        devices = work.device[:1] if is_steady(work.device) else distinct(work.device)
        if len(devices) == 1:
            totals.put(ranges, sweep.windows(work.start, work.end, low, high))
        else:
            for device in devices:
                there = work.device == device
                count = np.append(0, np.cumsum(there))
                totals.take(ranges, sweep.windows(work.start[there], work.end[there], count[low], count[high]))
        size = len(work.row) + 1
        depth = np.cumsum(np.bincount(low, minlength=size) - np.bincount(high, minlength=size))[:-1]
        covered[work.row[depth > 0]] = True

    def pairs(self, chosen: Ints) -> Iterator[tuple[Ints, Ints]]:
        """(range, place in ``work``) of the ``chosen`` windows, calls that outlive their range left out, in portions."""
        low, high = self.low[chosen], self.high[chosen]
        for some in sweep.portions(high - low):
            owner, place = sweep.expand(low[some], high[some])
            owner = chosen[some][owner]
            inside = self.work.finish[place] <= self.limit[owner]
            yield self.ranges[owner[inside]], place[inside]

    def member_rows(self, listed: Mask) -> Iterator[tuple[Ints, Ints]]:
        """(range, op row) of the ``listed`` ranges."""
        for owner, place in self.pairs(np.flatnonzero(listed[self.ranges])):
            yield owner, self.work.row[place]


def _scopes(ranges: Table, rule: NDArray[np.int8], work: Launched) -> Iterator[tuple[Ints, Ints]]:
    """For each thread or process that has ranges: these and its operations. A cross-thread range comes twice, once a thread."""
    process, thread = ranges.ints("process"), ranges.ints("thread")
    whole = np.flatnonzero(rule == rules.PROCESS)
    both = np.flatnonzero(rule != rules.PROCESS)
    threads = thread if len(both) == len(ranges) else taken(thread, both)
    second = _twofold(ranges, rule)
    if second is not None:
        both = np.concatenate([both, np.flatnonzero(second)])
        threads = np.concatenate([threads, ranges.ints("end_thread")[second]])
    for places, mine, theirs in (
        (whole, (taken(process, whole),), (work.process,)),
        (both, (taken(process, both), threads), (work.process, work.thread)),
    ):
        for some, ops in _matched(mine, theirs):
            yield places if len(some) == len(places) else places[some], ops


def _matched(left: tuple[Ints, ...], right: tuple[Ints, ...]) -> Iterator[tuple[Ints, Ints]]:
    """For each key on the left: its places there, and its places on the right, both in their order."""
    if not len(left[0]):
        return
    theirs = dict(_parts(right))
    for key, places in _parts(left):
        yield places, theirs.get(key, np.empty(0, dtype=np.int64))


def _parts(columns: tuple[Ints, ...]) -> Iterator[tuple[tuple[int, ...], Ints]]:
    """Every key with its places."""
    codes, example = groups(*columns)
    order, edges = by_code(codes, len(example))
    for number, place in enumerate(example.tolist()):
        yield tuple(int(column[place]) for column in columns), order[edges[number] : edges[number + 1]]


def _window(places: Ints, start: Ints, end: Ints, work: Launched) -> _Window:
    """Windows by the begin of the API calls, cut short where calls come one after another and the last outlives the range."""
    whole = len(places) == len(start) and bool((places[1:] > places[:-1]).all())
    limit, begun = (end, start) if whole else (end[places], start[places])
    low = np.searchsorted(work.begin, begun, side="left")
    latest = np.maximum.accumulate(work.finish)
    inside = sweep.reached(latest, limit, low)
    if np.array_equal(latest, work.finish):
        return _Window(places, limit, work, low, inside, None)
    high = sweep.reached(work.begin, limit, low)
    return _Window(places, limit, work, low, high, inside < high)


def _add_loose(totals: sweep.Totals, owner: Ints, start: Ints, end: Ints, device: Ints) -> None:
    """Adds loose (range, operation) pairs: sums and counts, and the union per device."""
    for each in np.unique(device):
        there = device == each
        ranges, local = np.unique(owner[there], return_inverse=True)
        begin, finish = start[there], end[there]
        union, first, last = sweep.pairs(local, begin, finish, len(ranges))
        sums = np.zeros(len(ranges), dtype=np.int64)
        np.add.at(sums, local, finish - begin)
        totals.take(ranges, sweep.Totals(np.bincount(local), sums, union, first, last))


def _in_launch_order(members: list[tuple[Ints, Ints]], work: Launched) -> tuple[Ints, Ints]:
    if not members:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    owner, row = (np.concatenate(part) for part in zip(*members, strict=True))
    position = np.zeros(int(work.row.max()) + 1 if len(work.row) else 1, dtype=np.int64)
    position[work.row] = np.arange(len(work.row))
    order = np.lexsort((position[row], owner))
    return owner[order], row[order]
