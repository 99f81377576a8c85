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


def concat(parts: Sequence[dict[str, pd.Categorical | Ints]]) -> dict[str, pd.Categorical | Ints]:
    """The columns of all parts, one part below the other."""
    if len(parts) == 1:
        return parts[0]
    return {name: _joined([part[name] for part in parts]) for name in parts[0]}


def _joined(pieces: Sequence[pd.Categorical | Ints]) -> pd.Categorical | Ints:
    codes: list[Ints] = []
    texts: list[str] = []
    for piece in pieces:
        if isinstance(piece, pd.Categorical):
            codes.append(piece.codes.astype(np.int64) + len(texts))
            texts += piece.categories.to_list()
    if codes:
        return coded(np.concatenate(codes), texts)
    return steady(np.concatenate([np.asarray(piece) for piece in pieces]))
