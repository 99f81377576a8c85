"""A program's ranges, step by step: what each range takes in one step, per rank and over ranks. Pure: no I/O, no clock.

A rank is a process that opens the step's range. Step k lasts from its start to the next one's (the last one to its own end).
A range belongs to the step in which it starts. Its figures in a step are the sums over its instances there, without those that
lie inside another instance of the same range. The step, and a range that encloses what other threads open, holds all GPU work
that its process launched meanwhile.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfgate.errors import UnusableError
from perfgate.measure import Measurement, measure
from perfgate.measure.codes import groups, is_one_of
from perfgate.measure.ranks import across_ranks
from perfgate.measure.rules import LEFT_OUT_DOMAIN, LIBRARY_DOMAINS
from perfgate.measure.summary import rename
from perfgate.model import ProcessSample
from perfgate.traces._coded import Codes
from perfgate.traces.names import display_name, strip_counters
from perfgate.traces.schema import Trace

Ints = NDArray[np.int64]
OWN_DOMAIN = "perfgate.user"  # of ranges opened through our helper: their names stand alone
SHOWN = 12  # names in an error
_SUMS = ("host_ns", "busy_ns", "span_ns", "sum_ns", "ops", "missing")
_KEPT = ("kind", "name", "device", "start", "end", "grid", "block", "registers", "shared_memory", "instance", "exclusive_ns")


@dataclass(frozen=True)
class Found:
    """The step's range in a trace."""

    domain: str
    name: str

    @property
    def shown(self) -> str:
        return display_name(self.domain, self.name)


@dataclass(frozen=True)
class RankSteps:
    """One rank of one capture: ``steps`` of the window only; ``walls`` of all its steps, start to start (one less)."""

    process: int
    count: int
    walls: tuple[int, ...]
    steps: Measurement


@dataclass(frozen=True)
class Profile:
    """One run of the program: all ranks together (per step the slowest), and what each range is called."""

    together: Measurement
    ranks: tuple[RankSteps, ...]
    names: dict[tuple[str, str], str]  # (domain, name) -> what it is called in results
    kernels: dict[tuple[str, str], str] = field(default_factory=dict)  # digests of what each range launched, over all ranks


def find_step(traces: Sequence[Trace], wanted: str) -> Found:
    """The range called ``wanted``: its name, or ``domain:name``. A program's own comes before one of a library's domain.

    Raises :class:`UnusableError` that names the ranges found, and where several domains have it.
    """
    counts: dict[tuple[str, str], int] = {}
    for trace in traces:
        closed = trace.ranges[trace.ranges["closed"]]
        code, example = groups(closed["domain"], closed["name"])
        sizes = np.bincount(code, minlength=len(example))
        for domain, name, size in zip(closed["domain"].iloc[example], closed["name"].iloc[example], sizes, strict=True):
            key = (str(domain), strip_counters(str(name)))
            counts[key] = counts.get(key, 0) + int(size)
    fitting = [key for key in counts if wanted in (key[1], display_name(*key))]
    own = [key for key in fitting if key[0] in ("", OWN_DOMAIN)]
    if len(own or fitting) == 1:
        return Found(*(own or fitting)[0])
    if fitting:
        names = ", ".join(display_name(*key) for key in fitting)
        raise UnusableError(
            f"several ranges are called {wanted!r}: {names}", "name one with its domain: --step-range DOMAIN:NAME"
        )
    if not counts:
        raise UnusableError(
            f"the program opened no NVTX range, so no {wanted!r} can be its step",
            "mark the loop: `for batch in perfgate.steps(loader):`, or with torch.cuda.nvtx; `perfgate doctor` checks nvtx; "
            "nsys records no rank that was forked without exec: start them by torchrun, srun or multiprocessing's spawn",
        )
    most = sorted(counts, key=lambda key: -counts[key])
    listed = ", ".join(f"{display_name(*key)} ({counts[key]})" for key in most[:SHOWN])
    more = f" and {len(most) - SHOWN} more" if len(most) > SHOWN else ""
    raise UnusableError(f"no range is called {wanted!r}; there are {listed}{more}", "name the step's with --step-range NAME")


