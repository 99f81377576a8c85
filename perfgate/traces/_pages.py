"""Whole columns straight from the b-tree pages of a SQLite file: several times faster than row by row, in bounded memory.

Written after SQLite's description of its file format (https://www.sqlite.org/fileformat2.html, sections 1.3, 1.6 and 2.1).
Anything that is not the plain case raises :class:`Irregular`, and the caller asks SQLite itself, which also words the error
where the file is damaged. The caller holds a read transaction meanwhile, so that no writer can change the pages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]

MISSING: int = int(np.iinfo(np.int64).min)  # stands for NULL and for anything that is not an integer
_INTERIOR, _LEAF = 0x05, 0x0D
_BYTES_AT_ONCE = 1 << 20  # so that the work on one portion stays in the processor's cache
_WORKERS = min(4, os.cpu_count() or 1)  # numpy lets go of the interpreter while it works
_PAD = 8  # so that eight bytes can be read before the first and after the last
_GAP = 8  # pages: shorter gaps are read along
_WIDTH = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0)  # bytes per serial type below 12
_KIND, _AT, _SIZE = range(3)
_ODD, _OTHER_ODD = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F
_MOST_OVERFLOWING = 10_000


class Irregular(Exception):  # noqa: N818  (not an error: the slow way is right)
    """The file or table is not of the plain kind that this reader takes."""


@dataclass
class Column:
    """One column of integers, or of codes into ``texts`` (-1 for NULL)."""

    values: Ints
    texts: list[str] = field(default_factory=list)


class PageFile:
    """A SQLite file as pages. Raises :class:`Irregular` where it has a write-ahead log, another encoding or is cut short."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY)
        head = os.pread(self._file, 100, 0)
        size = os.fstat(self._file).st_size
        if len(head) < 100 or head[18:20] != b"\x01\x01" or head[56:60] != b"\x00\x00\x00\x01":
            raise Irregular("no plain UTF-8 database")
        self.page_size = 65536 if head[16:18] == b"\x00\x01" else int.from_bytes(head[16:18], "big")
        self.usable = self.page_size - head[20]
        self.page_count = int.from_bytes(head[28:32], "big")
        if self.page_size < 512 or self.usable < 480 or self.page_count * self.page_size > size:
            raise Irregular("page size or file size")

    def close(self) -> None:
        os.close(self._file)

    def leaves(self, root: int) -> Ints:
        """The leaf pages of the table whose root page is ``root``, in row order."""
        level = np.array([root], dtype=np.int64)
        seen = 0
        while True:
            seen += len(level)
            if not len(level) or seen > self.page_count or level.min() < 2 or level.max() > self.page_count:
                raise Irregular("page numbers")
            first = os.pread(self._file, 1, int(level[0] - 1) * self.page_size)[0]
            if first == _LEAF:
                return level
            if first != _INTERIOR:
                raise Irregular("not a table b-tree")
            level = np.concatenate([self._children(int(page)) for page in level])

    def _children(self, number: int) -> Ints:
        page = np.frombuffer(os.pread(self._file, self.page_size, (number - 1) * self.page_size), dtype=np.uint8)
        cells = int.from_bytes(page[3:5].tobytes(), "big")
        if page[0] != _INTERIOR or 12 + 2 * cells > self.usable:
            raise Irregular("an interior page")
        pointers = page[12 : 12 + 2 * cells].view(">u2").astype(np.int64)
        if cells and pointers.max() + 4 > self.usable:
            raise Irregular("a cell pointer")
        children = np.zeros(cells + 1, dtype=np.int64)
        for place in range(4):
            children[:-1] = children[:-1] << 8 | page[pointers + place]
        children[-1] = int.from_bytes(page[8:12].tobytes(), "big")
        return children

    def load(self, numbers: Ints) -> Bytes:
        """The given pages one after another, with ``_PAD`` bytes before and after."""
        size = self.page_size
        buffer = np.zeros(len(numbers) * size + 2 * _PAD, dtype=np.uint8)
        pages = buffer[_PAD:-_PAD].reshape(len(numbers), size)
        order = np.argsort(numbers, kind="stable")
        for run in np.split(order, np.flatnonzero(np.diff(numbers[order]) > _GAP) + 1):
            low, high = int(numbers[run[0]]), int(numbers[run[-1]])
            raw = os.pread(self._file, (high - low + 1) * size, (low - 1) * size)
            if len(raw) != (high - low + 1) * size:
                raise Irregular("the file ends early")
            pages[run] = np.frombuffer(raw, dtype=np.uint8).reshape(-1, size)[numbers[run] - low]
        return buffer


