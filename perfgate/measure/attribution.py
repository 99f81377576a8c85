"""Which GPU operations belong to which range: their launching API call lies inside it, by the range's rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfgate.measure import rules, sweep
from perfgate.measure.codes import Owners
from perfgate.traces._threads import side_by_side
from perfgate.traces.table import Ints, Mask, Table, distinct, is_steady, taken

_NOTHING: Ints = np.empty(0, dtype=np.int64)


@dataclass(eq=False, repr=False)  # bare: every start waits for it
class Launched:
    """GPU operations with the API call that launched each, by the call's begin."""

    row: Ints | None  # the place in ``trace.ops``, ``None`` where it is the place here
    begin: Ints  # of the API call
    finish: Ints
    start: Ints  # on the GPU
    end: Ints
    device: Ints

    def at(self, places: Ints) -> Launched:
        """The operations at ``places``, in that order."""
        if len(places) == len(self.begin):
            return self
        begin, finish, start, end = (values[places] for values in (self.begin, self.finish, self.start, self.end))
        return Launched(self.rows(places), begin, finish, start, end, taken(self.device, places))

    def rows(self, places: Ints) -> Ints:
        """Where the operations at ``places`` stand in ``trace.ops``."""
        return places if self.row is None else self.row[places]


def launched(ops: Table, launches: Table, launch: Ints, threads: Owners) -> tuple[Launched, Owners]:
    """The operations whose launch is known (``launch`` >= 0), ordered by its begin (ties: GPU start and end, then row).

    With the threads that launched them; ``threads`` are those of ``launches``.
    """
    row = None if len(launch) and launch.min() >= 0 else np.flatnonzero(launch >= 0)
    known: Ints | slice = slice(None) if row is None else row
    call = launch[known]
    begin, start, end = launches.ints("start")[call], ops.ints("start")[known], ops.ints("end")[known]
    device = taken(ops.ints("device"), known)
    if not (begin[1:] > begin[:-1]).all():
        order = np.argsort(begin, kind="stable")
        if (begin[order[1:]] == begin[order[:-1]]).any():
            order = np.lexsort((np.arange(len(begin)), end, start, begin))
        row = order if row is None else row[order]
        call, begin, start, end = (values[order] for values in (call, begin, start, end))
        device = taken(device, order)
    return Launched(row, begin, launches.ints("end")[call], start, end, device), threads.take(call)


def unanswered(launches: Table, lost: Ints, threads: Owners) -> tuple[Launched, Owners]:
    """The launches at the places ``lost``, as operations that took no time, so that they can be counted per range."""
    lost = lost[np.argsort(launches.ints("start")[lost], kind="stable")]
    nothing = np.zeros(len(lost), dtype=np.int64)
    begin, finish = launches.ints("start")[lost], launches.ints("end")[lost]
    return Launched(lost, begin, finish, nothing, nothing, nothing), threads.take(lost)


class Attributed(NamedTuple):
    """What every range got. ``members`` are (range, op row) pairs in launch order, of the ranges asked for."""

    totals: sweep.Figures
    covered: Mask  # per row of trace.ops: some range claims it
    members: tuple[Ints, Ints]


class Claims(NamedTuple):
    """Which thread opened each row of ``ranges``, which closed it where that may differ, and the rule of its attribution."""

    ranges: Table
    opened: Owners
    closed: Owners | None
    rule: NDArray[np.int8]

    def take(self, places: Mask) -> Claims:
        """The same of the ranges at ``places``."""
        closed = None if self.closed is None else self.closed.take(places)
        return Claims(self.ranges.take(places), self.opened.take(places), closed, taken(self.rule, places))

    @property
    def twofold(self) -> Mask | None:
        """The ranges that two threads share, ``None`` for none."""
        if self.closed is None or (is_steady(self.rule) and len(self.rule) and self.rule[0] != rules.CROSS_THREAD):
            return None
        twofold = (self.rule == rules.CROSS_THREAD) & (self.ranges.ints("thread") != self.ranges.ints("end_thread"))
        return twofold if twofold.any() else None


def claims(ranges: Table, attribution: rules.Attribution) -> Claims:
    """The claims of all ranges of a trace, which are in order of their starts within a process, by the rule that fits them."""
    process, thread, end_thread = (ranges.ints(name) for name in ("process", "thread", "end_thread"))
    if thread is end_thread or np.array_equal(thread, end_thread):
        opened, closed = Owners.of(process, thread), None
    else:
        both = Owners.of(np.concatenate([process, process]), np.concatenate([thread, end_thread]))
        opened, closed = (Owners(codes, both.keys) for codes in (both.codes[: len(ranges)], both.codes[len(ranges) :]))
    return Claims(ranges, opened, closed, rules.choose(ranges, attribution, opened, closed))


def attribute(claims: Claims, work: Launched, workers: Owners, ops: int, listed: Mask | None) -> Attributed:
    """Totals per range, what is covered of ``ops`` operations, and the members of the ``listed`` ranges.

    ``workers`` are the threads that launched ``work``.
    """
    figures = sweep.Figures(len(claims.ranges))
    covered = np.zeros(ops, dtype=bool)
    twofold = claims.twofold
    halves: list[tuple[Ints, ...]] = []
    members: list[tuple[Ints, Ints]] = []
    start, end = claims.ranges.ints("start"), claims.ranges.ints("end")

    def plainly(scope: tuple[Ints, Ints]) -> tuple[_Window, Mask | None] | None:
        places, mine = scope
        window = _window(places, start, end, work.at(mine))
        loose = window.loose(twofold)
        window.add_plain(None if loose is None else ~loose, figures, covered)  # no two scopes share a plain range
        return None if loose is None and listed is None else (window, loose)

    for window, loose in filter(None, side_by_side(plainly, list(_scopes(claims, workers, twofold)))):
        for owner, place in window.pairs(_NOTHING if loose is None else np.flatnonzero(loose)):
            covered[window.work.rows(place)] = True
            parts = owner, window.work.start[place], window.work.end[place], window.work.device[place]
            both = np.zeros(len(owner), dtype=bool) if twofold is None else twofold[owner]
            halves.append(tuple(part[both] for part in parts))
            _put_loose(figures, *(part[~both] for part in parts))
        if listed is not None:
            members.extend(window.member_rows(listed))
    if halves:
        _put_loose(figures, *(np.concatenate(part) for part in zip(*halves, strict=True)))
    return Attributed(figures, covered, _in_launch_order(members, work))


