"""Small numbers in place of keys."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def groups(*columns: pd.Series | Ints) -> tuple[Ints, Ints]:
    """A number per row, 0 .. n-1, equal where all ``columns`` are equal; and a row of each number."""
    total = _codes(columns[0])
    for column in columns[1:]:
        codes = _codes(column)
        if not total.any():
            total = codes
        elif codes.any():
            total = _codes(total * (int(codes.max()) + 1) + codes)
    example = np.empty(int(total.max(initial=-1)) + 1, dtype=np.int64)
    example[total[::-1]] = np.arange(len(total))[::-1]
    return total, example


def is_one_of(column: pd.Series, names: Collection[str]) -> NDArray[np.bool_]:
    """Whether each row holds one of ``names``, looked up once per distinct name."""
    if not isinstance(column.dtype, pd.CategoricalDtype):
        return column.isin(list(names)).to_numpy()
    hits = column.cat.categories.isin(list(names))
    return hits[column.cat.codes.to_numpy()] if hits.any() else np.zeros(len(column), dtype=bool)


def by_code(codes: Ints, count: int) -> tuple[Ints, Ints]:
    """The places ordered by code 0 .. ``count`` - 1, within a code in their order; and where each code begins, and the end."""
    order = np.argsort(codes.astype(np.min_scalar_type(max(count - 1, 0))), kind="stable")
    return order, np.append(0, np.cumsum(np.bincount(codes, minlength=count)))


def order_codes(column: pd.Series) -> Ints:
    """A number per row that orders rows as their values do."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        names = column.cat.categories.to_numpy()
        rank = np.empty(len(names), dtype=np.int64)
        rank[np.argsort(names, kind="stable")] = np.arange(len(names))
        return rank[column.cat.codes.to_numpy()]
    return np.unique(column.to_numpy(), return_inverse=True)[1].astype(np.int64)


def _codes(column: pd.Series | Ints) -> Ints:
    if isinstance(column, pd.Series) and isinstance(column.dtype, pd.CategoricalDtype):
        return _codes(column.cat.codes.to_numpy().astype(np.int64))
    if len(column) and isinstance(column, np.ndarray) and (column == column[0]).all():
        return np.zeros(len(column), dtype=np.int64)
    return pd.factorize(column)[0].astype(np.int64)
