"""Attention's forward: one program per block of queries walks over its keys with a running softmax; nothing is split or added.

With ``SURVEY`` it also writes down what the backward's proof needs and would have to read q, k and v once more for: the norm of
every query, its share, and of every block of keys the largest ‖V_j‖ and |K_jd|.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from ...blocks.configs import config_for
from .. import shape
from ..shape import padded

SHARED = tl.constexpr(shape.SHARED)
SIZES = ("heads", "kv_heads", "q_len", "kv_len", "window", "key_blocks")  # one binary for all of them


class Survey(NamedTuple):
    """Magnitudes in f32: ``norms`` [B·Hq, padded queries] are ‖q_i‖, ``reach`` [2, B·Hkv, key blocks] are maxima.

    ``shares`` [B·Hq, padded queries]: no block of :data:`~workloads.attention.shape.SHARED` keys, counted from the first key,
    has more than this of a query's probability; 0 where a query sees nothing. ``reach`` holds the largest ‖V_j‖ and |K_jd| of
    each block; NaN where it holds NaN or Inf.
    """

    norms: torch.Tensor
    shares: torch.Tensor
    reach: torch.Tensor


@triton.jit
def _two_to(exponent):
    """2^exponent for −126 ≤ exponent ≤ 127."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _near_one(largest):
    """Exponents e such that f32 numbers of this size are near 2^e, and 2^-e: scaled by it, their squares are f32."""
    exponent = tl.minimum(tl.maximum((largest.to(tl.int32, bitcast=True) >> 23) & 255, 1), 253)
    return exponent - 127, _two_to(127 - exponent)


@triton.jit
def _squares(rows):
    """Of each row of an f32 matrix the sum of squares over 4^e, and e; not finite if the row holds NaN or Inf."""
    exponent, down = _near_one(tl.max(tl.abs(rows), axis=1))
    scaled = rows * down[:, None]
    return tl.sum(scaled * scaled, axis=1), exponent.to(tl.float32)


@triton.jit
def _log2_above(positive):
    """log2 of an f32 ≥ 0, at most 0.09 too large, never too small: from its bits; tl.log2 is 25 instructions."""
    return positive.to(tl.int32, bitcast=True).to(tl.float32) * 1.1920929e-07 - 126.9125


@triton.jit
def _lengths(rows):
    """Norms of rows where it does no harm that squares may over- or underflow."""
    rows = rows.to(tl.float32)
    return tl.sqrt(tl.sum(rows * rows, axis=1))


@triton.jit
def _magnitude(tile):
    """The largest |element| of a 16-bit matrix in f32, NaN if any is NaN or Inf: their bits are larger than any number's."""
    bits = tl.max(tl.max((tile.to(tl.int16, bitcast=True) & 0x7FFF).to(tl.int32), axis=1), axis=0)
    largest = bits.to(tl.int16).to(tile.dtype, bitcast=True).to(tl.float32)
    return largest + largest * 0.0


@triton.jit
def _survey_keys(k, v, reach, b, kv_head, stride, first_block, step, blocks, D: tl.constexpr, N: tl.constexpr):
    """Largest ‖V_j‖ and |K_jd| of every ``step``-th block of N keys; ``reach`` points to the head's own."""
    for block in range(first_block, blocks, step):
        tl.store(reach + stride + block, _magnitude(k.load([b, kv_head, block * N, 0]).reshape(N, D)))
        values = v.load([b, kv_head, block * N, 0]).reshape(N, D)
        largest = _magnitude(values)
        exponent, down = _near_one(largest)  # one for the block: of rows far below the largest element nothing is needed
        scaled = values.to(tl.float32) * down
        longest = tl.max(tl.sum(scaled * scaled, axis=1), axis=0)
        tl.store(reach + block, tl.sqrt(longest) * _two_to(exponent) + largest * 0.0)


@triton.jit
def _seen(keys, queries, kv_len, window, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr):
    """Which keys which queries see; queries are counted from the end: already shifted by Sk − Sq."""
    seen = keys < kv_len
    if CAUSAL:
        seen = seen & (keys <= queries)
    if WINDOWED:
        seen = seen & (keys > queries - window)
    return seen


