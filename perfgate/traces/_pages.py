"""Whole columns straight from the b-tree pages of a SQLite file: several times faster than row by row, in bounded memory.

Written after SQLite's description of its file format (https://www.sqlite.org/fileformat2.html, sections 1.3, 1.6 and 2.1).
Anything that is not the plain case raises :class:`Irregular`, and the caller asks SQLite itself, which also words the error
where the file is damaged. The caller holds a read transaction meanwhile, so that no writer can change the pages.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from perfgate.traces._cells import LEAF, PAD, Leaves, Part
from perfgate.traces._coded import Codes
from perfgate.traces._records import MISSING, Bytes, Irregular, varint, words_of
from perfgate.traces._threads import WORKERS, side_by_side
from perfgate.traces.table import Ints, Values, is_steady

__all__ = ["MISSING", "Column", "Irregular", "PageFile", "merge_texts", "read"]

_INTERIOR = 0x05
_LEAST_AT_ONCE, _MOST_AT_ONCE = 1 << 20, 1 << 22  # bytes: few calls for many rows, which stay in the processor's cache
_MANY = 32  # portions
_GAP = 8  # pages: shorter gaps are read along
_MOST_OVERFLOWING = 10_000


@dataclass(eq=False, repr=False)  # bare: every start waits for it
class Column:
    """One column of integers, or of codes into ``texts`` (-1 for NULL) of the smallest kind that holds them."""

    values: Values
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

    def leaves(self, root: int) -> tuple[Ints, Ints]:
        """The leaf pages of the table whose root page is ``root``, in row order, and the highest row id of all but the last."""
        level, tops = np.array([root], dtype=np.int64), np.zeros(1, dtype=np.int64)
        seen = 0
        while True:
            seen += len(level)
            if not len(level) or seen > self.page_count or level.min() < 2 or level.max() > self.page_count:
                raise Irregular("page numbers")
            first = os.pread(self._file, 1, int(level[0] - 1) * self.page_size)[0]
            if first == LEAF:
                return level, tops[:-1]
            if first != _INTERIOR:
                raise Irregular("not a table b-tree")
            below = [self._children(int(page), int(top)) for page, top in zip(level, tops, strict=True)]
            level, tops = (np.concatenate(side) for side in zip(*below, strict=True))

    def _children(self, number: int, top: int) -> tuple[Ints, Ints]:
        """The pages below an interior page, and the highest row id that each may hold, which is ``top`` for the last."""
        raw = os.pread(self._file, self.page_size, (number - 1) * self.page_size) + bytes(PAD)
        page = np.frombuffer(raw, dtype=np.uint8)
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
        return children, np.append(varint(words_of(page), pointers + 4)[0], top)

    def load(self, numbers: Ints) -> tuple[Bytes, Ints]:
        """The given pages, and what lies between them, in a buffer with another page's room behind; and where each begins."""
        size = self.page_size
        order = np.argsort(numbers, kind="stable")
        ascending = numbers[order]
        starts = np.append(0, np.flatnonzero(np.diff(ascending) > _GAP) + 1)
        low, high = ascending[starts], ascending[np.append(starts[1:], len(ascending)) - 1]
        lengths = (high - low + 1) * size
        at = np.cumsum(lengths) - lengths
        buffer = np.empty(int(lengths.sum()) + size + PAD, dtype=np.uint8)
        for first, begin, length in zip(low.tolist(), at.tolist(), lengths.tolist(), strict=True):
            if self._read_into(buffer[begin : begin + length], (first - 1) * size) != length:
                raise Irregular("the file ends early")
        counts = np.diff(np.append(starts, len(ascending)))
        base = np.empty(len(numbers), dtype=np.int64)
        base[order] = (ascending - np.repeat(low, counts)) * size + np.repeat(at, counts)
        return buffer, base

    def _read_into(self, target: Bytes, offset: int) -> int:
        """Fills ``target`` from the file's ``offset`` on, as far as it goes."""
        if hasattr(os, "preadv"):
            return os.preadv(self._file, [target.data], offset)
        raw = os.pread(self._file, len(target), offset)  # macOS
        target[: len(raw)] = np.frombuffer(raw, dtype=np.uint8)
        return len(raw)


