"""Several ranks of one run -> one measurement: per iteration the slowest rank, because a training step waits for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pandas as pd

from perfgate.measure import Leftover, Measurement
from perfgate.traces.schema import INSTANCES, check

_RANGE = ["domain", "name"]
_RANK_SHIFT = 40
_LARGEST = ["host_ns", "busy_ns", "span_ns", "sum_ns", "ops", "missing"]


def across_ranks(measurements: Sequence[Measurement]) -> Measurement:
    """One measurement whose i-th instance of a range has the largest figures among the ranks' i-th instances.

    Its operations are those of the busiest rank (where there is no GPU: of the longest), its idle is span - busy. A range that
    the ranks met unequally often can't be paired: all its instances stay, and a note says so.
    """
    if len(measurements) == 1:
        return measurements[0]
    every = pd.concat([_numbered(one, rank) for rank, one in enumerate(measurements)], ignore_index=True)
    counts = every.groupby([*_RANGE, "rank"], sort=False).size().unstack("rank")
    unequal = counts.index[counts.min(axis=1) != counts.max(axis=1)]
    loose = pd.MultiIndex.from_frame(every[_RANGE]).isin(unequal)
    paired = every[~loose].sort_values(["busy_ns", "host_ns"], ascending=False, kind="stable")
    slowest = paired.drop_duplicates([*_RANGE, "number"]).set_index([*_RANGE, "number"])
    slowest[_LARGEST] = paired.groupby([*_RANGE, "number"], sort=False)[_LARGEST].max().reindex(slowest.index)
    slowest["idle_ns"] = (slowest["span_ns"] - slowest["busy_ns"]).where(slowest["busy_ns"] >= 0, -1)
    joined = pd.concat([slowest.reset_index(), every[loose]]).sort_values("key", ignore_index=True)
    joined["instance"] = joined.index
    notes = dict.fromkeys(note for one in measurements for note in one.notes)
    if len(unequal):
        notes[f"{len(unequal)} ranges occur unequally often on the ranks: their instances are pooled, not paired"] = None
    return Measurement(
        instances=check(joined, INSTANCES, "ranks"),
        ops=_operations(measurements, joined),
        unattributed=_leftovers(measurements),
        excluded=tuple(sum((Counter(dict(one.excluded)) for one in measurements), Counter()).items()),
        notes=tuple(notes),
        gpu_ns=sum(one.gpu_ns for one in measurements),
        missing=joined["missing"].to_numpy(),
    )


def _numbered(measurement: Measurement, rank: int) -> pd.DataFrame:
    """The instances with their rank, their number within their range and a key (rank, instance) that no other row has."""
    frame = measurement.instances.astype({"domain": object, "name": object, "rule": object})
    frame = frame.sort_values(["start", "instance"])
    number = frame.groupby(_RANGE, sort=False).cumcount()
    missing = pd.Series(measurement.missing, index=measurement.instances.index) if len(measurement.missing) else 0
    frame = frame.assign(missing=missing)
    return frame.assign(rank=rank, number=number, key=frame["instance"] + (rank << _RANK_SHIFT))


def _operations(measurements: Sequence[Measurement], joined: pd.DataFrame) -> pd.DataFrame | None:
    new = pd.Series(joined["instance"].to_numpy(), index=joined["key"])
    parts = []
    for rank, one in enumerate(measurements):
        if one.ops is None:
            return None
        instance = (one.ops["instance"] + (rank << _RANK_SHIFT)).map(new)
        kept = one.ops[instance.notna()]
        parts.append(kept.assign(instance=instance[kept.index].astype("int64")))
    return pd.concat(parts).sort_values("instance", kind="stable", ignore_index=True)


def _leftovers(measurements: Sequence[Measurement]) -> tuple[Leftover, ...]:
    gpu_ns = sum(one.gpu_ns for one in measurements)
    found: dict[str, tuple[int, int]] = {}
    for left in (left for one in measurements for left in one.unattributed):
        ops, took = found.get(left.reason, (0, 0))
        found[left.reason] = (ops + left.ops, took + left.gpu_ns)
    return tuple(Leftover(reason, ops, took, took / gpu_ns if gpu_ns else 0.0) for reason, (ops, took) in found.items())