@triton.jit
def _walk(
    total, highest, weight_sum, heaviest, query_tile, k, v, b, kv_head, queries, kv_len, window, scale_log2, first, last,
    D: tl.constexpr, N: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, MASKED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One pass of the running softmax over the key blocks ``first`` .. ``last`` − 1; ``heaviest``: the largest block's sum."""
    for block in tl.range(first, last, num_stages=STAGES, disable_licm=True):
        key_tile = k.load([b, kv_head, block * N, 0]).reshape(N, D)
        scores = tl.dot(query_tile, key_tile.T)
        if MASKED:
            keys = block * N + tl.arange(0, N)
            scores = tl.where(_seen(keys[None, :], queries[:, None], kv_len, window, CAUSAL, WINDOWED), scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, axis=1) * scale_log2)
        base = tl.where(higher == float("-inf"), 0.0, higher)  # a row that has seen nothing yet
        weights = tl.exp2(scores * scale_log2 - base[:, None])
        shrink = tl.exp2(highest - base)
        value_tile = v.load([b, kv_head, block * N, 0]).reshape(N, D)
        total = tl.dot(weights.to(value_tile.dtype), value_tile, total * shrink[:, None])
        block_sum = tl.sum(weights, axis=1)
        weight_sum = weight_sum * shrink + block_sum
        heaviest = tl.maximum(heaviest * shrink, block_sum)
        highest = higher
    return total, highest, weight_sum, heaviest


@triton.jit(do_not_specialize=SIZES)
def _attend(
    q, k, v, out, lse, norms, shares, reach, heads, kv_heads, q_len, kv_len, q_padded, window, scale,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, GROUP: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
    EVEN: tl.constexpr, SURVEY: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Output and log-sum-exp (natural) of one block of queries; q, k, v, out by descriptor."""
    blocks, key_blocks = tl.cdiv(q_len, M), tl.cdiv(kv_len, N)
    query = (blocks - 1 - tl.program_id(0)) * M  # causal: long programs first
    b, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    kv_head = head // GROUP
    shift = kv_len - q_len
    first, last = 0, key_blocks
    inner_first, inner_last = 0, last  # blocks that every query of this program sees whole
    if not EVEN:
        inner_last = kv_len // N
    if CAUSAL:
        last = tl.minimum(tl.cdiv(tl.maximum(query + M + shift, 0), N), last)
        inner_last = tl.minimum(tl.maximum(query + shift + 1, 0) // N, inner_last)
    if WINDOWED:
        first = tl.minimum(tl.maximum(query + shift - window + 1, 0) // N, last)
        inner_first = tl.cdiv(tl.maximum(query + M + shift - window, 0), N)
    inner_first = tl.minimum(tl.maximum(inner_first, first), last)
    inner_last = tl.maximum(inner_last, inner_first)
    rows = query + tl.arange(0, M)
    queries = rows + shift
    scale_log2 = scale * 1.4426950408889634
    query_tile = q.load([b, head, query, 0]).reshape(M, D)
    highest = tl.full((M,), float("-inf"), dtype=tl.float32)
    weight_sum, heaviest = tl.zeros((M,), dtype=tl.float32), tl.zeros((M,), dtype=tl.float32)
    total = tl.zeros((M, D), dtype=tl.float32)
    if WINDOWED:
        total, highest, weight_sum, heaviest = _walk(
            total, highest, weight_sum, heaviest, query_tile, k, v, b, kv_head, queries, kv_len, window, scale_log2,
            first, inner_first, D, N, CAUSAL, WINDOWED, True, STAGES,
        )  # fmt: skip
    total, highest, weight_sum, heaviest = _walk(
        total, highest, weight_sum, heaviest, query_tile, k, v, b, kv_head, queries, kv_len, window, scale_log2,
        inner_first, inner_last, D, N, CAUSAL, WINDOWED, False, STAGES,
    )  # fmt: skip
    if CAUSAL or not EVEN:
        total, highest, weight_sum, heaviest = _walk(
            total, highest, weight_sum, heaviest, query_tile, k, v, b, kv_head, queries, kv_len, window, scale_log2,
            inner_last, last, D, N, CAUSAL, WINDOWED, True, STAGES,
        )  # fmt: skip
    empty = weight_sum == 0.0
    total = tl.where(empty[:, None], 0.0, total / weight_sum[:, None])
    out.store([b, head, query, 0], total.to(out.dtype).reshape(1, 1, M, D))
    natural = tl.where(empty, float("-inf"), (highest + tl.log2(weight_sum)) * 0.6931471805599453)
    row = tl.program_id(1).to(tl.int64)
    tl.store(lse + row * q_len + rows, natural, mask=rows < q_len)
    if SURVEY:
        at = row * q_padded + rows
        tl.store(norms + at, _lengths(query_tile), mask=rows < q_padded)
        PARTS: tl.constexpr = SHARED // N if SHARED > N else 1
        share = heaviest / weight_sum * PARTS
        tl.store(shares + at, tl.where(empty, 0.0, share), mask=rows < q_padded)
        stride = tl.num_programs(1) // heads * kv_heads * key_blocks
        if head % GROUP == 0:
            reach += (b * kv_heads + kv_head) * key_blocks
            _survey_keys(k, v, reach, b, kv_head, stride, tl.program_id(0), blocks, key_blocks, D, N)


@triton.jit(do_not_specialize=SIZES)
def _survey(
    q, k, v, norms, shares, reach, heads, kv_heads, q_padded, key_blocks,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """What ``_attend`` writes with SURVEY, for a forward that was another's; of the shares nothing is known: 1."""
    query = tl.program_id(0) * M
    b, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    kv_head = head // GROUP
    query_tile = q.load([b, head, query, 0]).reshape(M, D)
    rows = query + tl.arange(0, M)
    at = tl.program_id(1).to(tl.int64) * q_padded + rows
    tl.store(norms + at, _lengths(query_tile), mask=rows < q_padded)
    tl.store(shares + at, tl.full((M,), 1.0, dtype=tl.float32), mask=rows < q_padded)
    stride = tl.num_programs(1) // heads * kv_heads * key_blocks
    if head % GROUP == 0:
        reach += (b * kv_heads + kv_head) * key_blocks
        _survey_keys(k, v, reach, b, kv_head, stride, tl.program_id(0), tl.num_programs(0), key_blocks, D, N)


def tiles(tensor: torch.Tensor, rows: int) -> TensorDescriptor:
    """A descriptor of [B, H, S, D] by tiles of ``rows`` × D. The tensor must suit it: see :func:`described`."""
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [1, 1, rows, tensor.shape[3]])