@dataclass(eq=False, repr=False)  # bare: every start waits for it
class _Window:
    """Ranges of one scope (a thread or a process) over its operations: ``[low, high)`` each, in launch order.

    ``straddled`` marks ranges in whose window some API call ends only after the range: such calls are not inside; ``None``
    where there are none.
    """

    ranges: Ints  # places in the table of ranges
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

    def add_plain(self, plain: Mask | None, figures: sweep.Figures, covered: Mask) -> None:
        """Puts in the ranges whose window is exactly what belongs to them: ``plain``, or all."""
        work = self.work
        ranges, low, high = (each if plain is None else each[plain] for each in (self.ranges, self.low, self.high))
        devices = work.device[:1] if is_steady(work.device) else distinct(work.device)
        if len(devices) == 1:
            totals = sweep.windows(work.start, work.end, low, high)
        else:
            totals = sweep.Totals.none(len(low))
            for device in devices:
                there = work.device == device
                count = np.append(0, np.cumsum(there))
                totals.take(slice(None), sweep.windows(work.start[there], work.end[there], count[low], count[high]))
        figures.put(ranges, totals)
        inside = sweep.inside(low, high, len(work.begin))
        if inside is not None:
            covered[work.rows(np.flatnonzero(inside))] = True
        elif work.row is None:
            covered[:] = True
        else:
            covered[work.row] = True

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
            yield owner, self.work.rows(place)


def _scopes(claims: Claims, workers: Owners, twofold: Mask | None) -> Iterator[tuple[Ints, Ints]]:
    """For each thread or process that has ranges: these and its operations. A cross-thread range comes twice, once a thread."""
    whole = claims.rule == rules.PROCESS
    if whole.any():
        places = None if whole.all() else np.flatnonzero(whole)
        owners = claims.opened.processes
        yield from _matched(places, owners if places is None else owners.take(places), workers.processes)
    if not whole.all():
        places = np.flatnonzero(~whole) if whole.any() else None
        owners = claims.opened if places is None else claims.opened.take(places)
        if twofold is not None and claims.closed is not None:
            second = np.flatnonzero(twofold)
            places = np.concatenate([np.arange(len(whole)) if places is None else places, second])
            owners = Owners(np.concatenate([owners.codes, claims.closed.codes[second]]), owners.keys)
        yield from _matched(places, owners, workers)


def _matched(places: Ints | None, owners: Owners, workers: Owners) -> Iterator[tuple[Ints, Ints]]:
    """For each owner of the ranges at ``places`` (``None`` for all): these, and its operations, both in their order."""
    numbers = {key: number for number, key in enumerate(workers.keys)}
    for number, key in enumerate(owners.keys):
        mine = owners.places(number)
        if len(mine):
            yield mine if places is None else places[mine], workers.places(numbers[key]) if key in numbers else _NOTHING


def _window(places: Ints, start: Ints, end: Ints, work: Launched) -> _Window:
    """Windows by the begin of the API calls, cut short where calls come one after another and the last outlives the range."""
    whole = len(places) == len(start) and bool((places[1:] > places[:-1]).all())
    limit, begun = (end, start) if whole else (end[places], start[places])
    low = np.searchsorted(work.begin, begun, side="left")
    if (work.finish[1:] >= work.finish[:-1]).all():
        return _Window(places, limit, work, low, sweep.reached(work.finish, limit, low), None)
    inside = sweep.reached(np.maximum.accumulate(work.finish), limit, low)
    high = sweep.reached(work.begin, limit, low)
    return _Window(places, limit, work, low, high, inside < high)


def _put_loose(figures: sweep.Figures, owner: Ints, start: Ints, end: Ints, device: Ints) -> None:
    """Puts in loose (range, operation) pairs, all of each range: sums and counts, and the union per device."""
    ranges, local = np.unique(owner, return_inverse=True)
    totals = sweep.Totals.none(len(ranges))
    for each in np.unique(device):
        there = device == each
        some, number = np.unique(local[there], return_inverse=True)
        begin, finish = start[there], end[there]
        union, first, last = sweep.pairs(number, begin, finish, len(some))
        sums = np.zeros(len(some), dtype=np.int64)
        np.add.at(sums, number, finish - begin)
        totals.take(some, sweep.Totals(np.bincount(number), sums, union, first, last))
    figures.put(ranges, totals)


def _in_launch_order(members: list[tuple[Ints, Ints]], work: Launched) -> tuple[Ints, Ints]:
    if not members:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    owner, row = (np.concatenate(part) for part in zip(*members, strict=True))
    rows = np.arange(len(work.begin)) if work.row is None else work.row
    position = np.zeros(int(rows.max(initial=0)) + 1, dtype=np.int64)
    position[rows] = np.arange(len(rows))
    order = np.lexsort((position[row], owner))
    return owner[order], row[order]
