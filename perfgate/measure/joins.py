"""GPU operations to the API calls that launched them, on (process, correlation id): never on the id alone."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_ID_BITS = 40


def launch_of(ops: pd.DataFrame, launches: pd.DataFrame) -> tuple[Ints, int]:
    """Per operation the place of its launch in ``launches``, -1 where the capture lacks it; and how many ids were ambiguous.

    Of several calls with one id in one process (an id that wrapped round, a process id used twice) the last one that began
    before the operation did is taken.
    """
    keys, wanted = _keys(launches, ops)
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


def _keys(launches: pd.DataFrame, ops: pd.DataFrame) -> tuple[Ints, Ints]:
    processes = pd.factorize(np.concatenate([launches["process"].to_numpy(), ops["process"].to_numpy()]))[0].astype(np.int64)
    ids = np.concatenate([launches["correlation"].to_numpy(), ops["correlation"].to_numpy()])
    usable = (ids > 0) & (ids < 1 << _ID_BITS)  # CUPTI gives 0 to work that no call launched
    keys = np.where(usable, (processes << _ID_BITS) | np.where(usable, ids, 0), -1)
    return keys[: len(launches)], keys[len(launches) :]


def _latest_before(first: Ints, last: Ints, begun: Ints, when: Ints) -> Ints:
    chosen = first.copy()
    for step in range(1, int((last - first).max()) + 1):
        place = np.minimum(first + step, last)
        chosen = np.where(begun[place] <= when, place, chosen)
    return chosen
