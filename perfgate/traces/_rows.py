"""Whole columns of nsys's tables: what is missing in them, whose they are, which rows are ranges and which can't be real."""

from __future__ import annotations

import numpy as np

from perfgate.traces._coded import blocks
from perfgate.traces._records import MISSING
from perfgate.traces.table import Ints, is_steady, taken

PUSH_POP = (59, 70)
START_END = (60, 71)
THREAD_BITS = 0xFFFFFF
LONGEST = 1 << 53  # ns, 104 days: anything longer is a damaged row
FURTHEST = 1 << 61


def or_else(values: Ints, fallback: int | Ints) -> Ints:
    """``values``, where they are missing ``fallback``."""
    if not len(values) or values.min() != MISSING:
        return values
    if is_steady(values):
        return fallback if isinstance(fallback, np.ndarray) else np.broadcast_to(np.int64(fallback), len(values))
    return np.where(values == MISSING, fallback, values)


def process_of(threads: Ints) -> Ints:
    """The process of each global thread id."""
    if len(threads) and int(threads.min()) & ~THREAD_BITS == int(threads.max()) & ~THREAD_BITS:
        return np.broadcast_to(threads[0] & ~THREAD_BITS, len(threads))
    return threads & ~THREAD_BITS


def all_plausible(start: Ints, end: Ints, needed: list[Ints]) -> bool:
    """Whether no row can be one to leave out, told by the extremes of whole columns."""
    if not start.min() >= -FURTHEST or not start.max() < FURTHEST or any(values.min() == MISSING for values in needed):
        return False
    if not start.min() > 0:
        return False
    took = (end[block] - start[block] for block in blocks(len(start)))
    return all(each.min() >= 0 and each.max() <= LONGEST for each in took)


def only_ranges(found: dict[str, Ints]) -> dict[str, Ints]:
    """The rows that are ranges of either kind."""
    kind = found["eventType"]
    if len(kind) and is_steady(kind) and kind[0] in PUSH_POP:
        return found
    ranges = np.isin(kind, (*PUSH_POP, *START_END))
    return found if ranges.all() else {name: taken(values, ranges) for name, values in found.items()}
