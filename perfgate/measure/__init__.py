"""From a trace to one row per range instance: busy, span, sum, idle, ops and host time. Pure: no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfgate.measure import attribution as attributing
from perfgate.measure import joins, rules, sweep
from perfgate.measure.codes import Owners, groups, order_codes
from perfgate.measure.rules import Attribution
from perfgate.traces import schema
from perfgate.traces._coded import numbered
from perfgate.traces._threads import both
from perfgate.traces.names import compile_pattern, display_name
from perfgate.traces.table import Framed, FramedOrNone, Ints, Mask, Table, Texts, distinct, is_steady, table_in, taken

__all__ = ["Attribution", "Leftover", "Measurement", "measure"]


class Leftover(NamedTuple):
    """GPU work that no range claims, and why. ``share`` is of all GPU time in the trace (sums, not unions), 0 to 1."""

    reason: str
    ops: int
    gpu_ns: int
    share: float


@dataclass(eq=False, repr=False)  # bare: every start waits for it
class Measurement:
    """What one trace says about its ranges.

    ``instances`` has the columns of ``schema.INSTANCES``, ordered by process, start and nesting. ``ops`` has those of
    ``schema.ATTRIBUTED`` where asked for, else it is ``None``; both are DataFrames, made when first asked for.
    ``unattributed`` is GPU work in no range; ``excluded`` counts ranges that are left out and calls or operations without their
    counterpart, each with its reason. An instance that launched work of which the capture holds nothing has -1 in place of GPU
    figures: unknown, not 0.
    """

    instances: Framed = Framed()  # noqa: RUF009  (a descriptor, as is the next)
    ops: FramedOrNone = FramedOrNone()  # noqa: RUF009
    unattributed: tuple[Leftover, ...] = ()
    excluded: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    gpu_ns: int = 0  # sum of all GPU operations in the trace, attributed or not
    missing: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # per instance: launches without their GPU work


def measure(
    trace: schema.Trace, *, attribution: Attribution = "auto", match: str | None = None, detail: bool = False
) -> Measurement:
    """Attributes GPU work to ranges (MEASURING.md's rules) and sums it up per instance.

    ``attribution`` forces one rule; ``match`` keeps the ranges whose ``domain:name`` the regular expression finds; ``detail``
    adds the operations of each instance. Raises :class:`UsageError` for a ``match`` that is no regular expression.
    """
    ops, launches = table_in(trace, "ops"), table_in(trace, "launches")
    every = _ordered(table_in(trace, "ranges"))
    usable = every.mask("closed")
    claims, (launch, ambiguous) = both(lambda: attributing.claims(every, attribution), lambda: joins.launch_of(ops, launches))
    claims = claims if usable.all() else claims.take(usable)
    ranges, rule = claims.ranges, claims.rule
    wanted = _wanted(ranges, match)
    threads = Owners.of(launches.ints("process"), launches.ints("thread"))
    found = attributing.attribute(
        claims, *attributing.launched(ops, launches, launch, threads), len(ops), wanted if detail else None
    )
    lost = joins.lost_launches(launches, launch) if trace.has_gpu else np.empty(0, dtype=np.int64)
    missing = taken(_missing(launches, lost, threads, claims), wanted)
    blind = _blind(ops, launch)
    excluded = {
        "range without an end: never ended, or still open when profiling stopped": len(usable) - int(np.count_nonzero(usable)),
        f"range of domain {rules.LEFT_OUT_DOMAIN}: known, its GPU work is counted nowhere else": _left_out(ranges),
        "kernel or graph launch whose GPU work is not in the capture": len(lost),
        "correlation id used more than once in a process: the last call before the operation was taken": ambiguous,
    }
    took = ops.ints("end") - ops.ints("start")
    return Measurement(
        instances=_instances(
            ranges, rule, found.totals, wanted, _unknown(trace.has_gpu, ranges, found, missing, blind, wanted)
        ),
        ops=_detail(ops, np.cumsum(wanted) - 1, found.members) if detail else None,
        unattributed=_leftovers(took, launch, found.covered),
        excluded=tuple((reason, count) for reason, count in excluded.items() if count),
        notes=_notes(trace, len(blind)),
        gpu_ns=int(took.sum()),
        missing=missing,
    )


def _missing(launches: Table, lost: Ints, threads: Owners, claims: attributing.Claims) -> Ints:
    """Per range: how many of its launches have no GPU work in the capture."""
    if not len(lost):
        return np.broadcast_to(np.int64(0), len(claims.ranges))
    work, workers = attributing.unanswered(launches, lost, threads)
    return attributing.attribute(claims, work, workers, len(launches), None).totals.ops


def _unknown(
    has_gpu: bool, ranges: Table, found: attributing.Attributed, missing: Ints, blind: list[int], wanted: Mask
) -> Mask | None:
    """The wanted ranges whose GPU figures the capture can't give, ``None`` for none."""
    empty: Mask = (found.totals.ops if wanted.all() else found.totals.ops[wanted]) == 0
    if not has_gpu:
        return empty
    if not empty.any() or not (blind or missing.any()):
        return None
    unknown: Mask = empty & ((missing > 0) | np.isin(ranges.ints("process")[wanted], blind))
    return unknown


def _ordered(ranges: Table) -> Table:
    """By process and start; ties so that no order of rows in the file shows: longest first, then by all else."""
    process, start = ranges.ints("process"), ranges.ints("start")
    one = is_steady(process)
    if one and (start[1:] > start[:-1]).all():
        return ranges
    order = np.argsort(start, kind="stable") if one else np.lexsort((start, process))
    tied = np.diff(start[order]) == 0
    if not one:
        tied &= np.diff(process[order]) == 0
    if tied.any():
        keys = ("closed", "kind", "end_thread", "name", "domain", "thread")
        held = (ranges.texts(key) if key in ("kind", "name", "domain") else ranges.ints(key) for key in keys)
        order = np.lexsort((*map(order_codes, held), -ranges.ints("end"), start, process))
    if (np.diff(order) == 1).all():
        return ranges
    ordered = ranges.take(order)
    shared = ranges.ints("thread") is ranges.ints("end_thread")
    return ordered.with_columns(end_thread=ordered.ints("thread")) if shared else ordered


def _left_out(ranges: Table) -> int:
    return int(np.count_nonzero(ranges.texts("domain").is_one_of((rules.LEFT_OUT_DOMAIN,))))


def _wanted(ranges: Table, match: str | None) -> Mask:
    domains, names = ranges.texts("domain"), ranges.texts("name")
    wanted = ~domains.is_one_of((rules.LEFT_OUT_DOMAIN,))
    if match is None:
        return wanted
    pattern = compile_pattern(match)
    group, example = groups(domains, names)
    shown = map(display_name, domains.at(example), names.at(example))
    hits: Mask = np.array([bool(pattern.search(name)) for name in shown], dtype=bool)[group]
    return wanted & hits


def _instances(ranges: Table, rule: NDArray[np.int8], totals: sweep.Figures, wanted: Mask, unknown: Mask | None) -> Table:
    chosen: slice | Mask = slice(None) if wanted.all() else wanted
    kept = ranges.take(chosen)
    busy, span, total, ops = totals.busy[chosen], totals.span[chosen], totals.sum[chosen], totals.ops[chosen]
    idle = span - busy
    if unknown is not None and unknown.any():
        busy, span, total, ops, idle = (np.where(unknown, -1, figure) for figure in (busy, span, total, ops, idle))
    columns = {
        "instance": np.arange(len(kept)),
        "domain": kept.texts("domain"),
        "name": kept.texts("name"),
        "process": kept.ints("process"),
        "thread": kept.ints("thread"),
        "start": kept.ints("start"),
        "host_ns": kept.ints("end") - kept.ints("start"),
        "busy_ns": busy,
        "span_ns": span,
        "sum_ns": total,
        "idle_ns": idle,
        "ops": ops,
        "rule": Texts(taken(rule, chosen), rules.RULES),
    }
    return schema.checked(columns, schema.INSTANCES)


def _detail(ops: Table, number: Ints, members: tuple[Ints, Ints]) -> Table:
    owner, row = members
    table = ops.take(row)
    devices, distinct_devices = numbered(table.ints("device"))
    scope = devices + len(distinct_devices) * number[owner]
    start, end = table.ints("start"), table.ints("end")
    order = np.lexsort((np.arange(len(table)), start, scope))
    exclusive = np.empty(len(table), dtype=np.int64)
    exclusive[order] = sweep.gained_per_owner(scope[order], start[order], end[order])
    return schema.checked(table.with_columns(instance=number[owner], exclusive_ns=exclusive).columns, schema.ATTRIBUTED)


def _leftovers(took: Ints, launch: Ints, covered: Mask) -> tuple[Leftover, ...]:
    if covered.all():
        return ()
    every = int(took.sum())
    found = []
    for reason, some in (
        ("launched outside every range", (launch >= 0) & ~covered),
        ("its launch is not in the capture", launch < 0),
    ):
        if some.any():
            lost = int(took[some].sum())
            found.append(Leftover(reason, int(np.count_nonzero(some)), lost, lost / every if every else 0.0))
    return tuple(found)


def _blind(ops: Table, launch: Ints) -> list[int]:
    """Processes that did GPU work of which the capture holds not one launch: nothing of it can be attributed."""
    if not len(launch) or launch.min() >= 0:
        return []
    processes = ops.ints("process")
    return sorted(set(distinct(processes)) - set(distinct(taken(processes, launch >= 0))))


def _notes(trace: schema.Trace, blind: int) -> tuple[str, ...]:
    notes = list(trace.notes)
    if not trace.has_gpu:
        notes.append("the capture holds no GPU activity: busy and span are unknown, only host time is given")
    if blind:
        text = "has no CUDA API call of its own in the capture: its GPU work can't be attributed, and is unknown, not 0"
        notes.append(f"{blind} process(es) did GPU work and each {text}")
    return tuple(notes)
