"""Attention's forward: one program per block of queries walks over its keys with a running softmax; nothing is split or added.

With ``SURVEY`` it also writes down what the backward's proof needs and would have to read q, k and v once more for: the shares
of queries, and, by programs of its own behind all others, the largest ‖V_j‖, |K_jd| and |q_id|.
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
LANES = tl.constexpr(8)  # columns of scores that a matrix product leaves with different threads or registers
SIZES = ("heads", "kv_heads", "q_len", "kv_len", "window", "key_blocks", "owners", "surveyors")  # one binary for all of them


class Survey(NamedTuple):
    """Magnitudes in f32: ``shares`` [B·Hq, padded queries], ``reach`` [3, B·Hkv, parts].

    No block of :data:`~workloads.attention.shape.SHARED` keys, counted from the first key, has more than its share of a query's
    probability; 0 where a query sees nothing. ``reach`` holds the largest ‖V_j‖ and |K_jd| of each part of the keys, NaN where
    it holds NaN or Inf, and the largest |q_id| of a part of the group's queries, of finite ones alone; 0 where there is none.
    All parts together are all keys and queries.
    """

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
def _magnitudes(tile):
    """|element| of a 16-bit matrix as integers in the same order; those of NaN and Inf are larger than any number's."""
    return tile.to(tl.int16, bitcast=True) & 0x7FFF


@triton.jit
def _largest(bits, dtype):
    """Of integers from :func:`_magnitudes` the largest, as f32."""
    bits = tl.max(tl.max(bits, axis=0).to(tl.int32), axis=0)
    return bits.to(tl.int16).to(dtype, bitcast=True).to(tl.float32)


@triton.jit
def _largest_finite(q, b, head, first, step, blocks, D: tl.constexpr, M: tl.constexpr, STAGES: tl.constexpr):
    """The largest finite |element| of every ``step``-th block of M queries, 0 if there is none.

    The unit of the exponent added, NaN and Inf overflow to below what zero becomes.
    """
    UNIT: tl.constexpr = 0x80 if q.dtype == tl.bfloat16 else 0x400
    bits = tl.full((M, D), UNIT, dtype=tl.int16)
    for block in tl.range(first, blocks, step, num_stages=STAGES):
        tile = q.load([b, head, block * M, 0]).reshape(M, D).to(tl.int16, bitcast=True)
        bits = tl.maximum(bits, tl.add(tile, UNIT, sanitize_overflow=False).to(tl.int16) & 0x7FFF)
    return _largest(bits - UNIT, q.dtype)


@triton.jit
def _longest(v, b, kv_head, first, step, blocks, D: tl.constexpr, N: tl.constexpr):
    """The largest ‖V_j‖ of every ``step``-th block of N keys, at any magnitude; NaN if an element is NaN or Inf."""
    longest = 0.0
    for block in tl.range(first, blocks, step, num_stages=1):
        values = v.load([b, kv_head, block * N, 0]).reshape(N, D)
        largest = _largest(_magnitudes(values), v.dtype)
        exponent, down = _near_one(largest)  # one for the block: of rows far below the largest element nothing is needed
        scaled = values.to(tl.float32) * down
        found = tl.sqrt(tl.max(tl.sum(scaled * scaled, axis=1), axis=0)) * _two_to(exponent)
        longest = tl.where(largest < float("inf"), tl.maximum(longest, found), float("nan")) + longest * 0.0
    return longest


