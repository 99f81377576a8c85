"""Which GPU operations belong to which range: their launching API call lies inside it, by the range's rule."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfgate.measure import rules, sweep
from perfgate.measure.codes import Owners
from perfgate.traces._coded import blocks
from perfgate.traces._threads import side_by_side
from perfgate.traces.table import Ints, Mask, Table, distinct, is_steady, taken

_NOTHING: Ints = np.empty(0, dtype=np.int64)


class Launched:
    """GPU operations in the order of the API calls that launched them: each one's ``call`` is a row of ``calls``."""

    def __init__(self, row: Ints | None, call: Ints, calls: Table, start: Ints, end: Ints, device: Ints) -> None:
        self.row = row  # the place in ``trace.ops``, ``None`` where it is the place here
        self.call = call
        self.calls = calls
        self.start = start  # on the GPU
        self.end = end
        self.device = device

    def __len__(self) -> int:
        return len(self.call)

    @cached_property
    def begin(self) -> Ints:
        """When the API calls began."""
        return self.calls.ints("start")[self.call]

    @cached_property
    def finish(self) -> Ints:
        """When they ended."""
        return self.calls.ints("end")[self.call]

    def at(self, places: Ints) -> Launched:
        """The operations at ``places``, in that order."""
        if len(places) == len(self):
            return self
        call, start, end = (values[places] for values in (self.call, self.start, self.end))
        return Launched(self.rows(places), call, self.calls, start, end, taken(self.device, places))

    def rows(self, places: Ints) -> Ints:
        """Where the operations at ``places`` stand in ``trace.ops``."""
        return places if self.row is None else self.row[places]


def launched(ops: Table, launches: Table, launch: Ints, threads: Owners) -> tuple[Launched, Owners]:
    """The operations whose launch is known (``launch`` >= 0), ordered by its begin (ties: GPU start and end, then row).

    With the threads that launched them; ``threads`` are those of ``launches``.
    """
    row = None if len(launch) and launch.min() >= 0 else np.flatnonzero(launch >= 0)
    known: Ints | slice = slice(None) if row is None else row
    call, start, end = launch[known], ops.ints("start")[known], ops.ints("end")[known]
    device = taken(ops.ints("device"), known)
    begin = launches.ints("start")[call]
    if not (begin[1:] > begin[:-1]).all():
        order = np.argsort(begin, kind="stable")
        if (begin[order[1:]] == begin[order[:-1]]).any():
            order = np.lexsort((np.arange(len(begin)), end, start, begin))
        row = order if row is None else row[order]
        call, start, end = (values[order] for values in (call, start, end))
        device = taken(device, order)
    return Launched(row, call, launches, start, end, device), threads.take(call)


def unanswered(launches: Table, lost: Ints, threads: Owners) -> tuple[Launched, Owners]:
    """The launches at the places ``lost``, as operations that took no time, so that they can be counted per range."""
    lost = lost[np.argsort(launches.ints("start")[lost], kind="stable")]
    nothing = np.zeros(len(lost), dtype=np.int64)
    return Launched(lost, lost, launches, nothing, nothing, nothing), threads.take(lost)


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

    def plainly(scope: _Scope) -> list[tuple[_Window, Mask | None]]:
        places, lane = scope.ranges(), _Lane(work.at(scope.operations()))
        left = []
        for some in blocks(len(places)):  # so that little is held at a time
            window = lane.window(places[some], start, end)
            loose = window.loose(twofold)
            window.add_plain(None if loose is None else ~loose, figures)  # no two scopes share a plain range
            if loose is not None or listed is not None:
                left.append((window, loose))
        lane.cover(covered)
        return left

    for window, loose in itertools.chain.from_iterable(side_by_side(plainly, list(_scopes(claims, workers, twofold)))):
        mine = window.lane.work
        for owner, place in window.pairs(_NOTHING if loose is None else np.flatnonzero(loose)):
            covered[mine.rows(place)] = True
            parts = owner, mine.start[place], mine.end[place], mine.device[place]
            both = np.zeros(len(owner), dtype=bool) if twofold is None else twofold[owner]
            halves.append(tuple(part[both] for part in parts))
            _put_loose(figures, *(part[~both] for part in parts))
        if listed is not None:
            members.extend(window.member_rows(listed))
    if halves:
        _put_loose(figures, *(np.concatenate(part) for part in zip(*halves, strict=True)))
    return Attributed(figures, covered, _in_launch_order(members, work))