def read(
    file: PageFile,
    root: int,
    wanted: Sequence[int],
    texts: Iterable[int],
    by_row_id: Callable[[Ints], list[tuple[object, ...]]],
) -> dict[int, Column]:
    """The columns at the places ``wanted`` of the table at page ``root``, those of ``texts`` as text, rows in any one order.

    ``by_row_id`` fetches the few rows that spill over their page, as tuples in the order of ``wanted``.
    """
    leaves = file.leaves(root)
    at_once = max(1, _BYTES_AT_ONCE // file.page_size)
    as_text = set(texts)

    def part(low: int) -> _Part:
        return _Cells(file, leaves[low : low + at_once]).columns(wanted, as_text)

    portions = range(0, len(leaves), at_once)
    if len(portions) == 1:
        parts = [part(0)]
    else:
        with ThreadPoolExecutor(min(_WORKERS, len(portions))) as workers:
            parts = list(workers.map(part, portions))
    spilled = np.concatenate([part.spilled for part in parts])
    if len(spilled) > _MOST_OVERFLOWING:
        raise Irregular("many rows spill over")
    rows = by_row_id(spilled) if len(spilled) else []
    result = {}
    for place, number in enumerate(wanted):
        pieces = [part.values.pop(number) for part in parts]
        extra = [row[place] for row in rows]
        if number in as_text:
            result[number] = merge_texts(pieces, [part.texts[number] for part in parts], extra)
        else:
            result[number] = Column(np.concatenate([*pieces, np.array(extra, dtype=np.int64)]))
    return result


def merge_texts(pieces: list[Ints], vocabularies: list[list[str]], extra: Iterable[object]) -> Column:
    """One column of codes from several, each into its own vocabulary, and ``extra`` texts behind them."""
    known: dict[str, int] = {}
    merged = []
    for codes, vocabulary in zip(pieces, vocabularies, strict=True):
        new = np.array([known.setdefault(text, len(known)) for text in vocabulary] + [-1], dtype=np.int64)
        merged.append(new[codes])
    more = [-1 if text is None else known.setdefault(str(text), len(known)) for text in extra]
    return Column(np.concatenate([*merged, np.array(more, dtype=np.int64)]), list(known))


@dataclass
class _Part:
    values: dict[int, Ints]
    texts: dict[int, list[str]]
    spilled: Ints  # row ids


class _Cells:
    """The records on some leaf pages: where each begins and ends in ``buffer``."""

    def __init__(self, file: PageFile, numbers: Ints) -> None:
        self.buffer = buffer = file.load(numbers)
        self.words: Ints = np.ndarray((len(buffer) - 7,), dtype=">i8", buffer=buffer, strides=(1,))
        base = _PAD + np.arange(len(numbers)) * file.page_size
        if (buffer[base] != _LEAF).any():
            raise Irregular("a leaf page")
        count = self._two_bytes(base + 3)
        if (8 + 2 * count > file.usable).any():
            raise Irregular("a cell count")
        page = np.repeat(base, count)
        slot = np.arange(len(page)) - np.repeat(np.cumsum(count) - count, count)
        pointer = self._two_bytes(page + 8 + 2 * slot)
        if len(page) and (pointer + 4 > file.usable).any():
            raise Irregular("a cell pointer")
        payload, position = self._varint(page + pointer)
        row_id_at, position = position, self._behind_varint(position)
        if (payload < 0).any():
            raise Irregular("a record's length")
        spilling = payload > file.usable - 35
        self.spilled = self._varint(row_id_at[spilling])[0]
        if spilling.any():
            payload, position, page = payload[~spilling], position[~spilling], page[~spilling]
        self.begin, self.end = position, position + payload
        if (self.end > page + file.usable).any():
            raise Irregular("a record runs over its page")

    def columns(self, wanted: Sequence[int], texts: set[int]) -> _Part:
        shape, layouts = self._layouts(max(wanted) + 1)
        part = _Part({}, {}, self.spilled)
        if len(layouts) and (layouts[:, -1, _AT] + layouts[:, -1, _SIZE])[shape].max(initial=0) > 0:
            body_end = (layouts[:, -1, _AT] + layouts[:, -1, _SIZE])[shape]
            if (self.begin + body_end > self.end).any():
                raise Irregular("a field runs over its record")
        for number in wanted:
            kind, at, size = (np.ascontiguousarray(layouts[:, number, which]) for which in (_KIND, _AT, _SIZE))
            if number in texts:
                part.values[number], part.texts[number] = self._texts(kind[shape], self.begin + at[shape], size[shape])
            else:
                part.values[number] = self._integers(kind, at + size - 8, (8 - size) << 3, shape)
        return part

    def _layouts(self, fields: int) -> tuple[Ints, Ints]:
        """Which of the few distinct record headers each row has, and per header its first fields' kind, offset and size."""
        length = self.buffer[self.begin].astype(np.int64)
        if len(length) and (length.max() >= 0x80 or (self.begin + length > self.end).any()):
            raise Irregular("a long record header")
        hashed: Words = length.astype(np.uint64)
        words: list[Words] = []
        for done in range(0, int(length.max(initial=0)), 8):
            left = length - done
            word = self.words[self.begin + done].astype(np.uint64)
            if (left < 8).any():
                word = np.right_shift(word, ((8 - np.clip(left, 1, 8)) << 3).astype(np.uint64), dtype=np.uint64)
                word[left <= 0] = 0
            words.append(word)
            hashed = _mixed(hashed ^ word, _ODD)
        shape, unique = pd.factorize(hashed)
        example = _first_of_each(shape, len(unique))
        for part in (length, *words):
            if (part[example][shape] != part).any():
                raise Irregular("two headers with one hash")
        layouts = [
            self._layout(int(begin), int(size), fields)
            for begin, size in zip(self.begin[example], length[example], strict=True)
        ]
        return shape.astype(np.int64), np.array(layouts, dtype=np.int64).reshape(-1, fields, 3)

    def _layout(self, begin: int, length: int, fields: int) -> list[tuple[int, int, int]]:
        """Kind, offset from the record's begin and size of the first ``fields`` fields."""
        header = self.buffer[begin + 1 : begin + length].tolist()
        layout, at = [], length
        kind = 0
        for byte in header:
            kind = kind << 7 | (byte & 0x7F)
            if byte >= 0x80:
                continue
            size = _WIDTH[kind] if kind < len(_WIDTH) else (kind - len(_WIDTH)) >> 1
            layout.append((kind, at, size))
            at, kind = at + size, 0
            if len(layout) == fields:
                return layout
        raise Irregular("a record with fewer fields")

    def _integers(self, kind: Ints, at: Ints, shift: Ints, shape: Ints) -> Ints:
        """The values of one field; ``kind``, ``at`` (of the eight bytes that end with it) and ``shift`` are per shape."""
        moved = shift[shape]
        plain = (kind >= 1) & (kind <= 6)
        if plain.all():
            values: Ints = (self.words[self.begin + at[shape]].astype(np.int64) << moved) >> moved
            return values
        if not plain.any():
            return np.where(kind == 9, 1, np.where(kind == 8, 0, MISSING))[shape]
        values = (self.words[self.begin + at[shape]].astype(np.int64) << (moved & 63)) >> (moved & 63)
        constant = np.where(kind == 9, 1, np.where(kind == 8, 0, MISSING))[shape]
        return np.where(plain[shape], values, constant)

    def _texts(self, kind: Ints, at: Ints, size: Ints) -> tuple[Ints, list[str]]:
        """A code per row and the texts: equal bytes are found by two 64-bit hashes, and read once."""
        codes = np.full(len(kind), -1, dtype=np.int64)
        some = np.flatnonzero(kind != 0)
        if not len(some):
            return codes, []
        if (kind[some] < 12).any():
            raise Irregular("a number where text belongs")
        at, size = at[some], size[some]
        first, second = self._hashes(at, size)
        found, unique = pd.factorize(first)
        example = _first_of_each(found, len(unique))
        if (second != second[example][found]).any():
            raise Irregular("two texts with one hash")
        codes[some] = found
        texts = [
            self.buffer[begin : begin + length].tobytes().decode("utf-8", "replace")
            for begin, length in zip(at[example].tolist(), size[example].tolist(), strict=True)
        ]
        return codes, texts

    def _hashes(self, at: Ints, size: Ints) -> tuple[Words, Words]:
        first, second = _mixed(size.astype(np.uint64), _ODD), _mixed(size.astype(np.uint64), _OTHER_ODD)
        rest = np.flatnonzero(size > 0)
        done = 0
        while len(rest):
            left = size[rest] - done
            word = self.words[at[rest] + done].astype(np.uint64)
            if (left < 8).any():
                word = word >> ((8 - np.minimum(left, 8)) << 3).astype(np.uint64)
            first[rest] = _mixed(first[rest] ^ word, _ODD)
            second[rest] = _mixed(second[rest] ^ word, _OTHER_ODD)
            done += 8
            rest = rest[left > 8]
        return first, second

    def _two_bytes(self, at: Ints) -> Ints:
        return self.buffer[at].astype(np.int64) << 8 | self.buffer[at + 1]

    def _behind_varint(self, at: Ints) -> Ints:
        """The positions behind the numbers at ``at``: a byte below 0x80 ends one, and so does the ninth byte."""
        ending = ~self.words[at].astype(np.uint64) & np.uint64(0x8080808080808080)
        highest = (ending.astype(np.float64).view(np.int64) >> 52) - 1023  # the exponent is the highest bit's place
        return at + np.where(ending == 0, 9, 8 - (highest >> 3))

    def _varint(self, at: Ints) -> tuple[Ints, Ints]:
        """The big-endian base-128 numbers at ``at`` (exact up to eight bytes), and the positions behind them."""
        word = self.words[at].astype(np.uint64)
        byte = (word >> np.uint64(56)).astype(np.int64)
        value, after = byte & 0x7F, at + 1
        going = byte >= 0x80
        for place in range(1, 9):
            if not going.any():
                break
            byte = (word >> np.uint64(56 - 8 * place)).astype(np.int64) & 0xFF if place < 8 else np.zeros_like(byte)
            if going.all():
                value = value << 7 | (byte & 0x7F)
                after += 1
                going = byte >= 0x80
            else:
                value = np.where(going, value << 7 | (byte & 0x7F), value)
                after += going
                going &= byte >= 0x80
        return value, after


def _first_of_each(codes: Ints, count: int) -> Ints:
    """The first place of each code 0 .. ``count`` - 1."""
    first = np.empty(count, dtype=np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    return first


def _mixed(value: Words, odd: int) -> Words:
    value = value * np.uint64(odd)
    return value ^ (value >> np.uint64(29))