def read(
    file: PageFile,
    root: int,
    wanted: Sequence[int],
    texts: Iterable[int],
    by_row_id: Callable[[Ints], list[tuple[object, ...]]],
) -> dict[int, Column]:
    """The columns at the places ``wanted`` of the table at page ``root``, those of ``texts`` as text, rows in any one order.

    ``by_row_id`` fetches the few rows that spill over their page, as tuples in the order of ``wanted``. Columns that hold one
    value throughout are :func:`~perfgate.traces.table.steady`.
    """
    leaves, tops = file.leaves(root)
    evenly = len(leaves) * file.page_size // (2 * WORKERS)
    at_once = max(1, min(max(evenly, _LEAST_AT_ONCE), _MOST_AT_ONCE) // file.page_size)
    as_text = set(texts)
    pages = Leaves(file.page_size, file.usable, wanted, as_text)

    sheet = _Sheet(
        tops[at_once - 1 :: at_once], at_once * file.usable // 2, [number for number in wanted if number not in as_text]
    )

    def part(place: int) -> Part:
        buffer, base = file.load(leaves[place * at_once : (place + 1) * at_once])
        return sheet.hold(place, pages.part(buffer, base))

    parts = side_by_side(part, range(-(-len(leaves) // at_once)))
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
            result[number] = Column(sheet.joined(number, pieces, np.array(extra, dtype=np.int64)))
    return result


class _Sheet:
    """Room for whole columns of numbers, which many portions of rows fill side by side: the row ids tell where each belongs.

    ``tops`` is the highest row id of each portion but the last, which holds at most ``most`` rows. Where a row id lacks, the
    portions keep their columns, which are joined in the end; so do few portions, whose columns find room in what others freed.
    """

    def __init__(self, tops: Ints, most: int, numbers: Sequence[int]) -> None:
        self._begin = [0, *tops.tolist()]
        self._fits = len(tops) >= _MANY and all(0 <= high - low <= most for low, high in itertools.pairwise(self._begin))
        self._columns = {number: np.empty(self._begin[-1] + most, dtype=np.int64) for number in numbers if self._fits}

    def hold(self, place: int, part: Part) -> Part:
        """The portion at ``place``, its columns put where they belong; those of one value throughout take no room."""
        begin, count = self._begin[place], len(next(iter(part.values.values())))
        last = place == len(self._begin) - 1
        if len(part.spilled) or not (last or begin + count == self._begin[place + 1]):
            self._fits = False
            return part
        for number, column in self._columns.items():
            if not is_steady(part.values[number]):
                here = column[begin : begin + count]
                here[:] = part.values[number]
                part.values[number] = here
        return part

    def joined(self, number: int, pieces: list[Ints], extra: Ints) -> Ints:
        """The column of all portions, and ``extra`` rows behind them."""
        if not self._fits or len(extra) or all(map(is_steady, pieces)):
            return _joined([*pieces, extra])
        column = self._columns.pop(number)[: self._begin[-1] + len(pieces[-1])]
        for begin, piece in zip(self._begin, pieces, strict=True):
            if is_steady(piece):
                column[begin : begin + len(piece)] = piece
        return column


def _joined(pieces: list[Ints]) -> Ints:
    pieces = [piece for piece in pieces if len(piece)]
    if not pieces:
        return np.empty(0, dtype=np.int64)
    if all(is_steady(piece) and piece[0] == pieces[0][0] for piece in pieces):
        return np.broadcast_to(pieces[0][0], sum(map(len, pieces)))
    return np.concatenate(pieces)


def merge_texts(pieces: list[Codes], vocabularies: list[list[str]], extra: Iterable[object]) -> Column:
    """One column of codes from several, each into its own vocabulary, and ``extra`` texts behind them."""
    known: dict[str, int] = {}
    numbers = [[known.setdefault(text, len(known)) for text in vocabulary] + [-1] for vocabulary in vocabularies]
    more = [-1 if text is None else known.setdefault(str(text), len(known)) for text in extra]
    kind = np.min_scalar_type(-max(len(known), 1))
    merged = [np.array(new, dtype=kind)[codes] for codes, new in zip(pieces, numbers, strict=True)]
    return Column(np.concatenate([*merged, np.array(more, dtype=kind)]), list(known))