class _Lane:
    """The operations that one thread or process launched, and which of them some plain range holds."""

    def __init__(self, work: Launched) -> None:
        self.work = work
        self.in_turn = bool((work.finish[1:] >= work.finish[:-1]).all())
        self.latest = work.finish if self.in_turn else np.maximum.accumulate(work.finish)
        self.held = np.zeros(len(work), dtype=bool)

    @cached_property
    def _devices(self) -> list[tuple[Ints | None, sweep.Operations]]:
        """Each device's operations, and how many of them come before each of the lane's, ``None`` where it is the only one."""
        work = self.work
        devices = work.device[:1] if is_steady(work.device) else distinct(work.device)
        if len(devices) == 1:
            return [(None, sweep.Operations(work.start, work.end))]
        found: list[tuple[Ints | None, sweep.Operations]] = []
        for device in devices:
            there = work.device == device
            found.append((np.append(0, np.cumsum(there)), sweep.Operations(work.start[there], work.end[there])))
        return found

    def totals(self, low: Ints, high: Ints) -> sweep.Totals:
        """Totals of the windows ``[low, high)``, which hold all that they enclose."""
        sweep.mark(self.held, low, high)
        totals = None
        for count, operations in self._devices:
            if count is None:
                return operations.windows(low, high)
            totals = totals or sweep.Totals.none(len(low))
            totals.take(slice(None), operations.windows(count[low], count[high]))
        return totals or sweep.Totals.none(len(low))

    def cover(self, covered: Mask) -> None:
        """Marks in ``covered`` the operations in windows that were summed up."""
        if self.held.all():
            covered[slice(None) if self.work.row is None else self.work.row] = True
        else:
            covered[self.work.rows(np.flatnonzero(self.held))] = True

    def window(self, places: Ints, start: Ints, end: Ints) -> _Window:
        """Windows of the ranges at ``places`` by the begin of the API calls.

        Cut short where calls come one after another and the last outlives the range.
        """
        begin, limit = self.work.begin, end[places]
        low = np.searchsorted(begin, start[places], side="left")
        inside = sweep.reached(self.latest, limit, low)
        if self.in_turn:
            return _Window(self, places, limit, low, inside, None)
        high = sweep.reached(begin, limit, low)
        return _Window(self, places, limit, low, high, inside < high)


class _Window(NamedTuple):
    """Some ranges of one scope (a thread or a process) over its operations: ``[low, high)`` each, in launch order.

    ``straddled`` marks ranges in whose window some API call ends only after the range: such calls are not inside; ``None``
    where there are none.
    """

    lane: _Lane
    ranges: Ints  # places in the table of ranges
    limit: Ints  # the ranges' ends
    low: Ints
    high: Ints
    straddled: Mask | None

    def loose(self, twofold: Mask | None) -> Mask | None:
        """Which of the ranges need a look at every single operation, ``None`` for none."""
        if twofold is None:
            return self.straddled
        return twofold[self.ranges] if self.straddled is None else self.straddled | twofold[self.ranges]

    def add_plain(self, plain: Mask | None, figures: sweep.Figures) -> None:
        """Puts in the ranges whose window is exactly what belongs to them: ``plain``, or all."""
        ranges, low, high = (each if plain is None else each[plain] for each in (self.ranges, self.low, self.high))
        figures.put(ranges, self.lane.totals(low, high))

    def pairs(self, chosen: Ints) -> Iterator[tuple[Ints, Ints]]:
        """(range, place in ``work``) of the ``chosen`` windows, calls that outlive their range left out, in portions."""
        low, high = self.low[chosen], self.high[chosen]
        for some in sweep.portions(high - low):
            owner, place = sweep.expand(low[some], high[some])
            owner = chosen[some][owner]
            inside = self.lane.work.finish[place] <= self.limit[owner]
            yield self.ranges[owner[inside]], place[inside]

    def member_rows(self, listed: Mask) -> Iterator[tuple[Ints, Ints]]:
        """(range, op row) of the ``listed`` ranges."""
        for owner, place in self.pairs(np.flatnonzero(listed[self.ranges])):
            yield owner, self.lane.work.rows(place)


class _Scope(NamedTuple):
    """The ranges of one thread or process, and its operations. Both are looked up where they are needed: they take room."""

    owners: Owners  # of the ranges
    number: int
    places: Ints | None  # of the owners' rows in the table of ranges, ``None`` where they are all of it
    workers: Owners  # of the operations
    worker: int | None

    def ranges(self) -> Ints:
        mine = self.owners.places(self.number)
        return mine if self.places is None else self.places[mine]

    def operations(self) -> Ints:
        return _NOTHING if self.worker is None else self.workers.places(self.worker)


def _scopes(claims: Claims, workers: Owners, twofold: Mask | None) -> Iterator[_Scope]:
    """For each thread or process that has ranges: these and its operations. A cross-thread range comes twice, once a thread."""
    whole = claims.rule == rules.PROCESS
    if whole.any():
        places = None if whole.all() else np.flatnonzero(whole)
        owners = claims.opened.processes
        yield from _matched(owners if places is None else owners.take(places), places, workers.processes)
    if not whole.all():
        places = np.flatnonzero(~whole) if whole.any() else None
        owners = claims.opened if places is None else claims.opened.take(places)
        if twofold is not None and claims.closed is not None:
            second = np.flatnonzero(twofold)
            places = np.concatenate([np.arange(len(whole)) if places is None else places, second])
            owners = Owners(np.concatenate([owners.codes, claims.closed.codes[second]]), owners.keys)
        yield from _matched(owners, places, workers)


def _matched(owners: Owners, places: Ints | None, workers: Owners) -> Iterator[_Scope]:
    numbers = {key: number for number, key in enumerate(workers.keys)}
    for number, key in enumerate(owners.keys):
        yield _Scope(owners, number, places, workers, numbers.get(key))


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
    rows = np.arange(len(work)) if work.row is None else work.row
    position = np.zeros(int(rows.max(initial=0)) + 1, dtype=np.int64)
    position[rows] = np.arange(len(rows))
    order = np.lexsort((position[row], owner))
    return owner[order], row[order]
