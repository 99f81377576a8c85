"""From a trace to one row per range instance: busy, span, sum, idle, ops and host time. Pure: no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfgate.measure import attribution as attributing
from perfgate.measure import joins, rules, sweep
from perfgate.measure.codes import groups, is_one_of, order_codes
from perfgate.measure.rules import Attribution
from perfgate.traces import schema
from perfgate.traces.names import compile_pattern, display_name

__all__ = ["Attribution", "Leftover", "Measurement", "measure"]

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Leftover:
    """GPU work that no range claims, and why. ``share`` is of all GPU time in the trace (sums, not unions), 0 to 1."""

    reason: str
    ops: int
    gpu_ns: int
    share: float


@dataclass(frozen=True)
class Measurement:
    """What one trace says about its ranges.

    ``instances`` has the columns of ``schema.INSTANCES``, ordered by process, start and nesting. ``ops`` has those of
    ``schema.ATTRIBUTED`` where asked for, else it is ``None``. ``unattributed`` is GPU work in no range; ``excluded`` counts
    ranges that are left out and calls or operations without their counterpart, each with its reason. An instance that launched
    work of which the capture holds nothing has -1 in place of GPU figures: unknown, not 0.
    """

    instances: pd.DataFrame
    ops: pd.DataFrame | None
    unattributed: tuple[Leftover, ...]
    excluded: tuple[tuple[str, int], ...]
    notes: tuple[str, ...]
    gpu_ns: int = 0  # sum of all GPU operations in the trace, attributed or not
    missing: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # per instance: launches without their GPU work


def measure(
    trace: schema.Trace, *, attribution: Attribution = "auto", match: str | None = None, detail: bool = False
) -> Measurement:
    """Attributes GPU work to ranges (MEASURING.md's rules) and sums it up per instance.

    ``attribution`` forces one rule; ``match`` keeps the ranges whose ``domain:name`` the regular expression finds; ``detail``
    adds the operations of each instance. Raises :class:`UsageError` for a ``match`` that is no regular expression.
    """
    every = _ordered(trace.ranges)
    rule = rules.choose(every, attribution)
    usable = every["closed"].to_numpy()
    ranges, rule = (every, rule) if usable.all() else (every[usable].reset_index(drop=True), rule[usable])
    wanted = _wanted(ranges, match)
    launch, ambiguous = joins.launch_of(trace.ops, trace.launches)
    work = attributing.launched(trace.ops, trace.launches, launch)
    found = attributing.attribute(ranges, rule, work, len(trace.ops), wanted & detail)
    lost = joins.lost_launches(trace.launches, launch) if trace.has_gpu else np.empty(0, dtype=np.int64)
    missing = _missing(trace.launches, lost, ranges, rule)[wanted]
    blind = _blind(trace.ops, launch)
    empty = found.totals.ops[wanted] == 0
    unknown = empty & ((missing > 0) | ranges["process"].isin(blind).to_numpy()[wanted]) if trace.has_gpu else empty
    left_out = int(np.count_nonzero(is_one_of(ranges["domain"], (rules.LEFT_OUT_DOMAIN,))))
    excluded = {
        "range without an end: never ended, or still open when profiling stopped": int(np.count_nonzero(~usable)),
        f"range of domain {rules.LEFT_OUT_DOMAIN}: known, its GPU work is counted nowhere else": left_out,
        "kernel or graph launch whose GPU work is not in the capture": len(lost),
        "correlation id used more than once in a process: the last call before the operation was taken": ambiguous,
    }
    return Measurement(
        instances=_instances(ranges, rule, found.totals, wanted, unknown),
        ops=_detail(trace.ops, np.cumsum(wanted) - 1, found.members) if detail else None,
        unattributed=_leftovers(trace.ops, launch, found.covered),
        excluded=tuple((reason, count) for reason, count in excluded.items() if count),
        notes=_notes(trace, len(blind)),
        gpu_ns=int((trace.ops["end"] - trace.ops["start"]).sum()),
        missing=missing,
    )


def _missing(launches: pd.DataFrame, lost: Ints, ranges: pd.DataFrame, rule: NDArray[np.int8]) -> Ints:
    """Per range: how many of its launches have no GPU work in the capture."""
    if not len(lost):
        return np.zeros(len(ranges), dtype=np.int64)
    work = attributing.unanswered(launches, lost)
    nothing = np.zeros(len(ranges), dtype=bool)
    return attributing.attribute(ranges, rule, work, len(launches), nothing).totals.ops


def _ordered(ranges: pd.DataFrame) -> pd.DataFrame:
    """By process and start; ties so that no order of rows in the file shows: longest first, then by all else."""
    process, start = ranges["process"].to_numpy(), ranges["start"].to_numpy()
    order = np.lexsort((start, process))
    tied = (np.diff(process[order]) == 0) & (np.diff(start[order]) == 0)
    if tied.any():
        keys = ("closed", "kind", "end_thread", "name", "domain", "thread")
        order = np.lexsort((*(order_codes(ranges[key]) for key in keys), -ranges["end"].to_numpy(), start, process))
    if (np.diff(order) == 1).all():
        return ranges.reset_index(drop=True)
    columns = {name: _taken(ranges[name], order) for name in ranges.columns}
    return pd.DataFrame(
        {**columns, "end_thread": columns["thread"]} if _same(ranges, "thread", "end_thread") else columns, copy=False
    )


def _taken(column: pd.Series, order: Ints) -> Any:
    values = column.array if isinstance(column.dtype, pd.CategoricalDtype) else column.to_numpy()
    steady = isinstance(values, np.ndarray) and len(values) and values.strides == (0,)
    return values if steady else values.take(order)


def _same(frame: pd.DataFrame, one: str, other: str) -> bool:
    return np.array_equal(frame[one].to_numpy(), frame[other].to_numpy())


def _wanted(ranges: pd.DataFrame, match: str | None) -> Mask:
    wanted = ~is_one_of(ranges["domain"], (rules.LEFT_OUT_DOMAIN,))
    if match is None:
        return wanted
    pattern = compile_pattern(match)
    group, example = groups(ranges["domain"], ranges["name"])
    names = (
        display_name(domain, name)
        for domain, name in zip(ranges["domain"].iloc[example], ranges["name"].iloc[example], strict=True)
    )
    hits = np.array([bool(pattern.search(name)) for name in names], dtype=bool)
    wanted &= hits[group]
    return wanted


def _instances(ranges: pd.DataFrame, rule: NDArray[np.int8], totals: sweep.Totals, wanted: Mask, unknown: Mask) -> pd.DataFrame:
    chosen: slice | Mask = slice(None) if wanted.all() else wanted
    kept = ranges[chosen]
    count = len(kept)
    busy, span, total, ops = totals.busy[chosen], totals.span[chosen], totals.sum[chosen], totals.ops[chosen]
    idle = span - busy
    if unknown.any():
        busy, span, total, ops, idle = (np.where(unknown, -1, figure) for figure in (busy, span, total, ops, idle))
    frame = {
        "instance": np.arange(count),
        "domain": kept["domain"].array,
        "name": kept["name"].array,
        "process": kept["process"].to_numpy(),
        "thread": kept["thread"].to_numpy(),
        "start": kept["start"].to_numpy(),
        "host_ns": kept["end"].to_numpy() - kept["start"].to_numpy(),
        "busy_ns": busy,
        "span_ns": span,
        "sum_ns": total,
        "idle_ns": idle,
        "ops": ops,
        "rule": pd.Categorical.from_codes(rule[chosen], categories=pd.Index(rules.RULES, dtype=object)),
    }
    return schema.check(pd.DataFrame(frame, copy=False), schema.INSTANCES, "instances")


def _detail(ops: pd.DataFrame, number: Ints, members: tuple[Ints, Ints]) -> pd.DataFrame:
    owner, row = members
    frame = ops.iloc[row].reset_index(drop=True)
    frame["instance"] = number[owner]
    scope = pd.factorize(frame["device"], sort=True)[0] + np.int64(frame["device"].nunique()) * number[owner]
    start, end = frame["start"].to_numpy(), frame["end"].to_numpy()
    order = np.lexsort((np.arange(len(frame)), start, scope))
    exclusive = np.empty(len(frame), dtype=np.int64)
    exclusive[order] = sweep.gained_per_owner(scope[order], start[order], end[order])
    frame["exclusive_ns"] = exclusive
    return schema.check(frame, schema.ATTRIBUTED, "attributed operations")


def _leftovers(ops: pd.DataFrame, launch: Ints, covered: Mask) -> tuple[Leftover, ...]:
    took = (ops["end"] - ops["start"]).to_numpy()
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


def _blind(ops: pd.DataFrame, launch: Ints) -> list[int]:
    """Processes that did GPU work of which the capture holds not one launch: nothing of it can be attributed."""
    processes = ops["process"]
    return sorted({int(each) for each in processes.unique()} - {int(each) for each in processes[launch >= 0].unique()})


def _notes(trace: schema.Trace, blind: int) -> tuple[str, ...]:
    notes = list(trace.notes)
    if not trace.has_gpu:
        notes.append("the capture holds no GPU activity: busy and span are unknown, only host time is given")
    if blind:
        text = "has no CUDA API call of its own in the capture: its GPU work can't be attributed, and is unknown, not 0"
        notes.append(f"{blind} process(es) did GPU work and each {text}")
    return tuple(notes)