def step_walls(traces: Sequence[Trace], step: Found) -> list[tuple[int, int, tuple[int, ...]]]:
    """Per rank, in order: (process, number of steps, the time from each step's start to the next one's in ns)."""
    found = []
    for trace in traces:
        for process, starts, _ in _step_times(trace, step):
            found.append((process, len(starts), tuple(np.diff(starts).tolist())))
    return found


def profile(traces: Sequence[Trace], step: Found, window: tuple[int, int]) -> Profile:
    """The steps ``window`` (half-open, from 0) of every rank in ``traces``, one or more per trace, and all ranks together."""
    ranks = [rank for trace in traces for rank in _ranks(trace, step, window)]
    together = across_ranks([rank.steps for rank in ranks])
    named = together.instances.astype({"domain": "category", "name": "category"})
    together = replace(together, instances=named, ops=None if together.ops is None else _compact(together.ops))
    names = _names(together, step)
    return Profile(together, tuple(ranks), names, _kernels([rank.steps for rank in ranks]))


def samples(found: Profile, *, capture: str, block: int, position: int) -> dict[tuple[str, str], ProcessSample]:
    """Every range's figures step by step, as one process sample."""
    instances = found.together.instances
    columns = {name: instances[name].to_numpy() for name in ("busy_ns", "span_ns", "host_ns", "ops")}
    made = {}
    for key, places in _by_range(instances):
        values = {name: tuple(column[places].tolist()) for name, column in columns.items()}
        if min(values["busy_ns"]) < 0:
            values |= {"busy_ns": (), "span_ns": (), "ops": ()}
        made[key] = ProcessSample(capture, block, position, **values, kernels=found.kernels.get(key, ""))
    return made


def rank_medians(found: Profile, metric: str) -> dict[tuple[str, str], dict[int, int]]:
    """Per range and rank (its place in ``found.ranks``) the median of ``metric`` (``host_ns``, ``busy_ns``) over the steps."""
    medians: dict[tuple[str, str], dict[int, int]] = {}
    for number, rank in enumerate(found.ranks):
        values = rank.steps.instances[metric].to_numpy()
        for key, places in _by_range(rank.steps.instances):
            if (values[places] >= 0).all():
                medians.setdefault(key, {})[number] = int(np.median(values[places]))
    return medians


def lost_work(found: Profile) -> dict[tuple[str, str], int]:
    """Per range the launches of the window whose GPU work the capture lacks, where there are any."""
    missing = _missing(found.together)
    if not missing.any():
        return {}
    return {key: lost for key, places in _by_range(found.together.instances) if (lost := int(missing[places].sum()))}


def _step_times(trace: Trace, step: Found) -> Iterator[tuple[int, Ints, Ints]]:
    """(process, starts, ends) of the step's range, per process that has it, in order of the processes."""
    ranges = trace.ranges
    mine = ranges[ranges["closed"] & (ranges["domain"] == step.domain)]
    mine = mine[mine["name"].astype(str).map(strip_counters) == step.name]
    for process, rows in mine.groupby("process", sort=True):
        rows = rows.sort_values(["start", "end"])
        yield int(process), rows["start"].to_numpy(), rows["end"].to_numpy()  # type: ignore[arg-type]


def _ranks(trace: Trace, step: Found, window: tuple[int, int]) -> Iterator[RankSteps]:
    whole = rename(measure(trace, detail=True), strip_counters)
    whole = _with_enclosing(trace, whole, step)
    for process, starts, ends in _step_times(trace, step):
        mine = (whole.instances["process"] == process).to_numpy()
        place = np.searchsorted(starts, whole.instances["start"].to_numpy(), side="right") - 1
        inside = mine & (place >= window[0]) & (place < window[1])
        inside &= (place < len(starts) - 1) | (whole.instances["start"].to_numpy() <= ends[-1])
        yield RankSteps(process, len(starts), tuple(np.diff(starts).tolist()), _per_step(whole, place, inside, starts))


