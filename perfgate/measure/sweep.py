"""Busy, span and sum of many windows over one ordered list of GPU operations, without a loop per window.

A window is a half-open stretch ``[low, high)`` of operations in launch order. Where no operation overlaps one that was launched
later, the busy time of a window is a difference of prefix sums. Where some do (several streams), the list is cut wherever
everything before ends before everything after starts; whole segments are again prefix sums and only the two segments that a
window cuts are swept one by one.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Places = NDArray[np.int32] | NDArray[np.int64]
_PAIRS_AT_ONCE = 1_000_000
_FAR = 1 << 62
_STEPS = 3  # operations of a window that are tried before it is searched


@dataclass(eq=False, repr=False)  # bare: every start waits for it
class Totals:
    """Per window: nanoseconds and counts; ``first`` > ``last`` where it holds no operation."""

    ops: Ints
    sum: Ints
    busy: Ints
    first: Ints
    last: Ints

    @classmethod
    def none(cls, count: int) -> Totals:
        """Totals of ``count`` windows without operations."""
        zeros = np.zeros(count, dtype=np.int64)
        return cls(zeros.copy(), zeros.copy(), zeros.copy(), np.full(count, _FAR), np.full(count, -_FAR))

    def take(self, places: Ints | slice, part: Totals) -> None:
        """Adds ``part`` (of another device) to the windows at ``places``: busy is the largest device's."""
        self.ops[places] += part.ops
        self.sum[places] += part.sum
        self.busy[places] = np.maximum(self.busy[places], part.busy)
        self.first[places] = np.minimum(self.first[places], part.first)
        self.last[places] = np.maximum(self.last[places], part.last)

    def put(self, places: Ints, part: Totals) -> None:
        """Sets the windows at ``places`` to ``part``: all that they hold."""
        self.ops[places], self.sum[places], self.busy[places] = part.ops, part.sum, part.busy
        self.first[places], self.last[places] = part.first, part.last

    @property
    def span(self) -> Ints:
        return np.where(self.ops > 0, self.last - self.first, 0)


class Figures:
    """What ``count`` ranges got on the GPU: number of operations, and nanoseconds of sum, busy and span; all 0 at first."""

    def __init__(self, count: int) -> None:
        self.ops, self.sum, self.busy, self.span = (np.full(count, 0) for _ in range(4))  # large pages, unlike np.zeros

    def put(self, places: Ints, totals: Totals) -> None:
        """Sets the ranges at ``places`` to ``totals``: all that they got."""
        parts = totals.ops, totals.sum, totals.busy, totals.span
        if len(places) == len(self.ops) and bool((places[1:] > places[:-1]).all()):
            self.ops, self.sum, self.busy, self.span = parts
        else:
            self.ops[places], self.sum[places], self.busy[places], self.span[places] = parts


class Operations:
    """GPU operations ``start`` .. ``end`` (ns) of one device, in launch order."""

    def __init__(self, start: Ints, end: Ints) -> None:
        self.start, self.end = start, end

    @cached_property
    def _running(self) -> Ints:
        return _prefix(self.end - self.start)

    @cached_property
    def _segments(self) -> _Segments:
        return _Segments(self.start, self.end)

    def windows(self, low: Ints, high: Ints) -> Totals:
        """Totals of the windows ``[low, high)``."""
        filled = high > low
        if not filled.all():
            totals = Totals.none(len(low))
            if filled.any():
                totals.put(np.flatnonzero(filled), self.windows(low[filled], high[filled]))
            return totals
        count = high - low
        several = np.flatnonzero(count > 1)
        if len(several) == len(low):
            return Totals(count, self._running[high] - self._running[low], *self._segments.busy_first_last(low, high))
        first, last = self.start[low], self.end[low]
        took = last - first
        if not len(several):
            return Totals(count, took, took, first, last)
        alone = Totals(count, took, took.copy(), first, last)
        alone.put(several, self.windows(low[several], high[several]))
        return alone


