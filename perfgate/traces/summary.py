"""One row per range name: what a table of ranges shows, whether it was measured from a trace or read from nsys's own tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Stat(NamedTuple):  # as are others on the way of `perfgate ranges`: a dataclass takes five times as long to import
    """One figure over the instances of a range, in ns (or a count). ``None``: the source does not hold it."""

    total: float | None
    median: float | None
    min: float | None
    max: float | None


@dataclass(repr=False)  # a named tuple has no field `count`
class KernelSum:
    """All operations of one name in a range: ``sum_ns`` of their durations, ``exclusive_ns`` without what others covered."""

    name: str
    kind: str
    count: int
    sum_ns: int
    exclusive_ns: int | None = None


class RangeSummary(NamedTuple):
    """One range name. A :class:`Stat` that is ``None`` was not measured: no GPU data, or a table without that column."""

    name: str  # "domain:name", plain in the default domain
    domain: str
    instances: int
    busy_ns: Stat | None = None
    span_ns: Stat | None = None
    sum_ns: Stat | None = None
    idle_ns: Stat | None = None
    ops: Stat | None = None
    host_ns: Stat | None = None
    incomplete: int = 0  # instances that launched work of which the capture lacks some: their GPU figures are too small
    missing_launches: int = 0  # of all instances together
    rules: tuple[str, ...] = ()  # how GPU work was attributed; several where processes differ
    kernels: tuple[KernelSum, ...] = ()  # largest sum first; empty where not asked for


METRICS = ("busy_ns", "span_ns", "sum_ns", "idle_ns", "ops", "host_ns")