def described(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, copied where a descriptor can't address it (16-byte strides and base, last dimension contiguous)."""
    unit = 16 // tensor.element_size()
    strided = tensor.stride(3) == 1 and all(step > 0 and step % unit == 0 for step in tensor.stride()[:3])
    return tensor if strided and tensor.data_ptr() % 16 == 0 else tensor.contiguous()


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    scale: float,
    window: int | None = None,
    survey: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, Survey | None]:
    """Softmax(scale·q·kᵀ)·v, its log-sum-exp and, with ``survey``, the magnitudes that the exact backward needs.

    q [B, Hq, Sq, D], k, v [B, Hkv, Sk, D], bf16 or f16, D 64 or 128. Query i sees keys j ≤ i + Sk − Sq if ``causal``, of
    these the last ``window``. Returns out like q, lse [B, Hq, Sq] f32 (natural; −inf where a row sees nothing: then out is 0).
    """
    batch, heads, q_len, dim = q.shape
    kv_heads, kv_len = k.shape[1:3]
    q, k, v = described(q), described(k), described(v)
    options: dict[str, Any] = dict(config_for("attention.forward", dim, q))
    rows, keys = options["M"], options["N"]
    out = torch.empty_like(q)
    lse = torch.empty((batch, heads, q_len), dtype=torch.float32, device=q.device)
    q_padded, key_blocks = padded(q_len), triton.cdiv(kv_len, keys)
    found = None
    if survey:
        norms, shares = torch.empty((2, batch * heads, q_padded), dtype=torch.float32, device=q.device)
        found = Survey(norms, shares, torch.empty((2, batch * kv_heads, key_blocks), dtype=torch.float32, device=q.device))
    _attend[(triton.cdiv(q_len, rows), batch * heads)](
        tiles(q, rows), tiles(k, keys), tiles(v, keys), tiles(out, rows), lse, *(found or (lse, lse, lse)),
        heads, kv_heads, q_len, kv_len, q_padded, window or 0, scale,
        D=dim, GROUP=heads // kv_heads, CAUSAL=causal or window is not None, WINDOWED=window is not None,
        EVEN=kv_len % keys == 0, SURVEY=survey, **options, enable_fp_fusion=True
    )  # fmt: skip
    return out, lse, found


def survey_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Survey:
    """The survey alone: one pass over q, k and v, for a forward that took none."""
    batch, heads, q_len, dim = q.shape
    kv_heads, kv_len = k.shape[1:3]
    q, k, v = described(q), described(k), described(v)
    options: dict[str, Any] = dict(config_for("attention.survey", dim, q))
    rows, keys = options["M"], options["N"]
    q_padded, key_blocks = padded(q_len), triton.cdiv(kv_len, keys)
    norms, shares = torch.empty((2, batch * heads, q_padded), dtype=torch.float32, device=q.device)
    found = Survey(norms, shares, torch.empty((2, batch * kv_heads, key_blocks), dtype=torch.float32, device=q.device))
    _survey[(q_padded // rows, batch * heads)](
        tiles(q, rows), tiles(k, keys), tiles(v, keys), *found, heads, kv_heads, q_padded, key_blocks,
        D=dim, GROUP=heads // kv_heads, **options, enable_fp_fusion=True
    )  # fmt: skip
    return found
