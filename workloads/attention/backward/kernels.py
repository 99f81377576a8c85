"""Attention's backward. Five products per tile of keys × queries; dQ is summed over key blocks by bulk reductions.

A program owns a block of keys: it walks over the queries that see them, head after head of the group, queries rising, and keeps
dK and dV in registers; their order is fixed. dQ has one contribution per key block, and ``RULE`` says what becomes of it:

* 2, exact: each contribution is written as an integer number of a quantum of its row, and integers are added. Integer addition
  has no order: the bits are the same whoever comes first. The README proves that a contribution fits into 23 bits and the sum
  into 31. In bf16 dS is scaled before dQ's product, which then gives quanta; the scale is carried in Δ's last eight bits.
* 1, atomic: the contributions are added as they are, in arrival order: racy. The contender.
* 0: dQ is left to :func:`_query_blocks`, a second pass that owns a block of queries and walks over keys.

Scores are taken transposed (K·Qᵀ), so that no product takes the transpose of an accumulator: Triton from 3.4 until before
3.7.1 miscompiles that on Hopper.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from ...blocks.configs import config_for
from ..forward.kernels import SIZES, Survey, _log2_above, _seen, _squares, _two_to, described, survey_of, tiles
from ..shape import padded
from .quanta import ANCHOR_BITS, _anchored, _carrying, _counted, _exponents, _greatest, _in_quanta, _inverse

RULES = {"two_pass": 0, "atomic": 1, "exact": 2}


@triton.jit
def _query_range(
    first_key, shift, q_len, window, M: tl.constexpr, N: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr
):
    """First and last + 1 of the blocks of M queries that meet the block of N keys at ``first_key``."""
    first, last = 0, tl.cdiv(q_len, M)
    if CAUSAL:
        first = tl.maximum(first_key - shift, 0) // M
    if WINDOWED:
        last = tl.minimum(tl.cdiv(tl.maximum(first_key + N - 1 - shift + window, 0), M), last)
    return first, last


@triton.jit
def _key_range(query, shift, kv_len, window, M: tl.constexpr, N: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr):
    """First and last + 1 of the blocks of N keys that meet the block of M queries at ``query``: _query_range's inverse."""
    first, last = 0, tl.cdiv(kv_len, N)
    if CAUSAL:
        last = tl.minimum(tl.cdiv(tl.maximum(query + M + shift, 0), N), last)
    if WINDOWED:
        first = tl.maximum(query + shift - window + 1, 0) // N
    return first, last