def _with_enclosing(trace: Trace, whole: Measurement, step: Found) -> Measurement:
    """``whole``; the step and every range that encloses what other threads open with all GPU work of their process meanwhile.

    A backward that autograd runs on a thread of its own, with ranges of its own, belongs to the range that waits for it.
    """
    mine = _is_step(whole.instances, step) | _enclosing(trace.ranges, whole.instances)
    mine &= (whole.instances["rule"] != "process").to_numpy()
    if not mine.any():
        return whole
    wide = rename(measure(trace, attribution="process", detail=True), strip_counters)
    steps = wide.instances[mine]  # the same ranges in the same order
    instances = pd.concat([whole.instances[~mine], steps.assign(instance=steps["instance"] + _APART)])
    assert whole.ops is not None  # noqa: S101 — detail was asked for
    assert wide.ops is not None  # noqa: S101
    kept = whole.ops[whole.ops["instance"].isin(set(whole.instances.loc[~mine, "instance"]))]
    added = wide.ops[wide.ops["instance"].isin(set(steps["instance"]))]
    added = added.assign(instance=added["instance"] + _APART)
    missing = np.append(_missing(whole)[~mine], _missing(wide)[mine])
    return replace(
        whole,
        instances=instances.reset_index(drop=True),
        ops=pd.concat([kept, added], ignore_index=True),
        missing=missing,
    )


def _enclosing(ranges: pd.DataFrame, instances: pd.DataFrame) -> NDArray[np.bool_]:
    """Whether no range of another thread is open where an instance starts or ends, for none of its name in its process."""
    ranges = ranges[~is_one_of(ranges["domain"], (*LIBRARY_DOMAINS, LEFT_OUT_DOMAIN))]
    met = np.zeros(len(instances), dtype=np.int64)
    for process, mine in ranges.groupby("process"):
        here = np.flatnonzero(instances["process"] == process)
        start = instances["start"].to_numpy()[here]
        ends = start + instances["host_ns"].to_numpy()[here]
        own = instances["thread"].to_numpy()[here]
        for thread, theirs in mine.groupby("thread"):
            begun, over = np.sort(theirs["start"].to_numpy()), np.sort(_end(theirs))
            for at in (start, ends):
                still = np.searchsorted(begun, at, side="right") - np.searchsorted(over, at, side="right")
                met[here] += np.where(own == thread, 0, still)
    code, example = groups(instances["process"], instances["domain"], instances["name"])
    return np.asarray(np.bincount(code, weights=met, minlength=len(example)) == 0)[code]


def _end(ranges: pd.DataFrame) -> Ints:
    """Where ranges end; one that never did, never."""
    return np.where(ranges["closed"].to_numpy(), ranges["end"].to_numpy(), np.iinfo(np.int64).max)


_STEP_SHIFT = 44  # of a step's number above the nanoseconds since its start: five hours
_APART = 1 << 40  # keeps the instance numbers of two measurements apart


def _is_step(instances: pd.DataFrame, step: Found) -> NDArray[np.bool_]:
    return np.asarray((instances["domain"] == step.domain) & (instances["name"] == step.name))


def _missing(measurement: Measurement) -> Ints:
    return measurement.missing if len(measurement.missing) else np.zeros(len(measurement.instances), dtype=np.int64)


def _per_step(whole: Measurement, place: Ints, inside: NDArray[np.bool_], starts: Ints) -> Measurement:
    """One instance per range and step: sums over its instances there.

    Its start is that within the step, with the step's number in front: ranks drift apart, and have clocks of their own.
    """
    rows = whole.instances.assign(missing=_missing(whole), step=place)[inside]
    rows = rows.astype({"domain": object, "name": object, "rule": object}).sort_values(["start", "instance"])
    rows = rows[~_inside_its_like(rows)]
    code, example = groups(rows["domain"], rows["name"], rows["step"])
    unknown = np.bincount(code, weights=(rows["busy_ns"] < 0).to_numpy(), minlength=len(example)) > 0
    summed = rows.iloc[example].assign(**{name: _summed(rows[name], code, len(example)) for name in _SUMS})
    for name in ("busy_ns", "span_ns", "sum_ns", "ops"):
        summed[name] = np.where(unknown, -1, summed[name])
    summed["idle_ns"] = np.where(unknown, -1, summed["span_ns"] - summed["busy_ns"])
    order = np.lexsort((example, summed["step"].to_numpy()))
    number = np.empty(len(example), dtype=np.int64)
    number[order] = np.arange(len(example))
    steps = summed["step"].to_numpy()
    start = (steps << _STEP_SHIFT) + summed["start"].to_numpy() - starts[steps]
    summed = summed.assign(instance=number, start=start).iloc[order].reset_index(drop=True)
    new = pd.Series(number[code], index=rows["instance"].to_numpy())
    return replace(
        whole,
        instances=summed.drop(columns=["missing", "step"]),
        ops=None if whole.ops is None else _moved(whole.ops, new),
        missing=summed["missing"].to_numpy(),
    )


