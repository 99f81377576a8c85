"""Fields of SQLite records that lie at given places of a buffer, whatever mixture of record headers these have.

Written after SQLite's description of its file format (https://www.sqlite.org/fileformat2.html, sections 1.6 and 2.1).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from perfgate.traces._coded import Codes, numbered, one_of_each
from perfgate.traces.table import Ints

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]

MISSING: int = int(np.iinfo(np.int64).min)  # stands for NULL and for anything that is not an integer
WIDTH = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0)  # bytes per serial type below 12
CONSTANTS = {8: 0, 9: 1}  # serial types that are values themselves
_KIND, _AT, _SIZE = range(3)
ODD, _OTHER_ODD = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F


class Irregular(Exception):  # noqa: N818  (not an error: the slow way is right)
    """The file or table is not of the plain kind that this reader takes."""


def words_of(buffer: Bytes) -> Ints:
    """The eight bytes at every place of ``buffer``, big-endian."""
    return np.ndarray((len(buffer) - 7,), dtype=">i8", buffer=buffer, strides=(1,))


class Records:
    """Records with their lengths and row ids in front, at ``cells``; none of them may spill over its page."""

    def __init__(self, words: Ints, cells: Ints, limit: Ints) -> None:
        self.words = words
        payload, position = varint(words, cells)
        self.begin = behind_varint(words, position)
        self.end = self.begin + payload
        if (payload < 0).any() or (self.end > limit).any():
            raise Irregular("a record runs over its page")

    def fields(self, buffer: Bytes, wanted: Sequence[int], texts: set[int]) -> dict[int, Ints | tuple[Ints, Ints]]:
        """Each wanted field of every record: its values or, of a text, its place (-1 for NULL) and size."""
        shape, layouts = self._layouts(buffer, max(wanted) + 1)
        found: dict[int, Ints | tuple[Ints, Ints]] = {}
        body_end = (layouts[:, -1, _AT] + layouts[:, -1, _SIZE])[shape]
        if (self.begin + body_end > self.end).any():
            raise Irregular("a field runs over its record")
        for number in wanted:
            kind, at, size = (np.ascontiguousarray(layouts[:, number, which]) for which in (_KIND, _AT, _SIZE))
            if number in texts:
                if ((kind != 0) & (kind < len(WIDTH))).any():
                    raise Irregular("a number where text belongs")
                found[number] = np.where(kind[shape] == 0, -1, self.begin + at[shape]), size[shape]
            else:
                found[number] = integers(self.words, self.begin, kind, at, size, shape)
        return found

    def _layouts(self, buffer: Bytes, fields: int) -> tuple[Codes, Ints]:
        """Which of the distinct record headers each row has, and per header its first fields' kind, offset and size."""
        length = buffer[self.begin].astype(np.int64)
        if length.max() >= 0x80 or (self.begin + length > self.end).any():
            raise Irregular("a long record header")
        hashed: Words = length.astype(np.uint64)
        words: list[Words] = []
        for done in range(0, int(length.max()), 8):
            left = length - done
            word = self.words[self.begin + done].astype(np.uint64)
            if (left < 8).any():
                word = word >> ((8 - np.clip(left, 1, 8)) << 3).astype(np.uint64)
                word[left <= 0] = 0
            words.append(word)
            hashed = mixed(hashed ^ word, ODD)
        shape, unique = numbered(hashed.view(np.int64))
        example = one_of_each(shape, len(unique))
        for part in (length, *words):
            if (part[example][shape] != part).any():
                raise Irregular("two headers with one hash")
        layouts = []
        for begin, size in zip(self.begin[example].tolist(), length[example].tolist(), strict=True):
            layout = layout_of(buffer[begin : begin + size].tobytes())[:fields]
            if len(layout) < fields:
                raise Irregular("a record with fewer fields")
            layouts.append(layout)
        return shape, np.array(layouts, dtype=np.int64).reshape(-1, fields, 3)


