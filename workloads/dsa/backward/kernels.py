"""The backward's kernels: one program per query (and tile of heads) walks over the query's kv rows in blocks.

Scores and their gradients are computed transposed, kv rows × heads, straight from the operands: no accumulator is ever
transposed into a product (Triton 3.4 to 3.7.0 miscompile that on Hopper).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from ...blocks import checks
from ...blocks.configs import config_for
from ...blocks.exact.kernels import _power_of_two, _rounded
from ...blocks.segment.kernels import sum_segments
from ...blocks.sort.kernels import stable_sort
from ..quanta.kernels import count_rows, judge, open_books
from .shape import WORKSPACE, queries_at_a_time, tile_of, tiles_of

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _heads(tensor, query, heads, width, head, first, WIDTH: tl.constexpr):
    """[heads of the tile, WIDTH] of a [queries, heads, width] tensor from column ``first`` on; 0 beyond the last head."""
    columns = first + tl.arange(0, WIDTH)
    place = tensor + query * heads * width + head[:, None] * width + columns[None, :]
    return tl.load(place, mask=(head < heads)[:, None], other=0.0)


@triton.jit
def _rows(kv, row, valid, dim, first, WIDTH: tl.constexpr):
    """[BLOCK, WIDTH] of the chosen kv rows from column ``first`` on; 0 for entries that choose none."""
    columns = first + tl.arange(0, WIDTH)
    return tl.load(kv + row[:, None] * dim + columns[None, :], mask=valid[:, None], other=0.0)


@triton.jit
def _dot_rows(one, other):
    """Row by row, the dot product in f32."""
    return tl.sum(one.to(tl.float32) * other.to(tl.float32), axis=1)


@triton.jit
def _store_heads(out, value, query, heads, dim, head, first, WIDTH: tl.constexpr):
    columns = first + tl.arange(0, WIDTH)
    place = out + query * heads * dim + head[None, :] * dim + columns[:, None]
    tl.store(place, value.to(out.dtype.element_ty), mask=(head < heads)[None, :])


@triton.jit
def _leave(out, contribution, row, valid, add, dim, first, WIDTH: tl.constexpr, STAGED: tl.constexpr):
    """Adds the block's contributions to their rows of ``out``; STAGED: stores them (or adds them to what is there) instead."""
    columns = first + tl.arange(0, WIDTH)
    place = out + row[:, None] * dim + columns[None, :]
    if STAGED:
        if add:
            contribution += tl.load(place, mask=valid[:, None], other=0.0).to(tl.float32)
        tl.store(place, contribution.to(out.dtype.element_ty), mask=valid[:, None])
    else:
        tl.atomic_add(place, contribution, mask=valid[:, None], sem="relaxed")


@triton.jit
def _magnitude(value):
    """|value| as integer bits, which order as magnitudes do, Inf and NaN above all."""
    return value.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _certify(top, exponent, units, largest, row, valid):
    """Books the largest magnitude that the block adds to each row, ``top`` (f32 bits), in quanta: see ``quanta/``."""
    inverse = tl.where(exponent > 231, 0, (254 - exponent) << 23).to(tl.float32, bitcast=True)
    scaled = top.to(tl.float32, bitcast=True) * inverse
    fits = (scaled <= 4194304.0) & (exponent <= 231)  # within 2^22 quanta rounding is exact; false for NaN too
    counted = tl.where(fits, tl.ceil(tl.where(fits, scaled, 0.0)).to(tl.int32), 33554432)
    tl.atomic_add(units + row, counted.to(tl.int64), mask=valid, sem="relaxed")
    tl.atomic_max(largest + row, top, mask=valid, sem="relaxed")