class _Segments:
    """The cuts of one ordered list of operations, and every segment's union, first start and last end."""

    def __init__(self, start: Ints, end: Ints) -> None:
        self.start, self.end = start, end
        reached, least = np.maximum.accumulate(end), np.minimum.accumulate(start[::-1])[::-1]
        cut = _cuts(reached, least)
        self.begin: Places = _small(np.append(np.flatnonzero(cut), len(start)), len(start))
        self.number: Places = _small(np.cumsum(cut) - 1, len(start))
        if len(self.begin) - 1 == len(start):
            gained = end - start
        else:
            order = np.argsort(start, kind="stable")  # segments keep their places: they don't overlap in time
            gained = _gained(start[order], end[order])
        self.union = _prefix(gained)[self.begin]
        self.first, self.last = least[self.begin[:-1]], reached[self.begin[1:] - 1]  # no other segment reaches into it

    def busy_first_last(self, low: Ints, high: Ints) -> tuple[Ints, Ints, Ints]:
        head, tail = self.number[low], self.number[high - 1]
        busy = self.union[tail + 1] - self.union[head]
        first, last = self.first[head].copy(), self.last[tail].copy()
        cut_head = low > self.begin[head]
        cut_tail = high < self.begin[tail + 1]
        same = head == tail
        for places, begin, finish, segment in (
            (np.flatnonzero(cut_head | (same & cut_tail)), low, np.minimum(high, self.begin[head + 1]), head),
            (np.flatnonzero(cut_tail & ~same), self.begin[tail], high, tail),
        ):
            if len(places):
                inner = segment[places]
                union, least, most = self._sweep(begin[places], finish[places])
                busy[places] += union - (self.union[inner + 1] - self.union[inner])
                at_head, at_tail = inner == head[places], inner == tail[places]
                first[places] = np.where(at_head, least, first[places])
                last[places] = np.where(at_tail, most, last[places])
        return busy, first, last

    def _sweep(self, low: Places, high: Places) -> tuple[Ints, Ints, Ints]:
        """Union, first start and last end of each of some stretches, expanded in portions of bounded memory."""
        union = np.empty(len(low), dtype=np.int64)
        least, most = union.copy(), union.copy()
        for some in portions(high - low):
            owner, places = expand(low[some], high[some])
            union[some], least[some], most[some] = pairs(owner, self.start[places], self.end[places], some.stop - some.start)
        return union, least, most


def _small(places: Ints, limit: int) -> Places:
    """``places`` in half the memory where all are below ``limit``."""
    return places.astype(np.int32) if limit <= np.iinfo(np.int32).max else places


def _cuts(reached: Ints, least: Ints) -> NDArray[np.bool_]:
    """Whether everything before each operation has ended (by ``reached``) before it, and all after it, starts (``least``)."""
    cut = np.empty(len(reached), dtype=bool)
    cut[0] = True
    np.less_equal(reached[:-1], least[1:], out=cut[1:])
    return cut


def pairs(owner: Ints, start: Ints, end: Ints, owners: int) -> tuple[Ints, Ints, Ints]:
    """Union, first start and last end per owner (0 .. ``owners`` - 1) of loose (owner, start, end) rows."""
    union = np.zeros(owners, dtype=np.int64)
    first, last = np.full(owners, _FAR), np.full(owners, -_FAR)
    if not len(owner):
        return union, first, last
    order = np.lexsort((end, start, owner))
    owner, start, end = owner[order], start[order], end[order]
    begin = np.flatnonzero(np.append(True, owner[1:] != owner[:-1]))
    gained = gained_per_owner(owner, start, end)
    present = owner[begin]
    union[present] = np.add.reduceat(gained, begin)
    first[present] = start[begin]
    last[present] = np.maximum.reduceat(end, begin)
    return union, first, last


