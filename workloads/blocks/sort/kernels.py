"""Stable counting sort: every position is counted by comparison, none is taken from an atomic cursor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .. import checks
from ..configs import config_for
from .shape import TILE, passes


@triton.jit
def _read_key(ids, entry, entries, bins, first, padding, RAW: tl.constexpr):
    """The entry's key: ``id − first``, or ``bins`` where that is outside 0 .. bins − 1 or the id is ``padding``."""
    key = tl.load(ids + entry, mask=entry < entries, other=-1)
    if RAW:
        keep = (key != padding) & (key >= first) & (key < first + bins)
        key = tl.where(keep, key - first, bins)
    return key.to(tl.int32)


@triton.jit
def _rank(
    ids, ranks, counts, entries, bins, first, padding, shift, mask, tiles,
    TILE: tl.constexpr, PART: tl.constexpr, RAW: tl.constexpr,
):  # fmt: skip
    """Of each entry: how many entries of its tile with the same digit come before it; of each tile and digit: how many."""
    tile = tl.program_id(0)
    here = tl.arange(0, TILE)
    entry = tile * TILE + here
    digit = (_read_key(ids, entry, entries, bins, first, padding, RAW) >> shift) & mask
    earlier = tl.zeros((TILE, PART), dtype=tl.int32)
    for start in tl.static_range(0, TILE, PART):  # unrolled: all loads are under way before the first comparison
        there = start + tl.arange(0, PART)
        against = (_read_key(ids, tile * TILE + there, entries, bins, first, padding, RAW) >> shift) & mask
        before = (digit[:, None] == against[None, :]) & (there[None, :] < here[:, None])
        earlier += before.to(tl.int32)
    tl.store(ranks + entry, tl.sum(earlier, axis=1), mask=entry < entries)
    counter = digit.to(tl.int64) * tiles + tile
    tl.atomic_add(counts + counter, 1, mask=entry < entries, sem="relaxed")  # integers: order-free


@triton.jit
def _place(
    ids, rows, ranks, scan, sorted_keys, sorted_rows, places, present,
    entries, bins, first, padding, shift, mask, tiles,
    TILE: tl.constexpr, RAW: tl.constexpr, LAST: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """Writes each entry where its digit's share of its tile begins, plus its rank."""
    entry = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = entry < entries
    key = _read_key(ids, entry, entries, bins, first, padding, RAW)
    counter = ((key >> shift) & mask).to(tl.int64) * tiles + tl.program_id(0)
    before = tl.load(scan + counter - 1, mask=inside & (counter > 0), other=0)
    position = before + tl.load(ranks + entry, mask=inside, other=0)
    row = entry
    if not RAW:
        row = tl.load(rows + entry, mask=inside, other=0)
    if LAST:
        tl.store(present + key, tl.full((TILE,), 1, tl.int8), mask=inside)
    if PLACES:
        tl.store(places + row, tl.where(key < bins, position, -1), mask=inside)
    tl.store(sorted_keys + position, key, mask=inside)
    tl.store(sorted_rows + position, row, mask=inside)


@dataclass(frozen=True)
class Sorted:
    """Ids in stable order, reusable for every sum over the same ids.

    ``keys`` [N] rising, dropped entries as ``bins`` at the end; ``rows`` [N]: where each sorted entry was; ``present``
    [bins + 1] int8: 1 for keys that occur; ``places`` [N] (where asked for): where each row went, −1 for dropped ones.
    """

    keys: torch.Tensor
    rows: torch.Tensor
    present: torch.Tensor
    bins: int
    places: torch.Tensor | None = None


def check_ids(ids: torch.Tensor, bins: int, first: int = 0) -> None:
    """Raises ``ValueError`` or ``TypeError`` for ids that can't be sorted.

    Under ``PERFGATE_CHECK_INPUTS`` also ``IndexError`` for ids outside 0 .. ``bins`` − 1 other than −1, where ``first`` is 0: a
    shard drops the ids of others by design.
    """
    checks.require_shape("ids", ids, (None,))
    checks.require_dtype("ids", ids, "int32", "int64")
    if not 0 < bins < 2**31 - 1 or ids.shape[0] >= 2**31:
        raise ValueError(f"{ids.shape[0]} ids in {bins} bins: at most 2**31 - 1 ids in 1 to 2**31 - 2 bins can be sorted")
    if first == 0:
        checks.require_range("ids", ids, bins)


def stable_sort(ids: torch.Tensor, bins: int, first: int = 0, padding: int = -1, with_places: bool = False) -> Sorted:
    """Sorts ``ids`` [N] (int32 or int64) by ``id − first``, equal ones in the order of their rows.

    Ids outside ``first`` .. ``first + bins − 1`` and ``padding`` are dropped: they sort to the end with key ``bins``, never
    clamped. Integer sums only, so the scan's own order does not matter. No host synchronisation. Workspace: ``shape.py``.
    Raises what :func:`check_ids` says.
    """
    check_ids(ids, bins, first)
    entries = ids.shape[0]
    tiles = max(1, triton.cdiv(entries, TILE))
    keys = rows = ids.contiguous()
    places = torch.empty((entries if with_places else 0,), dtype=torch.int32, device=ids.device)
    all_passes = passes(entries, bins)
    most = 4 * tiles * max(digits for _, digits in all_passes)
    zeros = torch.zeros((most + bins + 1,), dtype=torch.int8, device=ids.device)  # one fill for all that starts at zero
    present = zeros[most:]
    for number, (shift, digits) in enumerate(all_passes):
        counts = zeros[: 4 * digits * tiles].view(torch.int32)
        if number:
            counts.zero_()
        ranks, next_keys, next_rows = (torch.empty((entries,), dtype=torch.int32, device=ids.device) for _ in range(3))
        mask = (1 << (digits - 1).bit_length()) - 1
        arguments = (entries, bins, first, padding, shift, mask, tiles)
        if entries:
            options = config_for("sort.rank", entries, ids)
            _rank[(tiles,)](keys, ranks, counts, *arguments, TILE=TILE, RAW=number == 0, **options)
        scan = torch.cumsum(counts, 0, dtype=torch.int32)
        if entries:
            last, options = number == len(all_passes) - 1, config_for("sort.place", entries, ids)
            _place[(tiles,)](
                keys, rows, ranks, scan, next_keys, next_rows, places, present, *arguments,
                TILE=TILE, RAW=number == 0, LAST=last, PLACES=last and with_places, **options,
            )  # fmt: skip
        keys, rows = next_keys, next_rows
    return Sorted(keys, rows, present, bins, places if with_places else None)


def radix_sort(ids: torch.Tensor, bins: int) -> Sorted:
    """The same order by ``torch.sort`` (a radix sort, stable), over as few key bits as ``bins`` needs."""
    check_ids(ids, bins)
    narrow = torch.int16 if bins < 2**15 else torch.int32
    keys, rows = torch.sort(torch.where(ids < 0, bins, ids).to(narrow), stable=True)
    present = torch.zeros((bins + 1,), dtype=torch.int8, device=ids.device)
    return Sorted(keys, rows, present.scatter_(0, keys.long(), 1), bins)