@triton.jit
def _block(
    kv, into, exponents, units, largest, qs, douts, dqs, level, delta, row, place, valid, add, scale,
    PARTS: tl.constexpr, V_PARTS: tl.constexpr, WIDTH: tl.constexpr,
    STAGED: tl.constexpr, EXACT: tl.constexpr, AGAIN: tl.constexpr,
):  # fmt: skip
    """One block of kv rows: leaves its contributions to dkv at the rows ``place`` of ``into``; returns dq with its share."""
    dim: tl.constexpr = PARTS * WIDTH
    scores = tl.zeros((row.shape[0], level.shape[0]), dtype=tl.float32)
    dp = tl.zeros((row.shape[0], level.shape[0]), dtype=tl.float32)
    following = _rows(kv, row, valid, dim, 0, WIDTH)
    ahead = _rows(kv, row, valid, dim, (PARTS > 1) * WIDTH, WIDTH)
    for part in tl.static_range(PARTS):
        k = following
        following = ahead
        if part + 2 < PARTS:  # the next columns are on their way while these are multiplied
            ahead = _rows(kv, row, valid, dim, (part + 2) * WIDTH, WIDTH)
        scores = tl.dot(k, tl.trans(qs[part]), scores)
        if part < V_PARTS:
            dp = tl.dot(k, tl.trans(douts[part]), dp)
    p = tl.exp2(scores * (scale * LOG2_E) - level[None, :])
    p = tl.where(valid[:, None], p, 0.0)
    ds = (p * (dp - delta[None, :]) * scale).to(kv.dtype.element_ty)
    p = p.to(kv.dtype.element_ty)
    if EXACT:
        exponent = tl.load(exponents + row, mask=valid, other=1)
        quantum = _power_of_two(exponent)[:, None]
        tops = tl.zeros((row.shape[0],), dtype=tl.int32)
    for part in tl.static_range(PARTS):
        gradient = tl.dot(ds, qs[part])
        if part < V_PARTS:
            gradient = tl.dot(p, douts[part], gradient)
        if EXACT:
            if not AGAIN:
                tops = tl.maximum(tops, tl.max(_magnitude(gradient), axis=1))
            gradient = _rounded(gradient, quantum)
        _leave(into, gradient, place, valid, add, dim, part * WIDTH, WIDTH, STAGED)
    if EXACT and not AGAIN:
        _certify(tops, exponent, units, largest, row, valid)
    sums = ()
    if not AGAIN:  # the rows are read again: all of them do not fit beside q and dout
        if PARTS > 1:
            behind = _rows(kv, row, valid, dim, 0, 2 * WIDTH)
        for pair in tl.static_range(PARTS // 2):
            k2 = behind
            if pair + 1 < PARTS // 2:
                behind = _rows(kv, row, valid, dim, 2 * (pair + 1) * WIDTH, 2 * WIDTH)
            sums += (tl.dot(tl.trans(k2), ds, dqs[pair]),)  # type: ignore[assignment]
        if PARTS % 2:
            k1 = _rows(kv, row, valid, dim, (PARTS - 1) * WIDTH, WIDTH)
            sums += (tl.dot(tl.trans(k1), ds, dqs[PARTS // 2]),)  # type: ignore[assignment]
    return sums


@triton.jit
def _tile(
    q, kv, topk, lengths, out, dout, lse, dq, into, exponents, units, largest, failed,
    query, slot, tile, keys, heads, chosen, scale,
    LENGTHS: tl.constexpr, PARTS: tl.constexpr, V_PARTS: tl.constexpr, WIDTH: tl.constexpr, HEADS: tl.constexpr,
    BLOCK: tl.constexpr, STAGED: tl.constexpr, EXACT: tl.constexpr, AGAIN: tl.constexpr,
):  # fmt: skip
    """One query and one tile of heads: dq of the tile, and its contributions to dkv row by row into ``into``.

    Columns are cut into PARTS of WIDTH; the first V_PARTS are those of the values too. ``slot`` is the query's place in
    ``into`` where that is STAGED. AGAIN: only what falls into rows that ``failed``, and no dq.
    """
    query = tl.cast(query, tl.int64)
    head = tile * HEADS + tl.arange(0, HEADS)
    level = tl.load(lse + query * heads + head, mask=head < heads, other=float("inf")) * LOG2_E
    delta = tl.zeros((HEADS,), dtype=tl.float32)
    qs = ()
    douts = ()
    dqs = ()
    for part in tl.static_range(PARTS):
        qs += (_heads(q, query, heads, PARTS * WIDTH, head, part * WIDTH, WIDTH),)  # type: ignore[assignment]
    if not AGAIN:
        for _ in tl.static_range(PARTS // 2):
            dqs += (tl.zeros((2 * WIDTH, HEADS), dtype=tl.float32),)  # type: ignore[assignment]
        if PARTS % 2:
            dqs += (tl.zeros((WIDTH, HEADS), dtype=tl.float32),)  # type: ignore[assignment]
    for part in tl.static_range(V_PARTS):
        douts += (_heads(dout, query, heads, V_PARTS * WIDTH, head, part * WIDTH, WIDTH),)  # type: ignore[assignment]
        delta += _dot_rows(_heads(out, query, heads, V_PARTS * WIDTH, head, part * WIDTH, WIDTH), douts[part])
    last = chosen
    if LENGTHS:
        last = tl.minimum(tl.load(lengths + query), chosen)
    for start in tl.range(0, last, BLOCK, num_stages=1):
        entry = start + tl.arange(0, BLOCK)
        row = tl.load(topk + query * chosen + entry, mask=entry < last, other=-1).to(tl.int64)
        valid = (row >= 0) & (row < keys)
        if AGAIN:
            valid = valid & (tl.load(failed + row, mask=valid, other=0) != 0)
            if tl.max(valid.to(tl.int32), axis=0) > 0:
                _block(
                    kv, into, exponents, units, largest, qs, douts, dqs, level, delta,
                    row, row, valid, False, scale, PARTS, V_PARTS, WIDTH, STAGED, EXACT, AGAIN,
                )  # fmt: skip
        else:
            place = row
            if STAGED:
                place = tl.cast(slot, tl.int64) * chosen + entry
            dqs = _block(
                kv, into, exponents, units, largest, qs, douts, dqs, level, delta,
                row, place, valid, tile > 0, scale, PARTS, V_PARTS, WIDTH, STAGED, EXACT, AGAIN,
            )  # fmt: skip
    if not AGAIN:
        for pair in tl.static_range(PARTS // 2):
            _store_heads(dq, dqs[pair], query, heads, PARTS * WIDTH, head, 2 * pair * WIDTH, 2 * WIDTH)
        if PARTS % 2:
            _store_heads(dq, dqs[PARTS // 2], query, heads, PARTS * WIDTH, head, (PARTS - 1) * WIDTH, WIDTH)


@triton.jit
def _scatter(
    q, kv, topk, lengths, out, dout, lse, dq, into, exponents, units, largest,
    keys, heads, chosen, scale,
    LENGTHS: tl.constexpr, PARTS: tl.constexpr, V_PARTS: tl.constexpr, WIDTH: tl.constexpr, HEADS: tl.constexpr,
    BLOCK: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """dq, and dkv by atomics in f32: as they come (racy), or EXACT, rounded to each row's quantum (order-free)."""
    _tile(
        q, kv, topk, lengths, out, dout, lse, dq, into, exponents, units, largest, units,
        tl.program_id(0), 0, tl.program_id(1), keys, heads, chosen, scale,
        LENGTHS, PARTS, V_PARTS, WIDTH, HEADS, BLOCK, False, EXACT, False,
    )  # fmt: skip


@triton.jit
def _scatter_again(
    q, kv, topk, lengths, out, dout, lse, into, exponents, failed, any_failed,
    queries, tiles, programs, keys, heads, chosen, scale,
    LENGTHS: tl.constexpr, PARTS: tl.constexpr, V_PARTS: tl.constexpr, WIDTH: tl.constexpr, HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The second run, only for rows whose certificate failed; nothing at all where none did."""
    last = tl.where(tl.load(any_failed) > 0, queries * tiles, 0)
    for item in range(tl.program_id(0), last, programs):
        _tile(
            q, kv, topk, lengths, out, dout, lse, into, into, exponents, exponents, exponents, failed,
            item // tiles, 0, item % tiles, keys, heads, chosen, scale,
            LENGTHS, PARTS, V_PARTS, WIDTH, HEADS, BLOCK, False, True, True,
        )  # fmt: skip


@triton.jit
def _stage(
    q, kv, topk, lengths, out, dout, lse, dq, staged,
    first, tiles, keys, heads, chosen, scale,
    LENGTHS: tl.constexpr, PARTS: tl.constexpr, V_PARTS: tl.constexpr, WIDTH: tl.constexpr, HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """dq, and each entry's contribution, all heads contracted, into its own row of ``staged``; unchosen rows stay unwritten."""
    for tile in range(tiles):
        _tile(
            q, kv, topk, lengths, out, dout, lse, dq, staged, topk, topk, topk, topk,
            first + tl.program_id(0), tl.program_id(0), tile, keys, heads, chosen, scale,
            LENGTHS, PARTS, V_PARTS, WIDTH, HEADS, BLOCK, True, False, False,
        )  # fmt: skip
        tl.debug_barrier()  # the next tile adds to what this one stored


FLOATS = ("bfloat16", "float16")
AGAIN_PROGRAMS = 1024  # of the second run, which most often has nothing to do


def check_inputs(
    q: torch.Tensor, kv: torch.Tensor, topk: torch.Tensor, topk_length: torch.Tensor | None,
    out: torch.Tensor, lse: torch.Tensor, dout: torch.Tensor,
) -> None:  # fmt: skip
    """Raises ``ValueError``, ``TypeError`` or (under ``PERFGATE_CHECK_INPUTS``) ``IndexError`` for inputs that don't fit."""
    checks.require_shape("q", q, (None, None, None))
    queries, heads, dim = q.shape
    checks.require_shape("kv", kv, (None, dim))
    checks.require_shape("topk", topk, (queries, None))
    checks.require_shape("out", out, (queries, heads, None))
    checks.require_shape("dout", dout, tuple(out.shape))
    checks.require_shape("lse", lse, (queries, heads))
    for name, tensor in (("q", q), ("kv", kv), ("out", out), ("dout", dout)):
        checks.require_dtype(name, tensor, *FLOATS)
    checks.require_dtype("topk", topk, "int32")
    checks.require_dtype("lse", lse, "float32")
    tensors = {"q": q, "kv": kv, "topk": topk, "out": out, "lse": lse, "dout": dout}
    if topk_length is not None:
        checks.require_shape("topk_length", topk_length, (queries,))
        checks.require_dtype("topk_length", topk_length, "int32")
        tensors["topk_length"] = topk_length
    checks.require_same_device(**tensors)
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(f"{name} has strides {tensor.stride()}, but must be contiguous: call .contiguous()")
    if dim % 64 or out.shape[2] % 64 or not 0 < out.shape[2] <= dim:
        raise ValueError(f"heads of {dim} with values of {out.shape[2]}: both must be multiples of 64, values not wider")
    checks.require_range("topk", topk, kv.shape[0])


def _constants(
    q: torch.Tensor, out: torch.Tensor, topk_length: torch.Tensor | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """How a launch cuts columns and heads, and its pinned ``options``."""
    width = options["WIDTH"]
    return {
        "LENGTHS": topk_length is not None, "PARTS": q.shape[2] // width, "V_PARTS": out.shape[2] // width,
        "HEADS": tile_of(q.shape[1]), **options,
    }  # fmt: skip


def backward_atomic(
    q: torch.Tensor, kv: torch.Tensor, topk: torch.Tensor, topk_length: torch.Tensor | None,
    out: torch.Tensor, lse: torch.Tensor, dout: torch.Tensor, scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The gradients dq [S_q, H, D] and dkv [S_k, D] of sparse attention; dkv by f32 atomics in arrival order: racy.

    ``q`` [S_q, H, D] and ``kv`` [S_k, D] bf16 or f16: keys are its rows, values their first ``out.shape[2]`` columns. ``topk``
    [S_q, K] int32: the rows of each query; entries outside 0 .. S_k − 1 touch nothing, and neither do those from
    ``topk_length`` [S_q] int32 on. ``out``, ``dout`` [S_q, H, Dv]; ``lse`` [S_q, H] f32: natural logarithm, of the scaled
    scores, +inf where a query has no row. Workspace: the f32 sums. Raises what :func:`check_inputs` says.
    """
    check_inputs(q, kv, topk, topk_length, out, lse, dout)
    dq = torch.empty_like(q)
    sums = torch.zeros(kv.shape, dtype=torch.float32, device=kv.device)
    lengths = topk if topk_length is None else topk_length
    constants = _constants(q, out, topk_length, config_for("dsa.scatter", tile_of(q.shape[1]), q))
    if q.numel():
        _scatter[(q.shape[0], tiles_of(q.shape[1]))](
            q, kv, topk, lengths, out, dout, lse, dq, sums, topk, topk, topk, kv.shape[0], q.shape[1], topk.shape[1], scale,
            EXACT=False, **constants,
        )  # fmt: skip
    return dq, sums.to(kv.dtype)


def backward_exact(
    q: torch.Tensor, kv: torch.Tensor, topk: torch.Tensor, topk_length: torch.Tensor | None,
    out: torch.Tensor, lse: torch.Tensor, dout: torch.Tensor, scale: float, reach: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """The same by atomics whose additions do not round, so that their order does not show; and ``reach`` for the next step.

    ``reach`` [1] f32 is what the step before returned (0: none; every row is then added twice). Bits depend on the inputs and
    ``reach`` alone; nothing waits for the host. Workspace: the f32 sums and 25 bytes per kv row.
    """
    check_inputs(q, kv, topk, topk_length, out, lse, dout)
    dq = torch.empty_like(q)
    sums = torch.zeros(kv.shape, dtype=torch.float32, device=kv.device)
    queries, heads, chosen, keys = q.shape[0], q.shape[1], topk.shape[1], kv.shape[0]
    lengths, tiles = topk if topk_length is None else topk_length, tiles_of(heads)
    books = open_books(count_rows(topk, topk_length, keys), reach, tiles)
    constants = _constants(q, out, topk_length, config_for("dsa.exact", tile_of(heads), q))
    if q.numel():
        _scatter[(queries, tiles)](
            q, kv, topk, lengths, out, dout, lse, dq, sums, books.exponents, books.units, books.largest,
            keys, heads, chosen, scale, EXACT=True, **constants,
        )  # fmt: skip
    verdict = judge(books, sums)
    if q.numel():
        programs = min(queries * tiles, AGAIN_PROGRAMS)
        _scatter_again[(programs,)](
            q, kv, topk, lengths, out, dout, lse, sums, verdict.again, verdict.failed, verdict.any_failed,
            queries, tiles, programs, keys, heads, chosen, scale, **constants,
        )  # fmt: skip
    return dq, sums.to(kv.dtype), verdict.reach


def backward_sorted(
    q: torch.Tensor, kv: torch.Tensor, topk: torch.Tensor, topk_length: torch.Tensor | None,
    out: torch.Tensor, lse: torch.Tensor, dout: torch.Tensor, scale: float, max_workspace: int = WORKSPACE,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The same in a fixed order: contributions of C queries staged in bf16, sorted by kv row, folded, added to the sums.

    C follows from the shapes and ``max_workspace`` (bytes, part of the bits) alone. Raises ``MemoryError`` with the formula's
    figures, before anything is allocated, where not even the smallest C fits.
    """
    check_inputs(q, kv, topk, topk_length, out, lse, dout)
    queries, chosen, keys = q.shape[0], topk.shape[1], kv.shape[0]
    at_a_time = queries_at_a_time(queries, keys, chosen, q.shape[2], max_workspace)
    dq = torch.empty_like(q)
    sums: torch.Tensor | None = None
    staged = torch.empty((at_a_time * chosen, q.shape[2]), dtype=q.dtype, device=q.device)
    constants = _constants(q, out, topk_length, config_for("dsa.stage", tile_of(q.shape[1]), q))
    ids = topk
    if topk_length is not None:
        ids = torch.where(torch.arange(chosen, device=topk.device) < topk_length[:, None], topk, -1)
    for first in range(0, queries if q.numel() and chosen else 0, at_a_time):
        count = min(at_a_time, queries - first)
        _stage[(count,)](
            q, kv, topk, topk if topk_length is None else topk_length, out, dout, lse, dq, staged,
            first, tiles_of(q.shape[1]), keys, q.shape[1], chosen, scale, **constants,
        )  # fmt: skip
        order = stable_sort(ids[first : first + count].reshape(-1), keys)
        folded = sum_segments(staged[: count * chosen], order, dtype=torch.float32)
        sums = folded if sums is None else sums.add_(folded)
        del folded, order  # or the next chunk's would stand beside them
    del staged
    return dq, torch.zeros_like(kv) if sums is None else sums.to(kv.dtype)
