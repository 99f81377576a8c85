"""Small numbers in place of keys."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def factorize_rows(*columns: pd.Series | Ints) -> Ints:
    """A number per row, 0 .. n-1 without gaps, equal where all ``columns`` are equal, in the order of the sorted keys."""
    total = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        codes, found = pd.factorize(column, sort=True)
        total = total * max(1, len(found)) + codes
        if len(columns) > 1:
            total = pd.factorize(total, sort=True)[0].astype(np.int64)
    return total
