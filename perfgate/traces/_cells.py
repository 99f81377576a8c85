"""Columns of the records on some leaf pages of a SQLite table.

The records of a trace's table have few different headers. Those that have the first one's are copied into a matrix in which
every field is a strided column; then those that have the first one's of what is left, and so on. What is left after a few goes
to :mod:`perfgate.traces._records`, which takes any mixture.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from perfgate.traces import _records
from perfgate.traces._records import CONSTANTS, MISSING, WIDTH, Bytes, Irregular, Records, Words, words_of
from perfgate.traces.table import Ints, Mask, Values, steady

LEAF = 0x0D
Found = dict[int, Ints | tuple[Ints, Ints]]  # of a text its place and size
PAD = 16  # bytes that must follow the last page
_FRONTS = 4  # lengths of row ids that are told apart in one portion
_FORMS = 8  # and kinds of records for each
_HEADER_MOST = 9 + 9 + 0x80  # bytes of a record's length, row id and header
_LENGTHS = (1, 2, 4, 8)  # bytes of integers that numpy reads as they are
_LAYOUTS = 3  # of one field beside the first, up to which it is read as if all records had each of them


@dataclass(eq=False, repr=False)  # bare: every start waits for it
class Part:
    """Columns of some rows: numbers, and of texts a code (-1 for NULL) into the list of its column."""

    values: dict[int, Values] = field(default_factory=dict)
    texts: dict[int, list[str]] = field(default_factory=dict)
    spilled: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # row ids of the rows that are not here


class Form:
    """How one record lies in its cell: what every record with the same length, size of row id and header shares."""

    def __init__(self, front: bytes, id_size: int, header: bytes) -> None:
        id_at, header_at = len(front), len(front) + id_size
        body = header_at + len(header)
        layout = _records.layout_of(header)
        self.payload = _varint(front, 0)[0]
        if not layout or layout[-1][1] + layout[-1][2] != self.payload:
            raise Irregular("a record header")
        self.size = header_at + self.payload
        self.fields = [(kind, header_at + at if size else 0, size) for kind, at, size in layout]
        self.width = (max(self.size, body) + 15) & ~7  # a number of six bytes is read with the two behind it
        same = bytearray(b"\xff" * body + b"\x00" * (-body % 8))
        for place in range(id_at, header_at):  # whatever the row id is, as long as it has as many bytes
            same[place] = 0x80 if place - id_at < 8 else 0
        self.front = id_at, header_at
        self.same = np.frombuffer(bytes(same), dtype=np.uint64)

    @staticmethod
    @lru_cache(maxsize=4096)
    def known(front: bytes, id_size: int, header: bytes) -> Form:
        """The form with these parts, made once."""
        return Form(front, id_size, header)

    @classmethod
    def at(cls, buffer: Bytes, place: int) -> Form:
        """The form of the record in the cell at ``place``."""
        cell = buffer[place : place + _HEADER_MOST].tobytes()
        id_at = _varint(cell, 0)[1]
        header_at = _varint(cell, id_at)[1]
        length = cell[header_at]
        if length >= 0x80:
            raise Irregular("a long record header")
        return cls.known(cell[:id_at], header_at - id_at, cell[header_at : header_at + length])


class Alike:
    """Records with equally long heads (length, row id, header), and the few forms that they have: ``shape`` per record.

    ``fits`` tells which of the given records it holds, ``None`` all. ``width`` bytes of each record are copied at once; where
    that proves to be too few they are copied again.
    """

    def __init__(self, buffer: Bytes, cells: Ints, pointers: Ints, usable: int, width: int) -> None:
        first = Form.at(buffer, int(cells[0]))
        self.forms = [first]
        self.shape = np.zeros(len(cells), dtype=np.int64)
        width = max(width, first.width)
        records = _copied(buffer, cells, width)
        words = records.view(np.uint64)
        heads = np.empty((len(first.same), len(cells)), dtype=np.uint64)
        for place, same in enumerate(first.same):  # column by column: a row is too short for a loop of its own
            np.bitwise_and(words[:, place], same, out=heads[place])
        self._tell_apart(buffer, cells, heads, usable)
        self.fits: Mask | None = None
        if self.shape.min() < 0:
            self.fits = self.shape >= 0
            cells, pointers, self.shape = cells[self.fits], pointers[self.fits], self.shape[self.fits]
            records = records[self.fits]
        self.cells = cells
        ends = pointers + (first.size if len(self.forms) == 1 else np.array([form.size for form in self.forms])[self.shape])
        if int(ends.max(initial=0)) > usable:
            raise Irregular("a record runs over its page")
        self.width = max(width, *(form.width for form in self.forms))
        self.records = records if self.width == width else _copied(buffer, cells, self.width)

    def _tell_apart(self, buffer: Bytes, cells: Ints, heads: Words, usable: int) -> None:
        """Finds each record's form: all whose head is the first one's have its form; then so on with the others.

        The shape is -1 from where one spills over its page, has a head of another length, or is one too many.
        """
        left: Ints | None = None
        while True:
            odd = heads[0] ^ heads[0, 0]
            for head in heads[1:]:
                odd |= head ^ head[0]
            if left is not None:
                self.shape[left[odd == 0]] = len(self.forms) - 1
            others = np.flatnonzero(odd != 0)
            if not len(others):
                return
            left = others if left is None else left[others]
            form = Form.at(buffer, int(cells[left[0]])) if len(self.forms) < _FORMS else None
            if form is None or not np.array_equal(form.same, self.forms[0].same) or form.payload > usable - 35:
                self.shape[left] = -1
                return
            self.forms.append(form)
            heads = heads.take(others, axis=1)

    def integers(self, words: Ints, number: int) -> Ints:
        """One field of all records."""
        layouts = [form.fields[number] for form in self.forms]
        first, *others = dict.fromkeys(layouts)
        if len(others) > _LAYOUTS:
            kinds, places, sizes = np.array(layouts).T
            return _records.integers(words, self.cells, kinds, places, sizes, self.shape)
        values = self._column(*first)
        for other in others:  # the column of all records as if they had the other layout, of which some is right
            right = np.array([layout == other for layout in layouts])[self.shape]
            values = np.where(right, self._column(*other), values)
        return values

    def _column(self, kind: int, at: int, size: int) -> Ints:
        """The field of all records where each has it at ``at``."""
        if not 1 <= kind <= 6:
            return np.broadcast_to(np.int64(CONSTANTS.get(kind, MISSING)), len(self.cells))
        whole = size in _LENGTHS
        stored: Ints = np.ndarray(
            (len(self.cells),), f">i{size if whole else 8}", self.records, offset=at, strides=(self.width,)
        )
        values = stored.astype(np.int64)
        if not whole:
            values >>= (8 - size) << 3
        return values

    def places_of_text(self, number: int) -> tuple[Ints, Ints]:
        """Where each text begins in the buffer (-1 for NULL), and its size."""
        kind, at, size = np.array([form.fields[number] for form in self.forms]).T
        if ((kind != 0) & (kind < len(WIDTH))).any():
            raise Irregular("a number where text belongs")
        if not kind.any():
            return np.broadcast_to(np.int64(-1), len(self.cells)), np.broadcast_to(np.int64(0), len(self.cells))
        places = self.cells + at[self.shape]
        return places if kind.all() else np.where(kind[self.shape] == 0, -1, places), size[self.shape]


class Leaves:
    """Reads leaf pages of ``size`` bytes, ``usable`` of them used: the fields ``wanted``, those of ``texts`` as text."""

    def __init__(self, size: int, usable: int, wanted: Sequence[int], texts: set[int]) -> None:
        self.size = size
        self.usable = usable
        self.wanted = wanted
        self.texts = texts
        self._width = 0  # of the widest record so far

    def part(self, buffer: Bytes, base: Ints) -> Part:
        """The columns of the pages that begin at ``base``.

        ``buffer`` goes on for at least another page and ``PAD`` bytes behind the last one.
        """
        cells, pointers = _cells(buffer, base, self.usable, self.size)
        words = words_of(buffer)
        part = Part()
        rest = np.arange(len(cells))
        pieces: list[tuple[Ints, Found]] = []
        for _ in range(_FRONTS):
            if not len(rest):
                break
            if Form.at(buffer, int(cells[rest[0]])).payload > self.usable - 35:
                part.spilled, rest = _without_spilled(words, cells, rest, self.usable)
                continue
            some = rest[: _alike_from_the_first(buffer, cells, rest)]
            whole = len(some) == len(cells)
            alike = Alike(
                buffer, cells if whole else cells[some], pointers if whole else pointers[some], self.usable, self._width
            )
            self._width = alike.width
            pieces.append((some if alike.fits is None else some[alike.fits], self._fields(alike, words)))
            others = rest[len(some) :]
            rest = others if alike.fits is None else np.concatenate([some[~alike.fits], others])
        if len(rest) and not len(part.spilled):
            part.spilled, rest = _without_spilled(words, cells, rest, self.usable)
        if len(rest):
            limit = cells[rest] - pointers[rest] + self.usable
            pieces.append((rest, Records(words, cells[rest], limit).fields(buffer, self.wanted, self.texts)))
        self._assemble(part, pieces, len(cells), buffer, words)
        return part

    def _fields(self, alike: Alike, words: Ints) -> Found:
        if max(self.wanted) >= min(len(form.fields) for form in alike.forms):
            raise Irregular("a record with fewer fields")
        return {
            number: alike.places_of_text(number) if number in self.texts else alike.integers(words, number)
            for number in self.wanted
        }

    def _assemble(self, part: Part, pieces: list[tuple[Ints, Found]], count: int, buffer: Bytes, words: Ints) -> None:
        """Puts the rows of all pieces into their order; a text's place and size become a code and a list."""
        kept = np.sort(np.concatenate([np.arange(0), *(chosen for chosen, _ in pieces)])) if len(part.spilled) else None

        def whole(columns: list[Ints]) -> Ints:
            if len(columns) == 1 and kept is None:
                return steady(columns[0])
            values = np.empty(count, dtype=np.int64)
            for (chosen, _), column in zip(pieces, columns, strict=True):
                values[chosen] = column
            return steady(values if kept is None else values[kept])

        for number in self.wanted:
            found = [columns[number] for _, columns in pieces]
            if number in self.texts:
                places, sizes = (whole([one[side] for one in found]) for side in (0, 1))
                part.values[number], part.texts[number] = _records.texts_at(buffer, words, places, sizes)
            else:
                part.values[number] = whole(found)  # type: ignore[arg-type]