def integers(words: Ints, begin: Ints, kind: Ints, at: Ints, size: Ints, shape: Codes) -> Ints:
    """One field of the records at ``begin``; ``kind``, ``at`` and ``size`` are per shape, ``shape`` is per record."""
    plain = (kind >= 1) & (kind <= 6)
    constant = np.array([CONSTANTS.get(each, MISSING) for each in kind.tolist()], dtype=np.int64)
    if not plain.any():
        return constant[shape]
    start, shift = np.where(plain, at, 0), np.where(plain, (8 - size) << 3, 0)
    values = words[begin + start[shape]].astype(np.int64) >> shift[shape]
    return values if plain.all() else np.where(plain[shape], values, constant[shape])


def layout_of(header: bytes) -> list[tuple[int, int, int]]:
    """Serial type, offset from the record's begin and size of each field that a record header announces."""
    layout, at, kind = [], len(header), 0
    for byte in header[1:]:
        kind = kind << 7 | (byte & 0x7F)
        if byte < 0x80:
            size = WIDTH[kind] if kind < len(WIDTH) else (kind - len(WIDTH)) >> 1
            layout.append((kind, at, size))
            at, kind = at + size, 0
    return layout


def texts_at(buffer: Bytes, words: Ints, at: Ints, size: Ints) -> tuple[Codes, list[str]]:
    """A code per text (-1 where ``at`` is -1) and the texts: equal bytes are found by two 64-bit hashes, and read once."""
    some = np.flatnonzero(at >= 0)
    if not len(some):
        return np.broadcast_to(np.int8(-1), len(at)), []
    whole = len(at)
    at, size = at[some], size[some]
    first, second = _hashes(words, at, size)
    found, unique = numbered(first.view(np.int64))
    example = one_of_each(found, len(unique))
    if (second != second[example][found]).any():
        raise Irregular("two texts with one hash")
    codes = np.full(whole, -1, dtype=np.min_scalar_type(-len(unique)))
    codes[some] = found
    places = zip(at[example].tolist(), size[example].tolist(), strict=True)
    return codes, [buffer[begin : begin + length].tobytes().decode("utf-8", "replace") for begin, length in places]


def _hashes(words: Ints, at: Ints, size: Ints) -> tuple[Words, Words]:
    first, second = mixed(size.astype(np.uint64), ODD), mixed(size.astype(np.uint64), _OTHER_ODD)
    rest: Ints | slice = slice(None) if size.min() > 0 else np.flatnonzero(size > 0)
    done = 0
    while True:
        left = size[rest] - done
        if not len(left):
            return first, second
        word = words[at[rest] + done].astype(np.uint64)
        if (left < 8).any():
            word >>= ((8 - np.minimum(left, 8)) << 3).astype(np.uint64)
        first[rest] = mixed(first[rest] ^ word, ODD)
        second[rest] = mixed(second[rest] ^ word, _OTHER_ODD)
        done += 8
        if not (left > 8).all():
            rest = np.flatnonzero(left > 8) if isinstance(rest, slice) else rest[left > 8]


def mixed(value: Words, odd: int) -> Words:
    """One step of a hash."""
    value = value * np.uint64(odd)
    return value ^ (value >> np.uint64(29))


def behind_varint(words: Ints, at: Ints) -> Ints:
    """The positions behind the numbers at ``at``: a byte below 0x80 ends one, and so does the ninth byte."""
    ending = ~words[at].astype(np.uint64) & np.uint64(0x8080808080808080)
    highest = (ending.astype(np.float64).view(np.int64) >> 52) - 1023  # the exponent is the highest bit's place
    return at + np.where(ending == 0, 9, 8 - (highest >> 3))


def varint(words: Ints, at: Ints) -> tuple[Ints, Ints]:
    """The big-endian base-128 numbers at ``at`` (exact up to eight bytes), and the positions behind them."""
    word = words[at].astype(np.uint64)
    value, after = np.zeros(len(at), dtype=np.int64), at.copy()
    going = np.ones(len(at), dtype=bool)
    for place in range(9):
        byte = (word >> np.uint64(56 - 8 * place)).astype(np.int64) & 0xFF if place < 8 else np.zeros_like(value)
        value = np.where(going, value << 7 | (byte & 0x7F), value)
        after += going
        going &= byte >= 0x80
        if not going.any():
            break
    return value, after