def gained_per_owner(owner: Ints, start: Ints, end: Ints) -> Ints:
    """Of rows sorted by (owner, start): the ns of each that no earlier row of its owner covers."""
    if not len(owner):
        return end - start
    origin, width = int(start.min()), int(end.max()) - int(start.min()) + 1
    gained = np.empty(len(owner), dtype=np.int64)
    at_once = max(1, _FAR // width)  # owners whose shifted times fit into 64 bits
    edges = (
        np.searchsorted(owner, np.arange(int(owner[0]), int(owner[-1]) + at_once + 1, at_once))
        if at_once < len(owner)
        else [0, len(owner)]
    )
    for low, high in itertools.pairwise(edges):
        if high > low:
            shift = (owner[low:high] - owner[low]) * width - origin
            gained[low:high] = _gained(start[low:high] + shift, end[low:high] + shift)
    return gained


def reached(ordered: Ints, limit: Ints, low: Ints) -> Ints:
    """Per window the first place from ``low`` on at which ``ordered`` exceeds ``limit``: most windows hold few operations."""
    high = low.copy()
    going: Ints | None = None  # all
    for _ in range(_STEPS):
        if going is None:
            more = _at_most(ordered, high, limit)
            high += more
            going = None if more.all() else np.flatnonzero(more)
        else:
            going = going[_at_most(ordered, high[going], limit[going])]
            high[going] += 1
        if going is not None and not len(going):
            return high
    some = slice(None) if going is None else going
    high[some] = np.searchsorted(ordered, limit[some], side="right")
    return high


def _at_most(ordered: Ints, places: Ints, limit: Ints) -> NDArray[np.bool_]:
    """Whether there is a value at each of some places, and it does not exceed the limit."""
    if not len(places) or int(places.max()) < len(ordered):
        return ordered[places] <= limit
    there = places < len(ordered)
    there[there] = ordered[places[there]] <= limit[there]
    return there


def mark(held: NDArray[np.bool_], low: Ints, high: Ints) -> None:
    """Marks the operations that some window ``[low, high)`` holds."""
    if not len(low):
        return
    reach = np.maximum.accumulate(high)
    begin, finish = int(low.min()), int(reach[-1])
    if low[0] == begin and (low[1:] <= reach[:-1]).all():  # the usual case: no gap between them
        held[begin:finish] = True
        return
    depth = np.bincount(low - begin, minlength=finish - begin + 1)
    depth -= np.bincount(high - begin, minlength=finish - begin + 1)
    held[begin:finish] |= np.cumsum(depth, out=depth)[:-1] > 0


def expand(low: Places, high: Places) -> tuple[Ints, Ints]:
    """Every (window, place) pair of the windows ``[low, high)``, window by window."""
    sizes = high - low
    owner = np.repeat(np.arange(len(low)), sizes)
    before = np.cumsum(sizes) - sizes
    return owner, np.arange(len(owner)) + np.repeat(low - before, sizes)


def portions(sizes: Places, limit: int = _PAIRS_AT_ONCE) -> list[slice]:
    """Consecutive slices of ``sizes`` whose sums stay near ``limit``; a single larger one stands alone."""
    if not len(sizes):
        return []
    through = np.cumsum(sizes)
    slices, begin = [], 0
    while begin < len(sizes):
        done = int(through[begin - 1]) if begin else 0
        finish = max(begin + 1, int(np.searchsorted(through, done + limit, side="right")))
        slices.append(slice(begin, finish))
        begin = finish
    return slices


def _gained(start: Ints, end: Ints) -> Ints:
    """Of rows sorted by start: the ns of each that no earlier row covers."""
    reached = np.maximum.accumulate(end)
    gained = end - start
    if len(end) > 1:
        gained[1:] = np.maximum(0, end[1:] - np.maximum(start[1:], reached[:-1]))
    return gained


def _prefix(values: Ints) -> Ints:
    sums = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=sums[1:])
    return sums