def _cells(buffer: Bytes, base: Ints, usable: int, size: int) -> tuple[Ints, Ints]:
    """Where each cell lies in the buffer, and in its page; page by page in their order."""
    if (buffer[base] != LEAF).any():
        raise Irregular("a leaf page")
    count = buffer[base + 3].astype(np.int64) << 8 | buffer[base + 4]
    most = int(count.max(initial=0))
    if 8 + 2 * most > usable:
        raise Irregular("a cell count")
    pairs: Ints = np.ndarray((len(buffer) // size, most), dtype=">u2", buffer=buffer, offset=8, strides=(size, 2))
    pointers = pairs[base // size].astype(np.int64)
    cells = pointers + base[:, None]
    if (count < most).any():
        there = np.arange(most) < count[:, None]
        pointers, cells = pointers[there], cells[there]
    pointers, cells = pointers.reshape(-1), cells.reshape(-1)
    if len(pointers) and int(pointers.max()) + 4 > usable:
        raise Irregular("a cell pointer")
    return cells, pointers


def _alike_from_the_first(buffer: Bytes, cells: Ints, rest: Ints) -> int:
    """How many of the cells have row ids as long as the first one's, as they grow: a guess, which is checked later."""

    def size(place: int) -> int:
        begin, end = Form.at(buffer, int(cells[place])).front
        return end - begin

    first = size(int(rest[0]))
    return (
        len(rest)
        if size(int(rest[-1])) == first
        else bisect_right(range(len(rest)), first, key=lambda place: size(int(rest[place])))
    )


def _without_spilled(words: Ints, cells: Ints, rest: Ints, usable: int) -> tuple[Ints, Ints]:
    """The row ids of those cells whose record goes on elsewhere, and the places of the others."""
    payload, position = _records.varint(words, cells[rest])
    if (payload < 0).any():
        raise Irregular("a record's length")
    spilling = payload > usable - 35
    return _records.varint(words, position[spilling])[0], rest[~spilling]


def _copied(buffer: Bytes, cells: Ints, width: int) -> Bytes:
    """``width`` bytes from each cell on, a row each."""
    stretches = np.ndarray((len(buffer) - width + 1,), dtype=f"V{width}", buffer=buffer, strides=(1,))
    rows: Bytes = stretches[cells].view(np.uint8).reshape(len(cells), width)
    return rows


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """The number at ``at`` (exact up to eight bytes) and where the next byte is."""
    value = 0
    for place in range(at, at + 9):
        value = value << 7 | (raw[place] & 0x7F)
        if raw[place] < 0x80:
            return value, place + 1
    return value, at + 9
