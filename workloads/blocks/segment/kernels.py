"""Segmented sum: sort ids stably, cut the sorted rows at fixed positions, fold each chunk, fold what crosses the cuts.

The order of additions is a function of the ids alone. A chunk holds ``CHUNK`` consecutive entries of the sorted sequence and
folds them left to right from +0. A segment that lies inside one chunk is finished there. Of a segment that crosses cuts, each
chunk writes its part (the *tail* where the segment begins, *heads* where it goes on), and the parts of one segment, left to
right, are a sorted sequence again: the next level folds it the same way, in groups of ``GROUP`` (``LAST`` where that ends it),
until one group is left. ``shape.py`` holds the sizes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .. import checks
from ..configs import config_for
from ..sort.kernels import Sorted
from . import shape

FLOATS = ("float32", "bfloat16", "float16")


@triton.jit
def _key(keys, entry, entries, bins):
    """The entry's id, −1 for dropped ones and beyond the ends."""
    key = tl.load(keys + entry, mask=(entry >= 0) & (entry < entries), other=-1).to(tl.int32)
    return tl.where(key < bins, key, -1)


@triton.jit
def _row(values, order, entry, key, columns, width, stride, LEAF: tl.constexpr):
    """The entry's addend: a row of the input through ``order``, or a part that the level below wrote."""
    row = entry
    if LEAF:
        row = tl.load(order + entry, mask=key >= 0, other=0).to(tl.int64)
    limit = tl.where(key >= 0, width, 0)
    return tl.load(values + row * stride + columns, mask=columns < limit, other=0.0).to(tl.float32)


@triton.jit
def _add(total, began, value, tails, out, heads, next_tails, chunk, entry, last, before, key, after, columns, width,
         LEAF: tl.constexpr):  # fmt: skip
    """Adds one entry to its segment's running total; stores the total where the segment or the chunk ends."""
    fresh = key != before
    if LEAF:
        start = tl.zeros_like(total)
    else:
        limit = tl.where((key >= 0) & fresh, width, 0)
        start = tl.load(tails + (entry - 1) * width + columns, mask=columns < limit, other=0.0)
    total = tl.where(fresh, start, total) + value
    began = tl.where(fresh, 1, began)
    ends = key != after
    whole = tl.where((key >= 0) & ends & (began == 1), width, 0)
    tl.store(out + key.to(tl.int64) * width + columns, total.to(out.dtype.element_ty), mask=columns < whole)
    goes_on = tl.where((key >= 0) & (ends | last) & (began == 0), width, 0)
    tl.store(heads + chunk * width + columns, total, mask=columns < goes_on)
    opens = tl.where((key >= 0) & last & (began == 1), width, 0)
    opens = tl.where(ends, 0, opens)
    tl.store(next_tails + chunk * width + columns, total, mask=columns < opens)
    return total, began


@triton.jit
def _fold(
    values, order, keys, tails, out, heads, next_tails, head_keys, entries, bins, width, stride,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, LEAF: tl.constexpr,
):  # fmt: skip
    """One chunk of the sorted entries, ``BLOCK`` columns: see the module's first lines."""
    tl.static_assert(CHUNK % 8 == 0)
    chunk = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first = chunk * CHUNK
    before = _key(keys, first - 1, entries, bins)
    k0 = _key(keys, first, entries, bins)
    if tl.program_id(1) == 0:
        tl.store(head_keys + chunk, tl.where(k0 == before, k0, -1))
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    began = 0
    for base in range(0, CHUNK, 8):
        e = first + base
        k1 = _key(keys, e + 1, entries, bins)
        k2 = _key(keys, e + 2, entries, bins)
        k3 = _key(keys, e + 3, entries, bins)
        k4 = _key(keys, e + 4, entries, bins)
        k5 = _key(keys, e + 5, entries, bins)
        k6 = _key(keys, e + 6, entries, bins)
        k7 = _key(keys, e + 7, entries, bins)
        k8 = _key(keys, e + 8, entries, bins)
        v0 = _row(values, order, e, k0, columns, width, stride, LEAF)
        v1 = _row(values, order, e + 1, k1, columns, width, stride, LEAF)
        v2 = _row(values, order, e + 2, k2, columns, width, stride, LEAF)
        v3 = _row(values, order, e + 3, k3, columns, width, stride, LEAF)
        v4 = _row(values, order, e + 4, k4, columns, width, stride, LEAF)
        v5 = _row(values, order, e + 5, k5, columns, width, stride, LEAF)
        v6 = _row(values, order, e + 6, k6, columns, width, stride, LEAF)
        v7 = _row(values, order, e + 7, k7, columns, width, stride, LEAF)
        end = base + 8 == CHUNK
        total, began = _add(
            total, began, v0, tails, out, heads, next_tails, chunk, e, False, before, k0, k1, columns, width, LEAF
        )
        total, began = _add(
            total, began, v1, tails, out, heads, next_tails, chunk, e + 1, False, k0, k1, k2, columns, width, LEAF
        )
        total, began = _add(
            total, began, v2, tails, out, heads, next_tails, chunk, e + 2, False, k1, k2, k3, columns, width, LEAF
        )
        total, began = _add(
            total, began, v3, tails, out, heads, next_tails, chunk, e + 3, False, k2, k3, k4, columns, width, LEAF
        )
        total, began = _add(
            total, began, v4, tails, out, heads, next_tails, chunk, e + 4, False, k3, k4, k5, columns, width, LEAF
        )
        total, began = _add(
            total, began, v5, tails, out, heads, next_tails, chunk, e + 5, False, k4, k5, k6, columns, width, LEAF
        )
        total, began = _add(
            total, began, v6, tails, out, heads, next_tails, chunk, e + 6, False, k5, k6, k7, columns, width, LEAF
        )
        total, began = _add(
            total, began, v7, tails, out, heads, next_tails, chunk, e + 7, end, k6, k7, k8, columns, width, LEAF
        )
        before = k7
        k0 = k8


