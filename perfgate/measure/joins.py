"""GPU operations to the API calls that launched them, on (process, correlation id): never on the id alone."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfgate.measure.codes import is_one_of

Ints = NDArray[np.int64]
_ID_BITS = 40
_SPARE = 1 << 20  # entries of a table of ids beyond four per call
_LAUNCHING = re.compile(r"LaunchKernel|LaunchCooperativeKernel|GraphLaunch")


def launch_of(ops: pd.DataFrame, launches: pd.DataFrame) -> tuple[Ints, int]:
    """Per operation the place of its launch in ``launches``, -1 where the capture lacks it; and how many ids were ambiguous.

    Of several calls with one id in one process (an id that wrapped round, a process id used twice) the last one that began
    before the operation did is taken.
    """
    keys, wanted = _keys(launches, ops)
    dense = _by_table(keys, wanted)
    if dense is not None:
        return dense, 0
    order = np.argsort(keys, kind="stable")
    order = order[np.searchsorted(keys[order], 0) :]
    ordered = keys[order]
    if not len(ordered):
        return np.full(len(ops), -1, dtype=np.int64), 0
    place = np.searchsorted(ordered, wanted, side="left")
    found = np.minimum(place, len(ordered) - 1)
    known = (ordered[found] == wanted) & (wanted >= 0)
    repeated = np.append(False, ordered[1:] == ordered[:-1])
    ambiguous = 0
    if repeated.any():
        order = order[np.lexsort((launches["start"].to_numpy()[order], ordered))]
        last = np.searchsorted(ordered, wanted, side="right") - 1
        several = np.flatnonzero(known & (last > found))
        begun = launches["start"].to_numpy()[order]
        found[several] = _latest_before(found[several], last[several], begun, ops["start"].to_numpy()[several])
        ambiguous = len(np.unique(wanted[several]))
    return np.where(known, order[found], -1), ambiguous


def _by_table(keys: Ints, wanted: Ints) -> Ints | None:
    """The join through a table of all ids, where these lie close together and none repeats; else ``None``."""
    usable = keys >= 0
    places = np.flatnonzero(usable)
    if not len(places):
        return None
    ids = keys if len(places) == len(keys) else keys[places]
    low, high = int(ids.min()), int(ids.max())
    if high - low > 4 * len(ids) + _SPARE:
        return None
    table = np.full(high - low + 1, -1, dtype=np.int64)
    table[ids - low] = places
    if (table[ids - low] != places).any():
        return None
    inside = (wanted >= low) & (wanted <= high)
    return np.where(inside, table[np.where(inside, wanted - low, 0)], -1)


def lost_launches(launches: pd.DataFrame, launch: Ints) -> Ints:
    """The places of kernel and graph launches that no operation in the capture came from.

    Launches that a stream capture recorded into a graph ran nothing and are none of them.
    """
    names = launches["name"]
    unique = names.unique()
    answered = np.zeros(len(names), dtype=bool)
    answered[launch[launch >= 0]] = True
    launching = [name for name in unique if _LAUNCHING.search(name)]
    lost = ~answered if len(launching) == len(unique) else is_one_of(names, launching) & ~answered
    begins = is_one_of(names, [name for name in unique if "StreamBeginCapture" in name])
    if begins.any() and lost.any():
        ends = is_one_of(names, [name for name in unique if "StreamEndCapture" in name])
        lost &= ~_capturing(launches, begins, ends)
    return np.flatnonzero(lost)


def _capturing(launches: pd.DataFrame, begins: NDArray[np.bool_], ends: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether each call lies between the begin and the end of a stream capture on its thread."""
    start, thread = launches["start"].to_numpy(), launches["thread"].to_numpy()
    inside = np.zeros(len(start), dtype=bool)
    for each in np.unique(thread[begins]):
        mine = thread == each
        begun, ended = (np.sort(start[mine & some]) for some in (begins, ends))
        inside[mine] = np.searchsorted(begun, start[mine], "right") > np.searchsorted(ended, start[mine], "right")
    return inside


def _keys(launches: pd.DataFrame, ops: pd.DataFrame) -> tuple[Ints, Ints]:
    """Per row of each: process and correlation id in one number, -1 where there is no id to join on."""
    processes = pd.unique(np.concatenate([pd.unique(frame["process"].to_numpy()) for frame in (launches, ops)]))
    return _key(launches, processes), _key(ops, processes)


def _key(frame: pd.DataFrame, processes: NDArray[np.int64]) -> Ints:
    ids = frame["correlation"].to_numpy()
    usable = (ids > 0) & (ids < 1 << _ID_BITS)  # CUPTI gives 0 to work that no call launched
    if len(processes) > 1:
        ids = ids + (pd.Index(processes).get_indexer(pd.Index(frame["process"])) << _ID_BITS)
    return np.where(usable, ids, -1)


def _latest_before(first: Ints, last: Ints, begun: Ints, when: Ints) -> Ints:
    """The last place from ``first`` to ``last`` that had begun by ``when`` (else ``first``), by bisection of all at once."""
    low, high = first.copy(), last.copy()
    while (low < high).any():
        middle = (low + high + 1) // 2
        begins = begun[middle] <= when
        low, high = np.where(begins, middle, low), np.where(begins, high, middle - 1)
    return np.maximum(low, first)