@triton.jit
def _survey_part(
    q, k, v, reach, heads, kv_heads, q_len, kv_len, owner, owners, surveyor, surveyors,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, GROUP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The largest ‖V_j‖, |K_jd| and |q_id| of the blocks that fall to one of the ``surveyors`` of the head ``owner``.

    The heads of a group share their keys out; each head's own share its queries.

    ``V·Vᵀ`` holds all ‖V_j‖² on its diagonal, and elsewhere nothing larger (Cauchy-Schwarz): its largest element is theirs, and
    no row has to be summed. Maxima stay where they are in registers until the last block.
    """
    b, head = owner // heads, owner % heads
    kv_head, parts = head // GROUP, GROUP * surveyors
    part, blocks = head % GROUP * surveyors + surveyor, tl.cdiv(kv_len, N)
    key_bits = tl.zeros((N, D), dtype=tl.int16)
    square_bits = tl.zeros((N,), dtype=tl.int32)
    for block in tl.range(part, blocks, parts, num_stages=STAGES):
        key_tile = k.load([b, kv_head, block * N, 0]).reshape(N, D)
        values = v.load([b, kv_head, block * N, 0]).reshape(N, D)
        products = tl.dot(values, values.T)
        key_bits = tl.maximum(key_bits, _magnitudes(key_tile))
        square_bits = tl.maximum(square_bits, tl.max(products.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1))
    key_largest = _largest(key_bits, k.dtype)
    square = tl.max(square_bits, axis=0).to(tl.float32, bitcast=True)
    longest = tl.sqrt(square)
    if not ((square > 1e-20) & (square < 1e30)):  # squares may have under- or overflowed; or NaN
        longest = _longest(v, b, kv_head, part, parts, blocks, D, N)
    reach += (b * kv_heads + kv_head) * parts + part
    tl.store(reach, longest)
    row = owners // GROUP * parts
    tl.store(reach + row, key_largest + key_largest * 0.0)
    tl.store(reach + 2 * row, _largest_finite(q, b, head, surveyor, surveyors, tl.cdiv(q_len, M), D, M, STAGES))


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
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, MASKED: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """One pass of the running softmax over the key blocks ``first`` .. ``last`` − 1.

    ``weight_sum`` and ``heaviest`` [M, LANES]: columns that lie LANES apart are summed, as no two threads share them; of the
    sums of two neighbours the largest block's is kept, with each of the two.
    """
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
        sums = tl.sum(weights.reshape(M, N // LANES, LANES), axis=1)
        weight_sum = weight_sum * shrink[:, None] + sums
        pairs = tl.sum(sums.reshape(M, LANES // 2, 2), axis=2)
        sums = tl.broadcast_to(pairs[:, :, None], (M, LANES // 2, 2)).reshape(M, LANES)
        heaviest = tl.maximum(heaviest * shrink[:, None], sums)
        highest = higher
    return total, highest, weight_sum, heaviest


@triton.jit
def _attend_block(
    q, k, v, out, lse, shares, heads, owner, block, q_len, kv_len, q_padded, window, scale,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, GROUP: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
    EVEN: tl.constexpr, SURVEY: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Output and log-sum-exp of the ``block``-th block of M queries of the head ``owner``; with SURVEY their shares."""
    key_blocks = tl.cdiv(kv_len, N)
    query = block * M
    b, head = owner // heads, owner % heads
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
    weight_sum, heaviest = tl.zeros((M, LANES), dtype=tl.float32), tl.zeros((M, LANES), dtype=tl.float32)
    total = tl.zeros((M, D), dtype=tl.float32)
    if WINDOWED:
        total, highest, weight_sum, heaviest = _walk(
            total, highest, weight_sum, heaviest, query_tile, k, v, b, kv_head, queries, kv_len, window, scale_log2,
            first, inner_first, D, M, N, CAUSAL, WINDOWED, True, STAGES,
        )  # fmt: skip
    total, highest, weight_sum, heaviest = _walk(
        total, highest, weight_sum, heaviest, query_tile, k, v, b, kv_head, queries, kv_len, window, scale_log2,
        inner_first, inner_last, D, M, N, CAUSAL, WINDOWED, False, STAGES,
    )  # fmt: skip
    if CAUSAL or not EVEN:
        total, highest, weight_sum, heaviest = _walk(
            total, highest, weight_sum, heaviest, query_tile, k, v, b, kv_head, queries, kv_len, window, scale_log2,
            inner_last, last, D, M, N, CAUSAL, WINDOWED, True, STAGES,
        )  # fmt: skip
    weight_sum = tl.sum(weight_sum, axis=1)
    inverse = 1.0 / weight_sum
    total *= inverse[:, None]
    natural = (highest + tl.log2(weight_sum)) * 0.6931471805599453
    share = tl.sum(heaviest, axis=1) * inverse * 0.5  # each pair is there twice
    if CAUSAL:  # noqa: SIM102 - known at compile time
        if query + shift < 0:  # rows that see no key; one that sees some and has no weights, as all scores are -inf, gets NaN
            total = tl.where(queries[:, None] < 0, 0.0, total)
            natural = tl.where(queries < 0, float("-inf"), natural)
            share = tl.where(queries < 0, 0.0, share)
    out.store([b, head, query, 0], total.to(out.dtype).reshape(1, 1, M, D))
    row = owner.to(tl.int64)
    tl.store(lse + row * q_len + rows, natural, mask=rows < q_len)
    if SURVEY:
        at = row * q_padded + rows
        PARTS: tl.constexpr = SHARED // N if SHARED > N else 1
        tl.store(shares + at, share * PARTS, mask=rows < q_padded)


@triton.jit(do_not_specialize=SIZES)
def _attend(
    q, k, v, out, lse, shares, reach, heads, kv_heads, owners, q_len, kv_len, q_padded, window, surveyors, scale,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, GROUP: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
    EVEN: tl.constexpr, SURVEY: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Output and log-sum-exp (natural) of all heads, ``owners``; q, k, v, out by descriptor. Those who survey come last."""
    blocks = tl.cdiv(q_len, M)
    owner, block = tl.program_id(0) // blocks, blocks - 1 - tl.program_id(0) % blocks  # causal: long programs first
    if SURVEY:
        if owner >= owners:
            number = tl.program_id(0) - owners * blocks
            owner = number // surveyors
            _survey_part(
                q, k, v, reach, heads, kv_heads, q_len, kv_len, owner, owners, number % surveyors, surveyors,
                D, M, N, GROUP, STAGES,
            )  # fmt: skip
        else:
            _attend_block(
                q, k, v, out, lse, shares, heads, owner, block, q_len, kv_len, q_padded, window, scale,
                D, M, N, GROUP, CAUSAL, WINDOWED, EVEN, SURVEY, STAGES,
            )  # fmt: skip
    else:
        _attend_block(
            q, k, v, out, lse, shares, heads, owner, block, q_len, kv_len, q_padded, window, scale,
            D, M, N, GROUP, CAUSAL, WINDOWED, EVEN, SURVEY, STAGES,
        )  # fmt: skip


@triton.jit(do_not_specialize=SIZES)
def _survey(
    q, k, v, shares, reach, heads, kv_heads, q_len, kv_len, q_padded,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """What ``_attend`` writes with SURVEY, for a forward that was another's; of the shares nothing is known: 1."""
    at = tl.program_id(1).to(tl.int64) * q_padded + tl.program_id(0) * M + tl.arange(0, M)
    tl.store(shares + at, tl.full((M,), 1.0, dtype=tl.float32))
    _survey_part(
        q, k, v, reach, heads, kv_heads, q_len, kv_len, tl.program_id(1), tl.num_programs(1),
        tl.program_id(0), tl.num_programs(0), D, M, N, GROUP, 2,
    )  # fmt: skip


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
    q_padded, group, surveyors = padded(q_len), heads // kv_heads, 0
    found = None
    if survey:
        surveyors = shape.surveyors(q_len, kv_len, group)
        shares = torch.empty((batch * heads, q_padded), dtype=torch.float32, device=q.device)
        reach = torch.empty((3, batch * kv_heads, surveyors * group), dtype=torch.float32, device=q.device)
        found = Survey(shares, reach)
    _attend[(batch * heads * (triton.cdiv(q_len, rows) + surveyors),)](
        tiles(q, rows), tiles(k, keys), tiles(v, keys), tiles(out, rows), lse, *(found or (lse, lse)),
        heads, kv_heads, batch * heads, q_len, kv_len, q_padded, window or 0, surveyors, scale,
        D=dim, GROUP=group, CAUSAL=causal or window is not None, WINDOWED=window is not None,
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
    q_padded, group = padded(q_len), heads // kv_heads
    programs = q_padded // rows
    shares = torch.empty((batch * heads, q_padded), dtype=torch.float32, device=q.device)
    reach = torch.empty((3, batch * kv_heads, programs * group), dtype=torch.float32, device=q.device)
    _survey[(programs, batch * heads)](
        tiles(q, rows), tiles(k, keys), tiles(v, keys), shares, reach, heads, kv_heads, q_len, kv_len, q_padded,
        D=dim, GROUP=group, **options, enable_fp_fusion=True
    )  # fmt: skip
    return Survey(shares, reach)