def _summed(column: pd.Series[int], code: Codes, count: int) -> Ints:
    total = np.zeros(count, dtype=np.int64)
    np.add.at(total, code, column.to_numpy())
    return total


def _inside_its_like(rows: pd.DataFrame) -> NDArray[np.bool_]:
    """Whether an instance lies inside an earlier one of the same range and thread; ``rows`` in order of their starts."""
    end = rows["start"] + rows["host_ns"]
    code, _ = groups(rows["domain"], rows["name"], rows["thread"])
    reached = end.groupby(code).cummax().groupby(code).shift(fill_value=-(1 << 62))
    return np.asarray(end <= reached)


def _moved(ops: pd.DataFrame, new: pd.Series[int]) -> pd.DataFrame:
    instance = ops["instance"].map(new)
    kept = ops[instance.notna()]
    return kept.assign(instance=instance[kept.index].astype("int64")).sort_values("instance", kind="stable", ignore_index=True)


def _compact(ops: pd.DataFrame) -> pd.DataFrame:
    """The columns that explain a difference, text as categories: every capture of a run is kept until its end."""
    return ops[list(_KEPT)].astype(dict.fromkeys(("kind", "name", "grid", "block"), "category"))


def _by_range(instances: pd.DataFrame) -> Iterator[tuple[tuple[str, str], Ints]]:
    """Each range with the places of its rows, in order of the steps."""
    code, example = groups(instances["domain"], instances["name"])
    order = np.lexsort((instances["instance"].to_numpy(), instances["start"].to_numpy(), code))
    edges = np.append(0, np.cumsum(np.bincount(code, minlength=len(example))))
    domains, names = (instances[name].iloc[example].tolist() for name in ("domain", "name"))
    for number in range(len(example)):
        yield (str(domains[number]), str(names[number])), order[edges[number] : edges[number + 1]]


def _names(together: Measurement, step: Found) -> dict[tuple[str, str], str]:
    """The step is "step"; our helper's ranges are called by their own name where no range of the default domain is."""
    instances = together.instances
    _, example = groups(instances["domain"], instances["name"])
    keys = [(str(instances["domain"].iloc[row]), str(instances["name"].iloc[row])) for row in example]
    plain = {name for domain, name in keys if not domain}
    names = {}
    for domain, name in keys:
        alone = domain == OWN_DOMAIN and name not in plain
        shown = name if alone else display_name(domain, name)
        names[domain, name] = f"{domain}:{name}" if shown == "step" else shown
    names[step.domain, step.name] = "step"
    return names


def _kernels(ranks: Iterable[Measurement]) -> dict[tuple[str, str], str]:
    """Per range a digest of its launches in all ranks: equal in two runs that launched the same.

    Where every step launches the same list, that list (names, grids, blocks, in order) is digested; where steps differ, as the
    shapes of a program that routes by its data do, the set of its kernels' names.
    """
    parts: dict[tuple[str, str], list[str]] = {}
    for rank in ranks:
        for key, launched in _launches(rank):
            parts.setdefault(key, []).append(launched)
    return {key: hashlib.sha256(json.dumps(sorted(texts)).encode()).hexdigest()[:16] for key, texts in parts.items()}


def _launches(rank: Measurement) -> Iterator[tuple[tuple[str, str], str]]:
    if rank.ops is None or rank.ops.empty:
        return
    ops = rank.ops
    code, example = groups(ops["name"], ops["grid"], ops["block"])
    launch = [[str(ops[name].iloc[row]) for name in ("name", "grid", "block")] for row in example]
    owner = ops["instance"].to_numpy()
    edges = np.searchsorted(owner, np.arange(len(rank.instances) + 1))
    instance = rank.instances["instance"].to_numpy()
    for key, places in _by_range(rank.instances):
        lists = {code[edges[number] : edges[number + 1]].tobytes() for number in instance[places]}
        if len(lists) == 1:
            every = np.frombuffer(lists.pop(), dtype=code.dtype)
            yield key, json.dumps([launch[number] for number in every])
        else:
            met = {launch[number][0] for text in lists for number in np.frombuffer(text, dtype=code.dtype)}
            yield key, json.dumps(sorted(met))
