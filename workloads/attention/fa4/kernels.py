"""Triton kernels around flash-attn-4's backward: what it reads before (delta, LSE, C of every row), what is added after it."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from .bound import LARGEST, SMALLEST

CHUNKS = 64  # programs per kv head that look for the largest key and value
ROWS = 32  # query rows of a program
SAMPLES = 32  # rows that the first guess at dK and dV looks at
TILE = 128  # kv rows of one tile of the backward kernel
HEADROOM = 64.0  # the guess may be this much too low before a tile must be kept aside
LOG2_E = tl.constexpr(1.4426950408889634)
SMALLEST_BITS = tl.constexpr((127 + round(math.log2(SMALLEST))) << 23)
LARGEST_U = tl.constexpr(LARGEST)


@triton.jit
def _constant(limit):
    """C = 1.5·U for the smallest power of two U that reaches ``limit``; NaN where that is above 2^126 or not a number."""
    power = (limit.to(tl.int32, bitcast=True) + 0x7FFFFF) & 0x7F800000
    bits = tl.maximum(power, SMALLEST_BITS) | 0x400000
    return tl.where(limit <= LARGEST_U, bits, 0x7FC00000).to(tl.float32, bitcast=True)


@triton.jit
def _finite(value):
    return tl.where(tl.abs(value) < float("inf"), value, 0.0)


@triton.jit
def _rms(pointer, stride, head_stride, heads, rows, SAMPLES: tl.constexpr, D: tl.constexpr):
    """Root mean square of a few rows spread over ``heads`` heads."""
    sample = tl.arange(0, SAMPLES)
    row = (sample.to(tl.int64) * rows) // SAMPLES
    place = pointer + (sample % heads)[:, None] * head_stride + row[:, None] * stride + tl.arange(0, D)[None, :]
    value = _finite(tl.load(place).to(tl.float32))
    return tl.sqrt(tl.sum(tl.sum(value * value, axis=1), axis=0) / (SAMPLES * D))


@triton.jit
def _survey(
    k, v, largest, rows, heads, k_batch, k_head, k_row, v_batch, v_head, v_row,
    CHUNKS: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Of each kv head: the largest ‖V_j‖² and |K_jd| of each chunk of rows. NaN and Inf are left out."""
    chunk, head = tl.program_id(0), tl.program_id(1)
    batch = (head // heads).to(tl.int64)
    k += batch * k_batch + (head % heads).to(tl.int64) * k_head
    v += batch * v_batch + (head % heads).to(tl.int64) * v_head
    column = tl.arange(0, D)[None, :]
    count = tl.cdiv(rows, CHUNKS)
    key = tl.zeros((ROWS, D), dtype=tl.float32)
    norm = tl.zeros((ROWS,), dtype=tl.float32)
    for start in range(chunk * count, (chunk + 1) * count, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < rows)[:, None]
        place = row.to(tl.int64)[:, None]
        value = _finite(tl.load(v + place * v_row + column, mask=inside, other=0.0).to(tl.float32))
        norm = tl.maximum(norm, tl.sum(value * value, axis=1))
        key = tl.maximum(key, tl.abs(_finite(tl.load(k + place * k_row + column, mask=inside, other=0.0).to(tl.float32))))
    tl.store(largest + head * 2 * CHUNKS + chunk, tl.max(norm, axis=0))
    tl.store(largest + head * 2 * CHUNKS + CHUNKS + chunk, tl.max(tl.max(key, axis=1), axis=0))


@triton.jit
def _guess_tiles(
    q, v, grad, constants, dk, dv, q_rows, rows, padded, tiles, heads, window, q_batch, q_head, q_row,
    v_batch, v_head, v_row, g_batch, g_head, g_row,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, SAMPLES: tl.constexpr, TILE: tl.constexpr, HEADROOM: tl.constexpr,
    D: tl.constexpr,
):  # fmt: skip
    """C of one kv tile for dK and dV, from the size that diffuse attention to random data would give; clears their sums.

    A guess, not a bound: what it decides is only which tiles are added at once and which are kept aside.
    """
    tile, head = tl.program_id(0), tl.program_id(1)
    batch, kv_head = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    size_q = _rms(q + batch * q_batch + kv_head * GROUP * q_head, q_row, q_head, GROUP, q_rows, SAMPLES, D)
    size_g = _rms(grad + batch * g_batch + kv_head * GROUP * g_head, g_row, g_head, GROUP, q_rows, SAMPLES, D)
    size_v = _rms(v + batch * v_batch + kv_head * v_head, v_row, v_head, 1, rows, SAMPLES, D)
    # Σ_i P_ij² with P_ij ≈ 1/n_i, n_i the keys that row i sees
    if CAUSAL:
        first = tl.maximum(tile * TILE + 1, 1 + rows - q_rows).to(tl.float32)
        seen = tl.minimum(rows, window).to(tl.float32)
        spread = tl.maximum(1.0 / tl.minimum(first, seen) - 1.0 / (rows + 1).to(tl.float32), 0.0)
    else:
        spread = q_rows.to(tl.float32) / (rows.to(tl.float32) * rows.to(tl.float32))
    value = HEADROOM * GROUP * 6.0 * size_g * tl.sqrt(spread)
    key = value * size_v * size_q * tl.sqrt(D * 1.0)
    tl.store(constants + (head * tiles + tile) * 2, _constant(key))
    tl.store(constants + (head * tiles + tile) * 2 + 1, _constant(value))
    zero = tl.zeros((TILE, D), dtype=tl.float32)
    place = (head.to(tl.int64) * padded + tile * TILE) * D + tl.arange(0, TILE)[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(dk + place, zero)
    tl.store(dv + place, zero)


@triton.jit
def _prepare(
    out, grad, lse, largest, delta, lse2, constants, dq, rows, padded, heads, group,
    o_batch, o_head, o_row, g_batch, g_head, g_row,
    CHUNKS: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Of each query row: delta = Σ_d out·grad, LSE in base 2, C; clears dQ's sums. Rows past the end: 0, +Inf, the least C."""
    head = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside, kept = row < rows, row < padded
    batch, own = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    place, column = row.to(tl.int64)[:, None], tl.arange(0, D)[None, :]
    o = tl.load(out + batch * o_batch + own * o_head + place * o_row + column, mask=inside[:, None], other=0.0).to(tl.float32)
    g = tl.load(grad + batch * g_batch + own * g_head + place * g_row + column, mask=inside[:, None], other=0.0).to(tl.float32)
    kv = largest + (head // group) * 2 * CHUNKS + tl.arange(0, CHUNKS)
    largest_value, largest_key = tl.sqrt(tl.max(tl.load(kv), axis=0)), tl.max(tl.load(kv + CHUNKS), axis=0)
    limit = 2.0 * tl.sqrt(tl.sum(g * g, axis=1)) * largest_value * largest_key
    natural = tl.load(lse + head.to(tl.int64) * rows + row, mask=inside, other=float("inf"))
    start = head.to(tl.int64) * padded
    tl.store(delta + start + row, tl.sum(o * g, axis=1), mask=kept)
    tl.store(lse2 + start + row, tl.where(natural == -float("inf"), 0.0, natural * LOG2_E), mask=kept)
    tl.store(constants + start + row, _constant(limit), mask=kept)
    tl.store(dq + (start + place) * D + column, tl.zeros((ROWS, D), dtype=tl.float32), mask=kept[:, None])


@triton.jit
def _add_aside(dk, dv, aside_k, aside_v, flags, tiles, GROUP: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Adds the tiles kept aside into their group's sum, in the order of the heads; most often there are none."""
    tile, head, which = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    total = tl.where(which == 0, dk, dv) + (head * tiles + tile) * SIZE
    aside = tl.where(which == 0, aside_k, aside_v)
    flags += (head * GROUP * tiles + tile) * 2 + which
    found = 0
    for member in tl.static_range(GROUP):
        found += tl.load(flags + member * tiles * 2)
    limit = tl.where(found > 0, SIZE, 0)
    for start in range(0, limit, BLOCK):
        place = start + tl.arange(0, BLOCK)
        value = tl.load(total + place)
        for member in tl.static_range(GROUP):
            kept = tl.load(flags + member * tiles * 2) > 0
            source = aside + ((head * GROUP + member) * tiles + tile) * SIZE + place
            value += tl.load(source, mask=tl.full((BLOCK,), True, tl.int1) & kept, other=0.0)
        tl.store(total + place, value)


def _strides(*tensors: torch.Tensor) -> list[int]:
    return [stride for tensor in tensors for stride in tensor.stride()[:3]]


def prepare(
    k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, grad: torch.Tensor, padded: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """``(delta, lse2, constants)`` [B, Hq, padded] f32 and cleared sums of dQ [B, Hq, padded · D] f32.

    ``k``, ``v`` [B, Hkv, Sk, D], ``out``, ``grad`` [B, Hq, Sq, D] with contiguous rows, ``lse`` [B, Hq, Sq] f32 contiguous.
    """
    batch, heads, rows, dim = grad.shape
    kv_heads, kv_rows = k.shape[1:3]
    largest = torch.empty((batch * kv_heads, 2, CHUNKS), dtype=torch.float32, device=k.device)
    delta, lse2, constants = (torch.empty((batch, heads, padded), dtype=torch.float32, device=k.device) for _ in range(3))
    dq = torch.empty((batch, heads, padded * dim), dtype=torch.float32, device=k.device)
    _survey[(CHUNKS, batch * kv_heads)](k, v, largest, kv_rows, kv_heads, *_strides(k, v), CHUNKS, 64, dim)
    _prepare[(triton.cdiv(padded, ROWS), batch * heads)](
        out, grad, lse, largest, delta, lse2, constants, dq, rows, padded, heads, heads // kv_heads,
        *_strides(out, grad), CHUNKS, ROWS, dim,
    )  # fmt: skip
    return delta, lse2, constants, dq


def guess_tiles(
    q: torch.Tensor, v: torch.Tensor, grad: torch.Tensor, causal: bool, window: int | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """C of every kv tile [B, Hkv, 2 · tiles] f32 (dK, dV), and cleared sums of dK and dV [B, Hkv, tiles · 128 · D] f32."""
    batch, kv_heads, rows, dim = v.shape
    tiles = triton.cdiv(rows, TILE)
    constants = torch.empty((batch, kv_heads, 2 * tiles), dtype=torch.float32, device=v.device)
    dk, dv = (torch.empty((batch, kv_heads, tiles * TILE * dim), dtype=torch.float32, device=v.device) for _ in range(2))
    _guess_tiles[(tiles, batch * kv_heads)](
        q, v, grad, constants, dk, dv, q.shape[2], rows, tiles * TILE, tiles, kv_heads, rows if window is None else window,
        *_strides(q, v, grad), q.shape[1] // kv_heads, causal or window is not None, SAMPLES, TILE, HEADROOM, dim,
    )  # fmt: skip
    return constants, dk, dv


def add_aside(
    dk: torch.Tensor, dv: torch.Tensor, aside_k: torch.Tensor, aside_v: torch.Tensor, flags: torch.Tensor, group: int
) -> None:
    """Completes the sums ``dk``, ``dv`` by the tiles that ``flags`` [B, Hq, 2 · tiles] say were kept aside [B, Hq, …]."""
    batch, kv_heads, length = dk.shape
    tiles = flags.shape[2] // 2
    _add_aside[(tiles, batch * kv_heads, 2)](dk, dv, aside_k, aside_v, flags, tiles, group, length // tiles, 1024)
