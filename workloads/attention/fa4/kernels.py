"""Triton kernels around flash-attn-4's backward: what it reads (delta, LSE), what makes gradients of its sums."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from .bound import LEAST_EXTENT, LOST, ROW_MASK, SMALLEST

CHUNKS = 64  # of the kv rows of one head: each gives one largest key and one largest value
ROWS, WARPS = 32, 4  # of a program: rows at a time
FINISH_ROWS = 512  # of a program that completes delta
SAMPLES = 32  # rows that the first guess at dK and dV looks at
TILE = 128  # kv rows of one tile of the backward kernel
BLOCK = 64  # rows whose sums one warp group holds
HEADROOM = 64.0  # the guess may be this much too low before a tile must be kept aside
LOG2_E = tl.constexpr(1.4426950408889634)
LOST_NORM = tl.constexpr(LOST)
LEAST = tl.constexpr(LEAST_EXTENT)
CARRIED = tl.constexpr(ROW_MASK)
SMALLEST_BITS = tl.constexpr((127 + round(math.log2(SMALLEST))) << 23)
LARGEST_U = tl.constexpr(2.0**126)  # of a kv tile, whose elements may be as large as U / 2: U / 2 + C is finite


@triton.jit
def _constant(size):
    """C = 1.5·U for the smallest power of two U that reaches ``size``, which is cut to [2^-100, 2^126]."""
    power = (tl.minimum(size, LARGEST_U).to(tl.int32, bitcast=True) + 0x7FFFFF) & 0x7F800000
    return (tl.maximum(power, SMALLEST_BITS) | 0x400000).to(tl.float32, bitcast=True)


@triton.jit
def _finite(value):
    return tl.where(tl.abs(value) < float("inf"), value, 0.0)


@triton.jit
def _extent(extents, count, CHUNKS: tl.constexpr):
    """Of :func:`.bound.extent`: one head's from those of its ``count`` chunks, at most CHUNKS."""
    chunk = tl.arange(0, CHUNKS)
    square = tl.max(tl.load(extents + chunk, mask=chunk < count, other=0), axis=0).to(tl.float32, bitcast=True)
    key = tl.max(tl.load(extents + count + chunk, mask=chunk < count, other=0), axis=0).to(tl.float32, bitcast=True)
    return tl.maximum((tl.sqrt(square) + LOST_NORM) * key * 2.0, LEAST)


@triton.jit
def _exponent(limit):
    """Of :func:`.bound.exponent`."""
    power = tl.maximum((limit.to(tl.int32, bitcast=True) + 0x7FFFFF) >> 23, SMALLEST_BITS >> 23)
    return tl.where(limit < float("inf"), power, 255)


