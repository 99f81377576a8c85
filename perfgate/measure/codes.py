"""Small numbers in place of keys."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfgate.traces._coded import all_occur, numbered, one_of_each
from perfgate.traces.table import Ints, Mask, Texts, as_values, is_steady

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Ints", "by_code", "groups", "is_one_of", "order_codes"]


def groups(*columns: Texts | Ints | pd.Series[Any]) -> tuple[Ints, Ints]:
    """A number per row, 0 .. n-1, equal where all ``columns`` are equal; and a row of each number."""
    total, width = _codes(columns[0])
    for column in columns[1:]:
        codes, more = _codes(column)
        if width <= 1:
            total, width = codes, more
        elif more > 1:
            total, distinct = numbered(total * more + codes)
            width = len(distinct)
    return total, one_of_each(total, width)


def is_one_of(column: Texts | pd.Series[Any], names: Collection[str]) -> Mask:
    """Whether each row holds one of ``names``, looked up once per distinct name."""
    texts: Texts = as_values(column)
    return texts.is_one_of(names)


def by_code(codes: Ints, count: int) -> tuple[Ints, Ints]:
    """The places ordered by code 0 .. ``count`` - 1, within a code in their order; and where each code begins, and the end."""
    if count <= 1:
        return np.arange(len(codes)), np.array([0, len(codes)][: count + 1], dtype=np.int64)
    order = np.argsort(codes.astype(np.min_scalar_type(count - 1)), kind="stable")
    return order, np.append(0, np.cumsum(np.bincount(codes, minlength=count)))


def order_codes(column: Texts | Ints) -> Ints:
    """A number per row that orders rows as their values do."""
    if isinstance(column, Texts):
        names = np.array(column.names, dtype=object)
        rank = np.empty(len(names), dtype=np.int64)
        rank[np.argsort(names, kind="stable")] = np.arange(len(names))
        found: Ints = rank[column.codes]
        return found
    return column


def _codes(column: Texts | Ints | pd.Series[Any]) -> tuple[Ints, int]:
    """Codes 0 .. n-1 of one column, all of which occur, and n."""
    values = as_values(column)
    found: NDArray[Any] = values.codes if isinstance(values, Texts) else values
    if len(found) and is_steady(found):
        return np.zeros(len(found), dtype=np.int64), 1
    if isinstance(values, Texts) and all_occur(found, len(values.names)):
        return found.astype(np.int64), len(values.names)
    codes, distinct = numbered(found.astype(np.int64, copy=False))
    return codes, len(distinct)
