"""Small codes in place of values: for text columns, and to group by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfgate.traces.table import Ints, Texts, is_steady, steady

Words = NDArray[np.uint64]
Codes = NDArray[np.integer[Any]]
_SPARE = 1 << 16  # entries of a table of all possible values beyond four per value
_BLOCK = 1 << 17  # values
_FIRST = 4096  # rows that are looked at before all are
_SLOTS = 16  # bits of a hash
_ODD = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F)


def numbered(values: Ints) -> tuple[Codes, Ints]:
    """A code 0 .. n-1 per value and the n distinct values; in linear time where these lie close together or are few.

    Codes are of the smallest kind that holds them: widen them before calculating with them.
    """
    if not len(values) or is_steady(values):
        return np.broadcast_to(np.uint8(0), len(values)), values[:1].astype(np.int64)
    low, high = int(values.min()), int(values.max())
    values = values.astype(np.int64, copy=False)
    if high - low <= 4 * len(values) + _SPARE:
        return _ranked(values, low, high - low + 1)
    for odd in _ODD:
        slots = (values.view(np.uint64) * np.uint64(odd) >> np.uint64(64 - _SLOTS)).view(np.int64)
        holder = np.zeros(1 << _SLOTS, dtype=np.int64)
        holder[slots] = values
        if np.array_equal(holder[slots], values):  # no two values share a slot
            codes, unique = _ranked(slots, 0, 1 << _SLOTS)
            return codes, holder[unique]
    unique, codes = np.unique(values, return_inverse=True)
    return codes.astype(smallest(len(unique))), unique


def smallest(count: int) -> np.dtype[Any]:
    """The smallest kind of number that holds 0 .. ``count`` - 1."""
    return np.dtype(np.min_scalar_type(max(count - 1, 0)))


def blocks(count: int) -> list[slice]:
    """Slices of ``count`` rows, small enough that what is computed of each stays in the cache."""
    return [slice(begin, min(begin + _BLOCK, count)) for begin in range(0, count, _BLOCK)]


def _ranked(values: Ints, low: int, width: int) -> tuple[Codes, Ints]:
    """Codes and distinct values of numbers from ``low`` to ``low + width - 1``."""
    present = np.zeros(width, dtype=bool)
    for block in blocks(len(values)):
        present[values[block] - low] = True
    unique = np.flatnonzero(present)
    codes = np.empty(len(values), dtype=smallest(len(unique)))
    if len(unique) == width:
        for block in blocks(len(values)):
            np.subtract(values[block], low, out=codes[block], casting="unsafe")
        return codes, unique + low
    rank = np.empty(width, dtype=codes.dtype)
    rank[unique] = np.arange(len(unique))
    for block in blocks(len(values)):
        codes[block] = rank[values[block] - low]
    return codes, unique + low


def one_of_each(codes: Codes, count: int) -> Ints:
    """A place of each code 0 .. ``count`` - 1."""
    place = np.full(count, -1, dtype=np.int64)
    begin = 0
    while begin < len(codes) and (not begin or place.min() < 0):  # all of a few codes occur early
        end = begin * 8 + _FIRST
        place[codes[begin:end]] = np.arange(begin, min(end, len(codes)))
        begin = end
    return place


def all_occur(codes: Codes, count: int) -> bool:
    """Whether each code 0 .. ``count`` - 1 is among the first rows."""
    seen = np.zeros(count, dtype=bool)
    seen[codes[:_FIRST]] = True
    return bool(seen.all())


def coded(codes: Codes, texts: Sequence[str]) -> Texts:
    """``texts[code]`` per row. Equal texts become one."""
    known: dict[str, int] = {}
    merged = [known.setdefault(text, len(known)) for text in texts]
    kind = np.min_scalar_type(-max(len(known), 1))
    if len(known) < len(merged):
        return Texts(np.array(merged, dtype=kind)[codes], list(known))
    return Texts(codes.astype(kind), list(known))


def named(keys: Ints, name: Callable[[int], str]) -> Texts:
    """``name(key)`` per row, called once per distinct key."""
    if len(keys) and is_steady(keys):
        return constant(name(int(keys[0])), len(keys))
    codes, unique = numbered(keys)
    return coded(codes, [name(key) for key in unique.tolist()])


def constant(text: str, count: int) -> Texts:
    """The same text in every row."""
    return Texts(np.broadcast_to(np.int8(0), count), [text])


def extents(x: Ints, y: Ints, z: Ints, missing: int) -> Texts:
    """``132x1x1`` per row, "" where a part is ``missing`` or can't be an extent."""
    known = (x >= 0) & (y >= 0) & (z >= 0) & (x < 1 << 31) & (y < 1 << 16) & (z < 1 << 16)
    keys = np.where(known, x << 32 | y << 16 | z, missing)
    return named(keys, lambda key: "" if key == missing else f"{key >> 32}x{key >> 16 & 0xFFFF}x{key & 0xFFFF}")


def concat(parts: Sequence[dict[str, Texts | Ints]]) -> dict[str, Texts | Ints]:
    """The columns of all parts, one part below the other."""
    if len(parts) == 1:
        return parts[0]
    return {name: _joined([part[name] for part in parts]) for name in parts[0]}


def _joined(pieces: Sequence[Texts | Ints]) -> Texts | Ints:
    codes: list[Ints] = []
    texts: list[str] = []
    for piece in pieces:
        if isinstance(piece, Texts):
            codes.append(piece.codes.astype(np.int64) + len(texts))
            texts += piece.names
    if codes:
        return coded(np.concatenate(codes), texts)
    return steady(np.concatenate([np.asarray(piece) for piece in pieces]))
