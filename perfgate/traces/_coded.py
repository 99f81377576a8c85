"""Text columns held as small codes into a short list of texts: millions of rows share a handful of names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def coded(codes: Ints, texts: Sequence[str]) -> pd.Categorical:
    """``texts[code]`` per row. Equal texts become one category."""
    known: dict[str, int] = {}
    merged = np.array([known.setdefault(text, len(known)) for text in texts], dtype=np.int64)
    return pd.Categorical.from_codes(merged[codes] if len(merged) else codes, categories=pd.Index(list(known), dtype=object))


def named(keys: Ints, name: Callable[[int], str]) -> pd.Categorical:
    """``name(key)`` per row, called once per distinct key."""
    codes, unique = pd.factorize(keys)
    return coded(codes.astype(np.int64), [name(key) for key in unique.tolist()])


def constant(text: str, count: int) -> pd.Categorical:
    """The same text in every row."""
    return coded(np.zeros(count, dtype=np.int8), [text])


def steady(values: Ints) -> Ints:
    """``values``, in the memory of one of them where all are equal; such an array can only be read."""
    if len(values) and values[0] == values[-1] and (values == values[0]).all():
        return np.broadcast_to(values[0], len(values))
    return values


def extents(x: Ints, y: Ints, z: Ints, missing: int) -> pd.Categorical:
    """``132x1x1`` per row, "" where a part is ``missing`` or can't be an extent."""
    known = (x >= 0) & (y >= 0) & (z >= 0) & (x < 1 << 31) & (y < 1 << 16) & (z < 1 << 16)
    keys = np.where(known, x << 32 | y << 16 | z, missing)
    return named(keys, lambda key: "" if key == missing else f"{key >> 32}x{key >> 16 & 0xFFFF}x{key & 0xFFFF}")


def concat(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The frames one below the other, categorical columns kept categorical."""
    if len(frames) == 1:
        return frames[0]
    columns: dict[str, object] = {}
    for name in frames[0].columns:
        parts = [frame[name] for frame in frames]
        if any(isinstance(part.dtype, pd.CategoricalDtype) for part in parts):
            columns[name] = pd.api.types.union_categoricals([part.astype("category") for part in parts])
        else:
            columns[name] = np.concatenate([part.to_numpy() for part in parts])
    return pd.DataFrame(columns, copy=False)