@triton.jit
def _clear_absent(out, present, bins, width, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Writes +0 to the rows of ids that have no entry; the others belong to the fold."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    absent = tl.load(present + row, mask=row < bins, other=1) == 0
    place = out + row.to(tl.int64)[:, None] * width + columns[None, :]
    zeros = tl.zeros((ROWS, BLOCK), dtype=out.dtype.element_ty)
    tl.store(place, zeros, mask=absent[:, None] & (columns[None, :] < width))


@triton.jit
def _add_atomically(values, ids, out, width, stride, BLOCK: tl.constexpr):
    """The racy form: one program per row adds it to its segment in arrival order."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(ids + row).to(tl.int64)
    limit = tl.where(key >= 0, width, 0)
    value = tl.load(values + row * stride + columns, mask=columns < limit, other=0.0)
    tl.atomic_add(out + key * width + columns, value.to(out.dtype.element_ty), mask=columns < limit, sem="relaxed")


def sum_segments(values: torch.Tensor, ids: Sorted, dtype: torch.dtype | None = None) -> torch.Tensor:
    """``out[b]`` = sum of the rows of ``values`` [N, W] whose id is b, in the fixed order above, as [bins, W] in ``dtype``.

    Sums are f32 from +0, rounded once at the end; rows without an entry are +0; ``dtype`` defaults to that of ``values``. Every
    element is written once. Workspace: :func:`~.shape.workspace_bytes`. Captures into CUDA graphs: no host synchronisation,
    launches fixed by N and W.
    """
    checks.require_shape("values", values, (ids.keys.shape[0], None))
    checks.require_dtype("values", values, *FLOATS)
    checks.require_same_device(values=values, keys=ids.keys)
    checks.require_rows("values", values)
    entries, width = values.shape
    out = torch.empty((ids.bins, width), dtype=dtype or values.dtype, device=values.device)
    if entries == 0 or width == 0:
        return out.zero_()
    options = config_for("segment.clear", width, values)
    grid = (triton.cdiv(ids.bins, options["ROWS"]), triton.cdiv(width, options["BLOCK"]))
    _clear_absent[grid](out, ids.present, ids.bins, width, **options)
    options = config_for("segment.fold", width, values)
    source, keys, tails, stride = values, ids.keys, values, values.stride(0)
    for level, (count, size) in enumerate(shape.levels(entries)):
        programs = triton.cdiv(count, size)
        parts = torch.empty((2, programs, width), dtype=torch.float32, device=values.device)
        head_keys = torch.empty((programs,), dtype=torch.int32, device=values.device)
        _fold[(programs, triton.cdiv(width, options["BLOCK"]))](
            source, ids.rows, keys, tails, out, parts[0], parts[1], head_keys, count, ids.bins, width, stride,
            CHUNK=size, LEAF=level == 0, enable_fp_fusion=False, **options,
        )  # fmt: skip
        source, keys, tails, stride = parts[0], head_keys, parts[1], width
    return out


def sum_atomically(values: torch.Tensor, ids: torch.Tensor, bins: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The same sum with atomics in the output's dtype, in arrival order: racy. Shapes as in :func:`sum_segments`."""
    out = torch.zeros((bins, values.shape[1]), dtype=dtype or values.dtype, device=values.device)
    if values.numel():
        options = config_for("segment.atomic", values.shape[1], values)
        grid = (values.shape[0], triton.cdiv(values.shape[1], options["BLOCK"]))
        _add_atomically[grid](values, ids, out, values.shape[1], values.stride(0), **options)
    return out