@triton.jit
def _carrying(delta, carried):
    """The number nearest to ``delta`` whose last eight bits are ``carried``: off by 2^-16 of it at most. NaN stays NaN."""
    bits = delta.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    near = tl.minimum(tl.maximum(size - carried + (CARRIED + 1) // 2, 0), 0x7F7FFFFF)
    return ((bits & -0x80000000) | (tl.where(size > 0x7F7FFFFF, size, near) & ~CARRIED) | carried).to(tl.float32, bitcast=True)


@triton.jit
def _completed(product, norm, extent):
    """Delta that carries the exponent of its row's U, from the row's norm and the head's extent. NaN where not finite."""
    finite = (norm < float("inf")) & (tl.abs(product) < float("inf"))
    return _carrying(tl.where(finite, product, float("nan")), _exponent((norm + LOST_NORM) * extent))


@triton.jit
def _rms(pointer, stride, head_stride, heads, rows, SAMPLES: tl.constexpr, D: tl.constexpr):
    """Root mean square of a few rows spread over ``heads`` heads."""
    sample = tl.arange(0, SAMPLES)
    row = (sample.to(tl.int64) * rows) // SAMPLES
    place = pointer + (sample % heads).to(tl.int64)[:, None] * head_stride + row[:, None] * stride + tl.arange(0, D)[None, :]
    value = _finite(tl.load(place).to(tl.float32))
    return tl.sqrt(tl.sum(tl.sum(value * value, axis=1), axis=0) / (SAMPLES * D))


@triton.jit
def _survey_chunk(k, v, extents, rows, chunk, k_row, v_row, CHUNKS: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr):
    """Of one chunk of a head's kv rows: the largest ‖V_j‖² and |K_jd|, as bits. NaN and Inf are left out."""
    column = tl.arange(0, D)[None, :]
    count = tl.cdiv(rows, CHUNKS)
    key = tl.zeros((ROWS, D), dtype=tl.float32)
    square = tl.zeros((ROWS,), dtype=tl.float32)
    for start in range(chunk * count, (chunk + 1) * count, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < rows)[:, None]
        place = row.to(tl.int64)[:, None]
        one = _finite(tl.load(k + place * k_row + column, mask=inside, other=0.0).to(tl.float32))
        value = _finite(tl.load(v + place * v_row + column, mask=inside, other=0.0).to(tl.float32))
        key = tl.maximum(key, tl.abs(one))
        square = tl.maximum(square, tl.sum(value * value, axis=1))
    tl.store(extents + chunk, tl.max(square, axis=0).to(tl.int32, bitcast=True))
    tl.store(extents + CHUNKS + chunk, tl.max(tl.max(key, axis=1), axis=0).to(tl.int32, bitcast=True))


@triton.jit
def _prepare_rows(
    out, grad, lse, delta, norms, lse2, dq, extent, rows, padded, block, o_row, g_row,
    KNOWN: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Of a block of a head's query rows: delta = Σ_d out·grad, LSE in base 2; clears dQ's sums.

    Delta is complete if the head's extent is KNOWN, else ‖grad‖ is stored for :func:`_finish`.
    """
    row = block * ROWS + tl.arange(0, ROWS)
    inside, kept = row < rows, row < padded
    place, column = row.to(tl.int64)[:, None], tl.arange(0, D)[None, :]
    o = tl.load(out + place * o_row + column, mask=inside[:, None], other=0.0).to(tl.float32)
    g = tl.load(grad + place * g_row + column, mask=inside[:, None], other=0.0).to(tl.float32)
    natural = tl.load(lse + row, mask=inside, other=float("inf"))
    zeros = tl.zeros((ROWS, D), dtype=tl.float32)
    tl.store(dq + place * D + column, zeros, mask=kept[:, None], eviction_policy="evict_last")  # the backward adds to them
    product, norm = tl.sum(o * g, axis=1), tl.sqrt(tl.sum(g * g, axis=1))
    if KNOWN:
        tl.store(delta + row, _completed(product, norm, extent), mask=kept)
    else:
        tl.store(delta + row, product, mask=kept)
        tl.store(norms + row, norm, mask=kept)
    tl.store(lse2 + row, tl.where(natural == -float("inf"), 0.0, natural * LOG2_E), mask=kept)


@triton.jit
def _prepare(
    k, v, out, grad, lse, extents, delta, norms, lse2, dq, kv_rows, rows, padded, heads, group, shares,
    k_batch, k_head, k_row, v_batch, v_head, v_row, o_batch, o_head, o_row, g_batch, g_head, g_row,
    CHUNKS: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """What the backward reads besides its inputs, in one pass; :func:`_finish` completes delta.

    The heads of a group share the survey of their keys and values. The last head goes first: what the forward used
    last is still in the cache, and what the backward uses first will be.
    """
    part, both = tl.program_id(0), (tl.num_programs(1) - 1 - tl.program_id(1)).to(tl.int64)
    batch, head = both // heads, both % heads
    if part < shares:
        kv_head = head // group
        chunk = (head % group).to(tl.int32) * shares + part
        if chunk < CHUNKS:
            _survey_chunk(
                k + batch * k_batch + kv_head * k_head, v + batch * v_batch + kv_head * v_head,
                extents + (both // group) * 2 * CHUNKS, kv_rows, chunk, k_row, v_row, CHUNKS, ROWS, D,
            )  # fmt: skip
    else:
        start = both * padded
        _prepare_rows(
            out + batch * o_batch + head * o_head, grad + batch * g_batch + head * g_head, lse + both * rows,
            delta + start, norms + start, lse2 + start, dq + start * D, 0.0, rows, padded, part - shares, o_row, g_row,
            False, ROWS, D,
        )  # fmt: skip


@triton.jit
def _prepare_surveyed(
    out, grad, lse, extents, delta, lse2, dq, rows, padded, heads, group, count,
    o_batch, o_head, o_row, g_batch, g_head, g_row, CHUNKS: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """What the backward reads besides its inputs where the forward has surveyed K and V. The last head goes first."""
    part, both = tl.program_id(0), (tl.num_programs(1) - 1 - tl.program_id(1)).to(tl.int64)
    batch, head, start = both // heads, both % heads, both * padded
    _prepare_rows(
        out + batch * o_batch + head * o_head, grad + batch * g_batch + head * g_head, lse + both * rows,
        delta + start, delta, lse2 + start, dq + start * D, _extent(extents + (both // group) * 2 * count, count, CHUNKS),
        rows, padded, part, o_row, g_row, True, ROWS, D,
    )  # fmt: skip


@triton.jit
def _finish(delta, norms, extents, padded, group, ROWS: tl.constexpr, CHUNKS: tl.constexpr):
    """Completes delta once all of K and V is surveyed."""
    head = (tl.num_programs(1) - 1 - tl.program_id(1)).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    product = tl.load(delta + head * padded + row, mask=row < padded, other=0.0)
    norm = tl.load(norms + head * padded + row, mask=row < padded, other=0.0)
    extent = _extent(extents + (head // group) * 2 * CHUNKS, CHUNKS, CHUNKS)
    tl.store(delta + head * padded + row, _completed(product, norm, extent), mask=row < padded)


@triton.jit
def _guess_tile(
    q, v, grad, constants, tile, q_rows, rows, window, q_head, q_row, v_row, g_head, g_row,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, SAMPLES: tl.constexpr, TILE: tl.constexpr, HEADROOM: tl.constexpr,
    D: tl.constexpr,
):  # fmt: skip
    """C of one kv tile for dK and dV, from the size that diffuse attention to random data would give.

    A guess, not a bound: what it decides is only which tiles are added at once and which are kept aside.
    """
    size_q = _rms(q, q_row, q_head, GROUP, q_rows, SAMPLES, D)
    size_g = _rms(grad, g_row, g_head, GROUP, q_rows, SAMPLES, D)
    size_v = _rms(v, v_row, 0, 1, rows, SAMPLES, D)
    # Σ_i P_ij² with P_ij ≈ 1/n_i, n_i the keys that row i sees
    if CAUSAL:
        first = tl.maximum(tile * TILE + 1, 1 + rows - q_rows).to(tl.float32)
        seen = tl.minimum(rows, window).to(tl.float32)
        spread = tl.maximum(1.0 / tl.minimum(first, seen) - 1.0 / (rows + 1).to(tl.float32), 0.0)
    else:
        spread = q_rows.to(tl.float32) / (rows.to(tl.float32) * rows.to(tl.float32))
    value = HEADROOM * GROUP * 6.0 * size_g * tl.sqrt(spread)
    key = value * size_v * size_q * tl.sqrt(D * 1.0)
    tl.store(constants, _constant(key))
    tl.store(constants + 1, _constant(value))


@triton.jit
def _guess_tiles(
    q, v, grad, constants, dk, dv, q_rows, rows, tiles, heads, window, q_batch, q_head, q_row,
    v_batch, v_head, v_row, g_batch, g_head, g_row,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, SAMPLES: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
    HEADROOM: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Clears some rows of the sums of dK and dV; the first program of a tile guesses its C."""
    part, both = tl.program_id(0), tl.program_id(1)
    tile = part * ROWS // TILE
    if part * ROWS % TILE == 0:
        batch, head = (both // heads).to(tl.int64), (both % heads).to(tl.int64)
        _guess_tile(
            q + batch * q_batch + head * GROUP * q_head, v + batch * v_batch + head * v_head,
            grad + batch * g_batch + head * GROUP * g_head, constants + (both * tiles + tile) * 2,
            tile, q_rows, rows, window, q_head, q_row, v_row, g_head, g_row, GROUP, CAUSAL, SAMPLES, TILE, HEADROOM, D,
        )  # fmt: skip
    place = (both.to(tl.int64) * tiles * TILE + part * ROWS) * D + tl.arange(0, ROWS * D)
    tl.store(dk + place, tl.zeros((ROWS * D,), dtype=tl.float32), eviction_policy="evict_last")
    tl.store(dv + place, tl.zeros((ROWS * D,), dtype=tl.float32), eviction_policy="evict_last")


@triton.jit
def _convert_block(
    total, gradient, aside, flags, scale, rows, padded, heads, block, both, which, g_batch, g_head, g_row,
    HALVES: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """One block of a head's gradient from its sums; adds the tiles kept aside, in the order of the heads.

    Sums lie as accumulators do: of each half of the columns (or all) groups of 8 columns, of these four numbers of each of 128
    threads: two columns in each of two rows.
    """
    place = block * BLOCK * D + tl.arange(0, BLOCK * D)
    value = tl.load(total + both * padded * D + place)
    if GROUP > 1:
        tiles = padded // (2 * BLOCK)
        for member in tl.static_range(GROUP):
            head = both * GROUP + member
            if tl.load(flags + (head * tiles + block // 2) * 2 + which) > 0:
                value += tl.load(aside + head * padded * D + place)
    parts = tl.reshape((value * scale).to(tl.bfloat16), (HALVES, D // (8 * HALVES), BLOCK // 16, 8, 4, 2, 2))
    by_row = tl.reshape(tl.permute(parts, (2, 5, 3, 0, 1, 4, 6)), (BLOCK, D))
    row = block * BLOCK + tl.arange(0, BLOCK)
    start = gradient + (both // heads) * g_batch + (both % heads) * g_head
    tl.store(start + row.to(tl.int64)[:, None] * g_row + tl.arange(0, D)[None, :], by_row, mask=(row < rows)[:, None])


@triton.jit
def _convert(
    total, gradient, scale, rows, padded, heads, g_batch, g_head, g_row,
    HALVES: tl.constexpr, BLOCK: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Gradients from sums that hold all of them. Last head first."""
    both = (tl.num_programs(1) - 1 - tl.program_id(1)).to(tl.int64)
    _convert_block(
        total, gradient, total, total, scale, rows, padded, heads, tl.program_id(0), both, 0, g_batch, g_head, g_row,
        HALVES, 1, BLOCK, D,
    )  # fmt: skip


@triton.jit
def _convert_grouped(
    q_total, k_total, v_total, dq, dk, dv, k_aside, v_aside, flags, scale,
    q_rows, q_padded, q_heads, q_programs, rows, padded, heads, programs,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    Q_HALVES: tl.constexpr, HALVES: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """The three gradients of grouped heads: dQ's heads first, then dK's, then dV's, of each the last head first."""
    block, both = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if both < q_programs:
        if block * BLOCK < q_rows:
            _convert_block(
                q_total, dq, q_total, flags, scale, q_rows, q_padded, q_heads, block, q_programs - 1 - both, 0,
                q_batch, q_head, q_row, Q_HALVES, 1, BLOCK, D,
            )  # fmt: skip
    elif block * BLOCK < rows:
        if both < q_programs + programs:
            _convert_block(
                k_total, dk, k_aside, flags, scale, rows, padded, heads, block, q_programs + programs - 1 - both, 0,
                k_batch, k_head, k_row, HALVES, GROUP, BLOCK, D,
            )  # fmt: skip
        else:
            _convert_block(
                v_total, dv, v_aside, flags, 1.0, rows, padded, heads, block, q_programs + 2 * programs - 1 - both, 1,
                v_batch, v_head, v_row, HALVES, GROUP, BLOCK, D,
            )  # fmt: skip


def _strides(*tensors: torch.Tensor) -> list[int]:
    return [stride for tensor in tensors for stride in tensor.stride()[:3]]


def prepare(
    k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, grad: torch.Tensor, padded: int,
    extents: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """``(delta, lse2)`` [B, Hq, padded] f32, cleared sums of dQ [B, Hq, padded · D] f32.

    ``k``, ``v`` [B, Hkv, Sk, D], ``out``, ``grad`` [B, Hq, Sq, D] with contiguous rows, ``lse`` [B, Hq, Sq] f32 contiguous.
    delta's last eight bits are the exponent of its row's U (:func:`.bound.exponent`). ``extents`` [B, Hkv, 2, n] i32: f32 bits
    of the largest ‖V_j‖² and |K_jd| of n parts of the rows of ``k`` and ``v``, which then are not read.
    """
    batch, heads, rows, dim = grad.shape
    kv_heads, kv_rows = k.shape[1:3]
    group = heads // kv_heads
    delta, lse2 = (torch.empty((batch, heads, padded), dtype=torch.float32, device=k.device) for _ in range(2))
    dq = torch.empty((batch, heads, padded * dim), dtype=torch.float32, device=k.device)
    if extents is not None:
        count = extents.shape[3]
        _prepare_surveyed[(triton.cdiv(padded, ROWS), batch * heads)](
            out, grad, lse, extents, delta, lse2, dq, rows, padded, heads, group, count, *_strides(out, grad),
            triton.next_power_of_2(count), ROWS, dim, num_warps=WARPS,
        )  # fmt: skip
        return delta, lse2, dq
    extents = torch.empty((batch, kv_heads, 2, CHUNKS), dtype=torch.int32, device=k.device)
    norms = torch.empty_like(delta)
    shares = triton.cdiv(CHUNKS, group)
    _prepare[(shares + triton.cdiv(padded, ROWS), batch * heads)](
        k, v, out, grad, lse, extents, delta, norms, lse2, dq, kv_rows, rows, padded, heads, group, shares,
        *_strides(k, v, out, grad), CHUNKS, ROWS, dim, num_warps=WARPS,
    )  # fmt: skip
    _finish[(triton.cdiv(padded, FINISH_ROWS), batch * heads)](delta, norms, extents, padded, group, FINISH_ROWS, CHUNKS)
    return delta, lse2, dq


def guess_tiles(
    q: torch.Tensor, v: torch.Tensor, grad: torch.Tensor, causal: bool, window: int | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """C of every kv tile [B, Hkv, 2 · tiles] f32 (dK, dV), and cleared sums of dK and dV [B, Hkv, tiles · 128 · D] f32."""
    batch, kv_heads, rows, dim = v.shape
    tiles = triton.cdiv(rows, TILE)
    constants = torch.empty((batch, kv_heads, 2 * tiles), dtype=torch.float32, device=v.device)
    dk, dv = (torch.empty((batch, kv_heads, tiles * TILE * dim), dtype=torch.float32, device=v.device) for _ in range(2))
    _guess_tiles[(tiles * TILE // ROWS, batch * kv_heads)](
        q, v, grad, constants, dk, dv, q.shape[2], rows, tiles, kv_heads, rows if window is None else window,
        *_strides(q, v, grad), q.shape[1] // kv_heads, causal or window is not None, SAMPLES, TILE, ROWS, HEADROOM, dim,
    )  # fmt: skip
    return constants, dk, dv


def convert(total: torch.Tensor, gradient: torch.Tensor, scale: float, halves: int) -> None:
    """``gradient`` [B, H, S, D] bf16 from ``scale`` times the sums ``total`` [B, H, padded · D] f32.

    ``halves`` is 2 where the warp groups share the columns, 1 where each has rows of its own.
    """
    batch, heads, rows, dim = gradient.shape
    _convert[(triton.cdiv(rows, BLOCK), batch * heads)](
        total, gradient, scale, rows, total.shape[2] // dim, heads, *_strides(gradient), halves, BLOCK, dim, num_warps=8
    )


def convert_grouped(
    totals: tuple[torch.Tensor, torch.Tensor, torch.Tensor], gradients: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    aside: tuple[torch.Tensor, ...], flags: torch.Tensor, scale: float, q_halves: int, halves: int,
) -> None:  # fmt: skip
    """All ``gradients`` of grouped heads (dQ, dK, dV) as :func:`convert` makes one; dV's sums are not scaled.

    ``flags`` [B, Hq, 2 · tiles] say which tiles of ``aside`` [B, Hq, padded · D] (dK, dV) complete the sums of dK and dV.
    """
    dq, dk = gradients[:2]
    batch, q_heads, q_rows, dim = dq.shape
    heads, rows = dk.shape[1:3]
    _convert_grouped[(triton.cdiv(max(q_rows, rows), BLOCK), batch * (q_heads + 2 * heads))](
        *totals, *gradients, *aside, flags, scale, q_rows, totals[0].shape[2] // dim, q_heads, batch * q_heads,
        rows, totals[1].shape[2] // dim, heads, batch * heads, *_strides(*gradients), q_halves, halves, q_heads // heads,
        BLOCK, dim, num_warps=8,
    )  # fmt: skip