@triton.jit
def _length(rows, inside, BLOCK: tl.constexpr, D: tl.constexpr):
    """Norms of 16-bit rows at these addresses, never too small; few columns at a time, for few registers."""
    squares = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in tl.range(0, D, 8, num_stages=1):
        values = tl.load(rows[:, None] + first + tl.arange(0, 8)[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
        squares += tl.sum(values * values, axis=1)
    return tl.sqrt(squares) + 8.7e-19  # 2^-60: what squares below 2^-126 come to


@triton.jit(do_not_specialize=SIZES)
def _prepare(
    q, out, grad_out, lse, shares, reach, lse2, delta, quantum, total,
    q_b, q_h, q_s, out_b, out_h, out_s, grad_b, grad_h, grad_s, heads, kv_heads, q_len, q_padded, key_blocks, scale,
    D: tl.constexpr, RULE: tl.constexpr, KEY_BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Per query: Δ = dO·O, log-sum-exp in base 2 and, to be exact, its row's quantum, whose inverse Δ carries.

    Clears its part of dQ's sum.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK
    head = tl.program_id(1).to(tl.int64)  # over batch × heads
    b, h = head // heads, head % heads
    rows = start + tl.arange(0, BLOCK)
    columns = tl.arange(0, D)
    inside = rows < q_len
    both = inside[:, None]
    at = head * q_padded + rows
    # everything is asked for before anything is waited for
    value = tl.load(out + b * out_b + h * out_h + rows[:, None] * out_s + columns[None, :], mask=both, other=0.0)
    gradient = tl.load(grad_out + b * grad_b + h * grad_h + rows[:, None] * grad_s + columns[None, :], mask=both, other=0.0)
    natural = tl.load(lse + head * q_len + rows, mask=inside, other=float("-inf"))
    if RULE == 2:
        blocks = tl.arange(0, KEY_BLOCKS)
        reach += (b * kv_heads + h // (heads // kv_heads)) * key_blocks + blocks
        value_norms = tl.load(reach, mask=blocks < key_blocks, other=0.0)
        kind = tl.num_programs(1) // heads * kv_heads * key_blocks
        key_sizes = tl.load(reach + kind, mask=blocks < key_blocks, other=0.0)
        query_sizes = tl.load(reach + 2 * kind, mask=blocks < key_blocks, other=0.0)
        heaviest = tl.load(shares + at, mask=inside, other=1.0)
    if RULE > 0:
        cells = head * q_padded * D + start * D + tl.arange(0, BLOCK * D)
        tl.store(total + cells, tl.zeros((BLOCK * D,), dtype=total.dtype.element_ty))
    gradient = gradient.to(tl.float32)
    mean = tl.sum(value.to(tl.float32) * gradient, axis=1)
    # a row that sees nothing has probability 0 everywhere: exp2(score − inf)
    tl.store(lse2 + at, tl.where(natural == float("-inf"), float("inf"), natural * 1.4426950408889634))
    if RULE == 2:
        value_norm, key_largest, query_largest = _greatest(value_norms, key_sizes, query_sizes)
        # no query and no key is longer than √D times its largest element; 2^-17 · log2(e) for D 128
        unit = scale * tl.sqrt(1.0 * D) * 1.1006882e-05 * key_largest
        most = unit * tl.sqrt(1.0 * D) * query_largest
        excess = tl.zeros((BLOCK,), dtype=tl.float32) + most
        if most > 0.0625:  # scores in the thousands may be somewhere: each row pays for its own query
            excess = _length(q + b * q_b + h * q_h + rows * q_s, inside, BLOCK, D) * unit
            excess = tl.where(natural == float("-inf"), 0.0, excess)  # what sees nothing pays nothing
        squares, halves = _squares(gradient)
        size = 0.5 * _log2_above(squares) + halves + tl.log2(value_norm)
        exponent, finite = _exponents(size, mean, key_largest, heaviest, excess)
        finite = finite & (squares < float("inf")) & (natural < float("inf")) & (tl.abs(mean) < float("inf"))  # false for NaN
        tl.store(quantum + at, tl.where(finite, _two_to(exponent) * scale, float("nan")))
        mean = _carrying(mean, tl.where(finite, (127 - exponent) >> 1, 0))
    tl.store(delta + at, mean)


@triton.jit
def _add(
    total, part, index,
    D: tl.constexpr, M: tl.constexpr, RULE: tl.constexpr, BULK: tl.constexpr, SCALED: tl.constexpr = False,
):  # fmt: skip
    """Adds a contribution [D, M], if exact counted or, SCALED, in quanta, to dQ's sum of the ``index``-th block of queries."""
    if SCALED:
        part = _anchored(part)
    if RULE == 2:
        part = part.to(tl.int32, bitcast=True)
    if BULK:
        total.atomic_add([index * D, 0], part)
    else:
        place = (index * D + tl.arange(0, D)).to(tl.int64)[:, None] * M + tl.arange(0, M)[None, :]
        tl.atomic_add(total + place, part, sem="relaxed")


@triton.jit(do_not_specialize=(*SIZES, "nowhere"))
def _key_blocks(
    q, k, v, grad_out, dk, dv, total, lse2, delta,
    heads, kv_heads, q_len, kv_len, q_padded, window, nowhere, scale,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, GROUP: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
    MASKED: tl.constexpr, RULE: tl.constexpr, BULK: tl.constexpr, LATE: tl.constexpr,
    TOGETHER: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One block of keys: its dK, dV, and contributions to dQ by ``RULE``; tensors by descriptor (``total`` only if BULK).

    Statistics lie in blocks of M queries. ``nowhere``: how many there are, over all heads; the block behind the last one.
    """
    SCALED: tl.constexpr = RULE == 2 and BULK and q.dtype == tl.bfloat16  # float16 has no room for dS over its quantum
    blocks = tl.cdiv(kv_len, N)
    # heads in bundles, so that what runs together shares queries in the cache; within a bundle long programs come first
    owners = tl.num_programs(0) // blocks
    bundle = tl.program_id(0) // (TOGETHER * blocks)
    within = tl.program_id(0) % (TOGETHER * blocks)
    size = tl.minimum(owners - bundle * TOGETHER, TOGETHER)  # the last bundle may hold fewer
    owner = bundle * TOGETHER + within % size  # over batch × kv_heads
    first_key = within // size * N
    b, kv_head = owner // kv_heads, owner % kv_heads
    shift = kv_len - q_len
    keys = first_key + tl.arange(0, N)
    first, last = _query_range(first_key, shift, q_len, window, M, N, CAUSAL, WINDOWED)
    count = tl.maximum(last - first, 0)
    key_tile = k.load([b, kv_head, first_key, 0]).reshape(N, D)
    value_tile = v.load([b, kv_head, first_key, 0]).reshape(N, D)
    key_gradient = tl.zeros((N, D), dtype=tl.float32)
    value_gradient = tl.zeros((N, D), dtype=tl.float32)
    part = tl.zeros((D, M), dtype=tl.float32)
    row_blocks = q_padded // M
    first_index = (b * heads + kv_head * GROUP) * row_blocks + first  # among the blocks of queries of all heads
    # no invariants out of the loop: each would hold a register that the accumulators need, and wgmma would wait for spills
    for step in tl.range(0, count * GROUP, num_stages=STAGES, disable_licm=True):
        if GROUP == 1:
            head, block, index = kv_head, first + step, first_index + step
            before = index - 1  # of the step before, if there is one
        else:
            turn = step // count
            within_head = step - turn * count
            head, block = kv_head * GROUP + turn, first + within_head
            index = first_index + turn * row_blocks + within_head
            before = index - 1 - tl.where(within_head == 0, row_blocks - count, 0)
        query = block * M
        query_tile = q.load([b, head, query, 0]).reshape(M, D)
        gradient_tile = grad_out.load([b, head, query, 0]).reshape(M, D)
        scores = tl.dot(key_tile, query_tile.T)
        slopes = tl.dot(value_tile, gradient_tile.T)
        if LATE:  # the part of the step before is added between products and softmax; of the first step there is none
            if BULK:  # dropped there; a branch would be moved behind all products
                _add(total, part, tl.where(step > 0, before, nowhere), D, M, RULE, BULK, SCALED)
            elif step > 0:
                _add(total, part, before, D, M, RULE, BULK, SCALED)
        weights = tl.exp2(scores * (scale * 1.4426950408889634) - lse2.load([index, 0]).reshape(M)[None, :])
        if MASKED:
            crossed = first_key + N > kv_len
            if CAUSAL:
                crossed = crossed | (query + shift < first_key + N - 1)
            if WINDOWED:
                crossed = crossed | (first_key <= query + M - 1 + shift - window)
            if crossed:
                queries = query + tl.arange(0, M) + shift
                weights = tl.where(_seen(keys[:, None], queries[None, :], kv_len, window, CAUSAL, WINDOWED), weights, 0.0)
        if LATE:  # dS is computed while dV's product runs
            value_gradient = tl.dot(weights.to(gradient_tile.dtype), gradient_tile, value_gradient)
        delta_row = delta.load([index, 0]).reshape(M)
        slopes = (weights * (slopes - delta_row[None, :])).to(query_tile.dtype)
        if not LATE:
            value_gradient = tl.dot(weights.to(gradient_tile.dtype), gradient_tile, value_gradient)
        quanta = slopes
        if SCALED and not LATE:
            quanta = _in_quanta(slopes, delta_row)
        key_gradient = tl.dot(slopes, query_tile, key_gradient)
        if RULE > 0:
            if SCALED and LATE:  # at D 128 the faster place
                quanta = _in_quanta(slopes, delta_row)
            part = tl.dot(key_tile.T, quanta)
            if RULE == 2 and not SCALED:
                part = _counted(part, _inverse(delta_row))
            if not LATE:
                _add(total, part, index, D, M, RULE, BULK, SCALED)
    if LATE:  # noqa: SIM102 - known at compile time
        if count > 0:
            _add(total, part, first_index + (GROUP - 1) * row_blocks + count - 1, D, M, RULE, BULK, SCALED)
    dk.store([b, kv_head, first_key, 0], (key_gradient * scale).to(dk.dtype).reshape(1, 1, N, D))
    dv.store([b, kv_head, first_key, 0], value_gradient.to(dv.dtype).reshape(1, 1, N, D))


@triton.jit(do_not_specialize=SIZES)
def _finish(
    total, quantum, dq, dq_b, dq_h, dq_s, heads, q_len, kv_len, q_padded, window, scale,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, RULE: tl.constexpr,
):  # fmt: skip
    """From its sum, which lies transposed ([D, M] per block of queries), to dQ; if exact, less an anchor per block of keys."""
    head = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    columns = tl.arange(0, D)
    cell = head * q_padded * D + tl.program_id(0) * M * D
    value = tl.load(total + cell + columns[:, None] * M + tl.arange(0, M)[None, :])
    if RULE == 2:
        first, last = _key_range(tl.program_id(0) * M, kv_len - q_len, kv_len, window, M, N, CAUSAL, WINDOWED)
        anchors = tl.mul(tl.maximum(last - first, 0), ANCHOR_BITS, sanitize_overflow=False)
        value = tl.sub(value, anchors, sanitize_overflow=False).to(tl.float32)
        value = value * tl.load(quantum + head * q_padded + rows)[None, :]
    else:
        value = value * scale
    place = dq + head // heads * dq_b + head % heads * dq_h + rows[:, None] * dq_s + columns[None, :]
    tl.store(place, value.T.to(dq.dtype.element_ty), mask=(rows < q_len)[:, None])


@triton.jit(do_not_specialize=SIZES)
def _query_blocks(
    q, k, v, grad_out, dq, lse2, delta, heads, q_len, kv_len, q_padded, window, scale,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, GROUP: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
    MASKED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The second pass: dQ of one block of queries, keys rising."""
    blocks = tl.cdiv(q_len, M)
    query = (blocks - 1 - tl.program_id(0)) * M  # causal: long programs first
    b, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    shift = kv_len - q_len
    first, last = _key_range(query, shift, kv_len, window, M, N, CAUSAL, WINDOWED)
    at = tl.program_id(1) * q_padded + query + tl.arange(0, M)
    lse2_row, delta_row = tl.load(lse2 + at), tl.load(delta + at)
    query_tile = q.load([b, head, query, 0]).reshape(M, D)
    gradient_tile = grad_out.load([b, head, query, 0]).reshape(M, D)
    total = tl.zeros((M, D), dtype=tl.float32)
    queries = query + tl.arange(0, M) + shift
    for block in tl.range(first, last, num_stages=STAGES, disable_licm=True):
        key_tile = k.load([b, head // GROUP, block * N, 0]).reshape(N, D)
        scores = tl.dot(query_tile, key_tile.T)
        weights = tl.exp2(scores * (scale * 1.4426950408889634) - lse2_row[:, None])
        if MASKED:
            crossed = (block + 1) * N > kv_len
            if CAUSAL:
                crossed = crossed | (query + shift < block * N + N - 1)
            if WINDOWED:
                crossed = crossed | (block * N <= query + M - 1 + shift - window)
            if crossed:
                keys = block * N + tl.arange(0, N)
                weights = tl.where(_seen(keys[None, :], queries[:, None], kv_len, window, CAUSAL, WINDOWED), weights, 0.0)
        value_tile = v.load([b, head // GROUP, block * N, 0]).reshape(N, D)
        slopes = tl.dot(gradient_tile, value_tile.T)
        slopes = (weights * (slopes - delta_row[:, None])).to(key_tile.dtype)
        total = tl.dot(slopes, key_tile, total)
    dq.store([b, head, query, 0], (total * scale).to(dq.dtype).reshape(1, 1, M, D))


def _prepared(
    q: torch.Tensor, k: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, grad_out: torch.Tensor, scale: float, rule: int,
    survey: Survey | None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """(lse2, delta, quantum), each [B·Hq, padded queries] f32, and dQ's cleared sum; the last two may be dummies.

    To be exact, ``delta`` carries 1/quantum in its last eight bits: see :func:`~workloads.attention.backward.quanta._inverse`.
    """
    batch, heads, q_len, dim = q.shape
    kv_heads, q_padded = k.shape[1], padded(q_len)
    lse2, delta, *rest = torch.empty((3 if rule == 2 else 2, batch * heads, q_padded), dtype=torch.float32, device=q.device)
    quantum = rest[0] if rest else delta
    total = delta
    if rule:
        kind = torch.int32 if rule == 2 else torch.float32
        total = torch.empty((batch * heads * q_padded * dim,), dtype=kind, device=q.device)
    shares, reach = survey or (delta, delta)
    key_blocks = reach.shape[2] if survey else 1
    options = config_for("attention.prepare", dim, q)
    _prepare[(q_padded // options["BLOCK"], batch * heads)](
        q, out, grad_out, lse, shares, reach, lse2, delta, quantum, total,
        *q.stride()[:3], *out.stride()[:3], *grad_out.stride()[:3], heads, kv_heads, q_len, q_padded, key_blocks, scale,
        D=dim, RULE=rule, KEY_BLOCKS=triton.next_power_of_2(key_blocks), **options, enable_fp_fusion=True
    )  # fmt: skip
    return lse2, delta, quantum, total


def backward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, grad_out: torch.Tensor, *,
    causal: bool, scale: float, window: int | None = None, rule: str = "exact", survey: Survey | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Gradients dq, dk, dv of the forward whose ``out`` and ``lse`` are given; ``rule`` is exact, atomic or two_pass.

    ``survey`` is the forward's; without it the exact rule takes it in a pass of its own, which knows nothing of probabilities:
    the quanta are then coarser, the bits others. grad_out like out. Nothing waits for the host. Workspace:
    ``shape.backward_bytes``. Bits of "exact" and "two_pass" depend on the inputs and on ``survey`` alone.
    """
    number = RULES[rule]
    batch, heads, q_len, dim = q.shape
    kv_heads, kv_len = k.shape[1:3]
    group, windowed = heads // kv_heads, window is not None
    q, k, v, grad_out = described(q), described(k), described(v), described(grad_out)
    out = out if out.stride(3) == 1 else out.contiguous()
    if number == 2 and survey is None:
        survey = survey_of(q, k, v)
    lse2, delta, quantum, total = _prepared(q, k, out, lse.contiguous(), grad_out, scale, number, survey)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    first = config_for("attention.backward_keys", dim, q) if number else config_for("attention.backward_keys_alone", dim, q)
    options: dict[str, Any] = dict(first)
    rows, keys = options["M"], options["N"]
    q_padded, masks = padded(q_len), {"CAUSAL": causal or windowed, "WINDOWED": windowed}
    owners = batch * kv_heads

    def statistics(values: torch.Tensor) -> TensorDescriptor:
        return TensorDescriptor(values, [values.numel() // rows, rows], [rows, 1], [1, rows])

    bulk, late = (bool(options.pop(name, False)) and number > 0 for name in ("BULK", "LATE"))
    if bulk:
        cells = total.view(-1, rows)
        target: Any = TensorDescriptor(cells, list(cells.shape), list(cells.stride()), [dim, rows])
    else:
        target = total
    _key_blocks[(triton.cdiv(kv_len, keys) * owners,)](
        tiles(q, rows), tiles(k, keys), tiles(v, keys), tiles(grad_out, rows), tiles(dk, keys), tiles(dv, keys), target,
        statistics(lse2), statistics(delta),
        heads, kv_heads, q_len, kv_len, q_padded, window or 0, lse2.numel() // rows, scale,
        D=dim, GROUP=group, MASKED=causal or windowed or kv_len % keys != 0, RULE=number, BULK=bulk, LATE=late,
        **masks, **options, enable_fp_fusion=True
    )  # fmt: skip
    if number:
        finish = config_for("attention.finish", dim, q)
        _finish[(q_padded // rows, batch * heads)](
            total, quantum, dq, *dq.stride()[:3], heads, q_len, kv_len, q_padded, window or 0, scale,
            D=dim, M=rows, N=keys, RULE=number, **masks, **finish, enable_fp_fusion=True
        )  # fmt: skip
        return dq, dk, dv
    second = config_for("attention.backward_queries", dim, q)
    rows, keys = second["M"], second["N"]
    _query_blocks[(triton.cdiv(q_len, rows), batch * heads)](
        tiles(q, rows), tiles(k, keys), tiles(v, keys), tiles(grad_out, rows), tiles(dq, rows), lse2, delta,
        heads, q_len, kv_len, q_padded, window or 0, scale,
        D=dim, GROUP=group, MASKED=causal or windowed or kv_len % keys != 0, **masks, **second, enable_fp_fusion=True
    )  # fmt: skip
    return dq, dk, dv
