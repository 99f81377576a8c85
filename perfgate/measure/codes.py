"""Small numbers in place of keys."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from perfgate.traces._coded import Codes, all_occur, numbered, one_of_each, smallest
from perfgate.traces.table import Ints, Mask, Texts, as_values, is_steady, taken

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Ints", "Owners", "by_code", "groups", "is_one_of", "order_codes"]

_FEW = 16  # owners: up to here their rows are looked for when they are asked for, beyond all are sorted at once


def groups(*columns: Texts | Codes | pd.Series[Any]) -> tuple[Codes, Ints]:
    """A number per row, 0 .. n-1, equal where all ``columns`` are equal; and a row of each number.

    The numbers are of the smallest kind that holds them: widen them before calculating with them.
    """
    total, width = _codes(columns[0])
    for column in columns[1:]:
        codes, more = _codes(column)
        if width <= 1:
            total, width = codes, more
        elif more > 1:
            total, distinct = numbered(total.astype(np.int64) * more + codes)
            width = len(distinct)
    return total, one_of_each(total, width)


class Owners:
    """The thread that each row belongs to: ``codes`` into ``keys``, which are (process, thread); not every key need occur."""

    def __init__(self, codes: Codes, keys: list[tuple[int, int]]) -> None:
        self.codes = codes
        self.keys = keys

    @classmethod
    def of(cls, process: Ints, thread: Ints) -> Owners:
        """The owners of rows with these columns."""
        codes, example = groups(process, thread)
        return cls(codes, list(zip(process[example].tolist(), thread[example].tolist(), strict=True)))

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, places: Ints | Mask) -> Owners:
        """The owners of the rows at ``places``."""
        return Owners(taken(self.codes, places), self.keys)

    def places(self, number: int) -> Ints:
        """The rows of the owner ``keys[number]``, in their order."""
        if 1 < len(self.keys) <= _FEW:
            return np.flatnonzero(self.codes == number)
        order, edges = self._parts
        return order[edges[number] : edges[number + 1]]

    @cached_property
    def processes(self) -> Owners:
        """The same, with all threads of a process as one."""
        known: dict[int, int] = {}
        codes = np.array([known.setdefault(process, len(known)) for process, _ in self.keys], dtype=smallest(len(self.keys)))
        keys = [(process, 0) for process in known]
        return Owners(np.broadcast_to(np.uint8(0), len(self)) if len(keys) <= 1 else codes[self.codes], keys)

    @cached_property
    def _parts(self) -> tuple[Ints, Ints]:
        return by_code(self.codes, len(self.keys))


def is_one_of(column: Texts | pd.Series[Any], names: Collection[str]) -> Mask:
    """Whether each row holds one of ``names``, looked up once per distinct name."""
    texts: Texts = as_values(column)
    return texts.is_one_of(names)


def by_code(codes: Codes, count: int) -> tuple[Ints, Ints]:
    """The places ordered by code 0 .. ``count`` - 1, within a code in their order; and where each code begins, and the end."""
    if count <= 1:
        return np.arange(len(codes)), np.array([0, len(codes)][: count + 1], dtype=np.int64)
    codes = codes.astype(smallest(count), copy=False)
    order = np.argsort(codes, kind="stable")
    return order, np.searchsorted(codes[order], np.arange(count + 1, dtype=np.min_scalar_type(count)))


def order_codes(column: Texts | Ints) -> Ints:
    """A number per row that orders rows as their values do."""
    if isinstance(column, Texts):
        names = np.array(column.names, dtype=object)
        rank = np.empty(len(names), dtype=np.int64)
        rank[np.argsort(names, kind="stable")] = np.arange(len(names))
        found: Ints = rank[column.codes]
        return found
    return column


def _codes(column: Texts | Codes | pd.Series[Any]) -> tuple[Codes, int]:
    """Codes 0 .. n-1 of one column, all of which occur, and n."""
    values = as_values(column)
    found: Codes = values.codes if isinstance(values, Texts) else values
    if len(found) and is_steady(found):
        return np.broadcast_to(np.uint8(0), len(found)), 1
    if isinstance(values, Texts) and all_occur(found, len(values.names)):
        return found, len(values.names)
    codes, distinct = numbered(found.astype(np.int64, copy=False))
    return codes, len(distinct)
