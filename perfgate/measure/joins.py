"""GPU operations to the API calls that launched them, on (process, correlation id): never on the id alone."""

from __future__ import annotations

import numpy as np

from perfgate.traces._coded import blocks
from perfgate.traces.table import Ints, Mask, Table, distinct, is_steady, taken

_ID_BITS = 40
_SPARE = 1 << 20  # entries of a table of ids beyond four per call
_LAUNCHING = ("LaunchKernel", "LaunchCooperativeKernel", "GraphLaunch")


def launch_of(ops: Table, launches: Table) -> tuple[Ints, int]:
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
        order = order[np.lexsort((launches.ints("start")[order], ordered))]
        last = np.searchsorted(ordered, wanted, side="right") - 1
        several = np.flatnonzero(known & (last > found))
        begun = launches.ints("start")[order]
        found[several] = _latest_before(found[several], last[several], begun, ops.ints("start")[several])
        ambiguous = len(np.unique(wanted[several]))
    return np.where(known, order[found], -1), ambiguous


def _by_table(keys: Ints, wanted: Ints) -> Ints | None:
    """The join through a table of all ids, where these lie close together and none repeats; else ``None``."""
    if not len(keys):
        return None
    low = int(keys.min())
    places = None if low >= 0 else np.flatnonzero(keys >= 0)
    ids = keys if places is None else taken(keys, places)
    if not len(ids):
        return None
    low, high = int(ids.min()), int(ids.max())
    if high - low > 4 * len(ids) + _SPARE:
        return None
    table = np.full(high - low + 1, -1, dtype=np.int64)
    for block in blocks(len(ids)):
        table[ids[block] - low] = np.arange(block.start, block.stop)
    if any((table[ids[block] - low] != np.arange(block.start, block.stop)).any() for block in blocks(len(ids))):
        return None
    if places is not None:
        table = np.where(table < 0, -1, places[table])
    found = np.full(len(wanted), -1, dtype=np.int64)
    all_inside = not len(wanted) or (wanted.min() >= low and wanted.max() <= high)
    for block in blocks(len(wanted)):
        asked = wanted[block] - low
        if all_inside:
            np.take(table, asked, out=found[block], mode="clip")  # a mode that copies nothing
        else:
            inside = (asked >= 0) & (asked < len(table))
            found[block][inside] = table[asked[inside]]
    return found


def lost_launches(launches: Table, launch: Ints) -> Ints:
    """The places of kernel and graph launches that no operation in the capture came from.

    Launches that a stream capture recorded into a graph ran nothing and are none of them.
    """
    names = launches.texts("name")
    launching = [name for name in names.names if any(part in name for part in _LAUNCHING)]
    if not launching:
        return np.empty(0, dtype=np.int64)
    lost = np.ones(len(names), dtype=bool)
    lost[launch if len(launch) and launch.min() >= 0 else launch[launch >= 0]] = False
    if len(launching) < len(names.names) and lost.any():
        lost &= names.is_one_of(launching)
    begins = [name for name in names.names if "StreamBeginCapture" in name]
    if begins and lost.any():
        ends = names.is_one_of([name for name in names.names if "StreamEndCapture" in name])
        lost &= ~_capturing(launches, names.is_one_of(begins), ends)
    return np.flatnonzero(lost)


def _capturing(launches: Table, begins: Mask, ends: Mask) -> Mask:
    """Whether each call lies between the begin and the end of a stream capture on its thread."""
    start, thread = launches.ints("start"), launches.ints("thread")
    inside = np.zeros(len(start), dtype=bool)
    for each in np.unique(thread[begins]):
        mine = thread == each
        begun, ended = (np.sort(start[mine & some]) for some in (begins, ends))
        inside[mine] = np.searchsorted(begun, start[mine], "right") > np.searchsorted(ended, start[mine], "right")
    return inside


def _keys(launches: Table, ops: Table) -> tuple[Ints, Ints]:
    """Per row of each: process and correlation id in one number, -1 where there is no id to join on."""
    processes = np.array(
        sorted({each for table in (launches, ops) for each in distinct(table.ints("process"))}), dtype=np.int64
    )
    return _key(launches, processes), _key(ops, processes)


def _key(table: Table, processes: Ints) -> Ints:
    ids, process = table.ints("correlation"), table.ints("process")
    if len(processes) > 1:
        number = np.searchsorted(processes, process[:1] if is_steady(process) else process)
        keys = ids + (number << _ID_BITS)
    else:
        keys = ids
    if len(ids) and ids.min() > 0 and ids.max() < 1 << _ID_BITS:
        return keys
    return np.where((ids > 0) & (ids < 1 << _ID_BITS), keys, -1)  # CUPTI gives 0 to work that no call launched


def _latest_before(first: Ints, last: Ints, begun: Ints, when: Ints) -> Ints:
    """The last place from ``first`` to ``last`` that had begun by ``when`` (else ``first``), by bisection of all at once."""
    low, high = first.copy(), last.copy()
    while (low < high).any():
        middle = (low + high + 1) // 2
        begins = begun[middle] <= when
        low, high = np.where(begins, middle, low), np.where(begins, high, middle - 1)
    return np.maximum(low, first)
