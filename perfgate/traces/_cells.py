"""Columns of the records on some leaf pages of a SQLite table.

Nearly all records of a trace's table have the same header, so the header of the first record is the guess for all: those that
fit are copied into a matrix in which every field is a strided column. The next record that does not fit is the next guess; what
is left after a few goes to :mod:`perfgate.traces._records`, which takes any mixture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from perfgate.traces import _records
from perfgate.traces._records import CONSTANTS, MISSING, WIDTH, Bytes, Irregular, Records, words_of
from perfgate.traces.table import Ints, Mask, steady

LEAF = 0x0D
PAD = 16  # bytes that must follow the last page
_GUESSES = 6
_HEADER_MOST = 9 + 9 + 0x80  # bytes of a record's length, row id and header
_LENGTHS = (1, 2, 4, 8)  # bytes of integers that numpy reads as they are


@dataclass
class Part:
    """Columns of some rows: numbers, and of texts a code (-1 for NULL) into the list of its column."""

    values: dict[int, Ints] = field(default_factory=dict)
    texts: dict[int, list[str]] = field(default_factory=dict)
    spilled: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # row ids of the rows that are not here


class Form:
    """How one record lies in its cell: what every record with the same length, length of row id and header shares."""

    def __init__(self, cell: bytes) -> None:
        payload, id_at = _varint(cell, 0)
        _, header_at = _varint(cell, id_at)
        length = cell[header_at]
        body = header_at + length
        layout = _records.layout_of(cell[header_at:body])
        if length >= 0x80 or not layout or layout[-1][1] + layout[-1][2] != payload:
            raise Irregular("a record header")
        self.payload = payload
        self.size = header_at + payload
        self.fields = [(kind, header_at + at, size) for kind, at, size in layout]
        self.width = (max(self.size, body) + 15) & ~7  # a number of six bytes is read with the two behind it
        same = bytearray(b"\xff" * body + b"\x00" * (-body % 8))
        for place in range(id_at, header_at):  # whatever the row id is, as long as it has as many bytes
            same[place] = 0x80 if place - id_at < 8 else 0
        self.same = np.frombuffer(bytes(same), dtype=np.uint64)

    def fitting(self, records: Bytes) -> Mask | None:
        """Which of ``records``, of which the first is of this form, are of it too; ``None`` for all."""
        words = records.view(np.uint64)
        differ = np.zeros(len(words), dtype=np.uint64)
        for place, same in enumerate(self.same):
            one = words[:, place] ^ words[0, place]
            differ |= one if same == ~np.uint64(0) else one & same
        return differ == 0 if differ.any() else None

    def integers(self, records: Bytes, number: int) -> Ints:
        """One field of all ``records``."""
        kind, at, size = self.fields[number]
        if not 1 <= kind <= 6:
            return np.broadcast_to(np.int64(CONSTANTS.get(kind, MISSING)), len(records))
        whole = size in _LENGTHS
        stored: Ints = np.ndarray(
            (len(records),), f">i{size if whole else 8}", records, offset=at, strides=(records.strides[0],)
        )
        values = stored.astype(np.int64)
        return steady(values if whole else values >> ((8 - size) << 3))

    def place_of_text(self, cells: Ints, number: int) -> tuple[Ints, Ints]:
        """Where the text begins in the buffer (-1 for NULL), and its size."""
        kind, at, size = self.fields[number]
        if kind != 0 and kind < len(WIDTH):
            raise Irregular("a number where text belongs")
        sizes = np.broadcast_to(np.int64(size), len(cells))
        return np.broadcast_to(np.int64(-1), len(cells)) if kind == 0 else cells + at, sizes


def columns(buffer: Bytes, base: Ints, usable: int, wanted: Sequence[int], texts: set[int]) -> Part:
    """The columns ``wanted`` of the leaf pages that begin at ``base`` and have ``usable`` bytes each.

    ``buffer`` goes on for at least another page and ``PAD`` bytes behind the last one.
    """
    cells, pointers = _cells(buffer, base, usable)
    words = words_of(buffer)
    part = Part()
    rest = np.arange(len(cells))
    pieces: list[tuple[Ints, dict[int, Ints | tuple[Ints, Ints]]]] = []
    for _ in range(_GUESSES):
        if not len(rest):
            break
        here = cells if len(rest) == len(cells) else cells[rest]
        form = Form(buffer[here[0] : here[0] + _HEADER_MOST].tobytes())
        if form.payload > usable - 35:
            part.spilled, rest = _without_spilled(words, cells, rest, usable)
            continue
        records = _copied(buffer, here, form.width)
        same = form.fitting(records)
        chosen, records, here = (rest, records, here) if same is None else (rest[same], records[same], here[same])
        if int((pointers if len(chosen) == len(cells) else pointers[chosen]).max()) + form.size > usable:
            raise Irregular("a record runs over its page")
        if max(wanted) >= len(form.fields):
            raise Irregular("a record with fewer fields")
        found: dict[int, Ints | tuple[Ints, Ints]] = {
            number: form.place_of_text(here, number) if number in texts else form.integers(records, number) for number in wanted
        }
        pieces.append((chosen, found))
        rest = rest[:0] if same is None else rest[~same]
    if len(rest) and not len(part.spilled):
        part.spilled, rest = _without_spilled(words, cells, rest, usable)
    if len(rest):
        limit = cells[rest] - pointers[rest] + usable
        pieces.append((rest, Records(words, cells[rest], limit).fields(buffer, wanted, texts)))
    _assemble(part, pieces, len(cells), wanted, texts, buffer, words)
    return part


def _cells(buffer: Bytes, base: Ints, usable: int) -> tuple[Ints, Ints]:
    """Where each cell lies in the buffer, and in its page; page by page in their order."""
    pairs: Ints = np.ndarray((len(buffer) - 1,), dtype=">u2", buffer=buffer, strides=(1,))
    if (buffer[base] != LEAF).any():
        raise Irregular("a leaf page")
    count = pairs[base + 3].astype(np.int64)
    if (8 + 2 * count > usable).any():
        raise Irregular("a cell count")
    before = np.cumsum(count) - count
    at = np.repeat(base + 8 - 2 * before, count) + 2 * np.arange(int(count.sum()))
    pointers = pairs[at].astype(np.int64)
    if len(pointers) and int(pointers.max()) + 4 > usable:
        raise Irregular("a cell pointer")
    return np.repeat(base, count) + pointers, pointers


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


def _assemble(
    part: Part,
    pieces: list[tuple[Ints, dict[int, Ints | tuple[Ints, Ints]]]],
    count: int,
    wanted: Sequence[int],
    texts: set[int],
    buffer: Bytes,
    words: Ints,
) -> None:
    """Puts the rows of all pieces into their order; a text's place and size become a code and a list."""
    kept = np.sort(np.concatenate([chosen for chosen, _ in pieces])) if len(part.spilled) and pieces else None

    def whole(columns: list[Ints]) -> Ints:
        if len(columns) == 1 and kept is None:
            return columns[0]
        if columns and all(len(one) and one.strides == (0,) and one[0] == columns[0][0] for one in columns):
            return np.broadcast_to(columns[0][0], count if kept is None else len(kept))
        values = np.empty(count, dtype=np.int64)
        for (chosen, _), column in zip(pieces, columns, strict=True):
            values[chosen] = column
        return values if kept is None else values[kept]

    for number in wanted:
        found = [columns[number] for _, columns in pieces]
        if number in texts:
            places, sizes = (whole([one[side] for one in found]) for side in (0, 1))
            part.values[number], part.texts[number] = _records.texts_at(buffer, words, places, sizes)
        else:
            part.values[number] = whole(found)  # type: ignore[arg-type]


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """The number at ``at`` (exact up to eight bytes) and where the next byte is."""
    value = 0
    for place in range(at, at + 9):
        value = value << 7 | (raw[place] & 0x7F)
        if raw[place] < 0x80:
            return value, place + 1
    return value, at + 9
