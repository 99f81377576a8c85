"""Routing without a scatter: top-k by rounds of comparison in registers, maps by comparing ids with columns."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ...blocks import checks
from ...blocks.configs import config_for

LOWEST = tl.constexpr(-2147483648)  # below every key: a column that is taken or not there


@triton.jit
def _key_of(value):
    """An int32 that orders as torch.topk does: NaN above all, −0 equal to +0."""
    bits = (value + 0.0).to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    key = tl.where(value == 0.0, 0, key)
    return tl.where(value != value, 0x7FFFFFFF, key)


@triton.jit
def _value_of(key):
    """The float of that key; NaN comes back as the canonical one, −0 as +0."""
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def _topk(scores, values, ids, tokens, experts, stride, K: tl.constexpr, PADDED: tl.constexpr, WIDTH: tl.constexpr,
          STABLE: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """K rounds: the highest key of the row, the lowest column that has it; then that column is taken out."""
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    slot = tl.arange(0, PADDED)
    inside = (token[:, None] < tokens) & (column[None, :] < experts)
    score = tl.load(scores + token.to(tl.int64)[:, None] * stride + column[None, :], mask=inside, other=0.0).to(tl.float32)
    key = tl.where(column[None, :] < experts, _key_of(score), LOWEST)
    best = tl.zeros((ROWS, PADDED), dtype=tl.int32)
    where = tl.zeros((ROWS, PADDED), dtype=tl.int32)
    for k in tl.static_range(K):
        if STABLE:
            highest = tl.max(key, axis=1)
            chosen = tl.min(tl.where(key == highest[:, None], column[None, :], WIDTH), axis=1)
        else:
            highest, chosen = tl.max(key, axis=1, return_indices=True, return_indices_tie_break_left=False)
        key = tl.where(column[None, :] == chosen[:, None], LOWEST, key)
        best = tl.where(slot[None, :] == k, highest[:, None], best)
        where = tl.where(slot[None, :] == k, chosen[:, None], where)
    place = token.to(tl.int64)[:, None] * K + slot[None, :]
    kept = (token[:, None] < tokens) & (slot[None, :] < K)
    tl.store(values + place, _value_of(best).to(values.dtype.element_ty), mask=kept)
    tl.store(ids + place, where.to(tl.int64), mask=kept)


@triton.jit
def _spread(values, ids, dense, dense_map, tokens, experts, K: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
            MAP: tl.constexpr):  # fmt: skip
    """dense[t, e] = values[t, k] where ids[t, k] is e, else 0: every element written once, by comparison; the last k wins."""
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    total = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    chosen = tl.zeros((ROWS, WIDTH), dtype=tl.int32)
    for k in tl.static_range(K):
        place = token.to(tl.int64) * K + k
        expert = tl.load(ids + place, mask=token < tokens, other=-1).to(tl.int32)
        value = tl.load(values + place, mask=token < tokens, other=0.0).to(tl.float32)
        hit = expert[:, None] == column[None, :]
        total = tl.where(hit, value[:, None], total)
        chosen = tl.where(hit, 1, chosen)
    inside = (token[:, None] < tokens) & (column[None, :] < experts)
    at = token.to(tl.int64)[:, None] * experts + column[None, :]
    tl.store(dense + at, total.to(dense.dtype.element_ty), mask=inside)
    if MAP:
        tl.store(dense_map + at, chosen.to(tl.int8), mask=inside)


@triton.jit
def _pick(dense, ids, values, entries, experts, stride, K: tl.constexpr, BLOCK: tl.constexpr):
    """values[t, k] = dense[t, ids[t, k]], 0 for an id of −1."""
    entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    expert = tl.load(ids + entry, mask=entry < entries, other=-1).to(tl.int64)
    value = tl.load(dense + (entry // K) * stride + expert, mask=(expert >= 0) & (expert < experts), other=0.0)
    tl.store(values + entry, value.to(values.dtype.element_ty), mask=entry < entries)


@triton.jit
def _spread_unordered(values, ids, dense, dense_map, entries, experts, K: tl.constexpr, BLOCK: tl.constexpr):
    """The scattering form of :func:`_spread` onto zeros: where a token names an expert twice, the store that is last wins."""
    entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    expert = tl.load(ids + entry, mask=entry < entries, other=-1).to(tl.int64)
    value = tl.load(values + entry, mask=entry < entries, other=0.0)
    hit = (expert >= 0) & (expert < experts)
    tl.store(dense + (entry // K) * experts + expert, value, mask=hit)
    tl.store(dense_map + (entry // K) * experts + expert, tl.full((BLOCK,), 1, tl.int8), mask=hit)


@triton.jit
def _count(ids, counts, entries, experts, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """A tile's histogram, added to the total as integers: order-free."""
    entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    expert = tl.load(ids + entry, mask=entry < entries, other=-1)
    expert = tl.where((expert >= 0) & (expert < experts), expert, WIDTH - 1).to(tl.int32)
    tile = tl.histogram(expert, WIDTH)
    column = tl.arange(0, WIDTH)
    tl.atomic_add(counts + column, tile.to(tl.int64), mask=(column < experts) & (tile > 0), sem="relaxed")


@triton.jit
def _count_one_by_one(ids, counts, entries, experts, BLOCK: tl.constexpr):
    """One atomic per id."""
    entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    expert = tl.load(ids + entry, mask=entry < entries, other=-1)
    one = tl.full((BLOCK,), 1, tl.int64)
    tl.atomic_add(counts + expert, one, mask=(expert >= 0) & (expert < experts), sem="relaxed")


def check_ids(ids: torch.Tensor, experts: int) -> None:
    """Raises ``ValueError``, ``TypeError`` or (under ``PERFGATE_CHECK_INPUTS``) ``IndexError`` for ids that don't fit."""
    checks.require_shape("ids", ids, (None, None))
    checks.require_dtype("ids", ids, "int32", "int64")
    checks.require_range("ids", ids, experts)


def spread(values: torch.Tensor, ids: torch.Tensor, experts: int, with_map: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``values`` [T, K] at the columns ``ids`` [T, K] of a dense [T, ``experts``], and (``with_map``) the boolean map.

    An id of −1 writes nothing. Every element is written once by its own token's program, so no zero fill and no race.
    """
    tokens, topk = ids.shape
    dense = torch.empty((tokens, experts), dtype=values.dtype, device=values.device)
    dense_map = torch.empty((tokens, experts), dtype=torch.bool, device=values.device) if with_map else None
    if dense.numel():
        options = config_for("moe.spread", experts, values)
        _spread[(triton.cdiv(tokens, options["ROWS"]),)](
            values.contiguous(), ids.contiguous(), dense, dense if dense_map is None else dense_map.view(torch.int8),
            tokens, experts, K=topk, WIDTH=triton.next_power_of_2(experts), MAP=with_map, **options,
        )  # fmt: skip
    return dense, dense_map


def pick(dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """``dense`` [T, E] at the columns ``ids`` [T, K], 0 for −1."""
    values = torch.empty(ids.shape, dtype=dense.dtype, device=dense.device)
    if values.numel():
        options = config_for("moe.pick", ids.numel(), dense)
        _pick[(triton.cdiv(ids.numel(), options["BLOCK"]),)](
            dense, ids.contiguous(), values, ids.numel(), dense.shape[1], dense.stride(0), K=ids.shape[1], **options
        )  # fmt: skip
    return values


class _TopK(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, k: int, stable: bool) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, experts = scores.shape
        values = torch.empty((tokens, k), dtype=scores.dtype, device=scores.device)
        ids = torch.empty((tokens, k), dtype=torch.int64, device=scores.device)
        if values.numel():
            options = config_for("moe.topk", experts, scores)
            _topk[(triton.cdiv(tokens, options["ROWS"]),)](
                scores, values, ids, tokens, experts, scores.stride(0), K=k, PADDED=triton.next_power_of_2(k),
                WIDTH=triton.next_power_of_2(experts), STABLE=stable, **options,
            )  # fmt: skip
        ctx.mark_non_differentiable(ids)
        ctx.set_materialize_grads(False)  # or autograd fills a zero gradient of ids in every backward
        ctx.save_for_backward(ids)
        ctx.experts = experts
        return values, ids

    @staticmethod
    def backward(ctx: Any, grad_values: torch.Tensor, _: Any) -> Any:
        if grad_values is None:
            return None, None, None
        return spread(grad_values, ctx.saved_tensors[0], ctx.experts, with_map=False)[0], None, None


def router_topk(scores: torch.Tensor, k: int, stable: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``k`` highest of each row of ``scores`` [T, E], falling: (values [T, k], ids [T, k] int64), differentiable.

    Equal scores go to the lower id (to any, unless ``stable``), NaN is above all (as in torch.topk), −0 equals +0 and comes
    back as +0, NaN as the canonical one. E at most 4096. Workspace: none. Raises ``ValueError`` or ``TypeError`` for inputs
    that don't fit.
    """
    checks.require_shape("scores", scores, (None, None))
    checks.require_dtype("scores", scores, "float32", "bfloat16", "float16")
    checks.require_rows("scores", scores)
    if not 0 < k <= scores.shape[1] <= 4096:
        raise ValueError(f"top-{k} of {scores.shape[1]} experts: 1 <= k <= experts <= 4096 is needed")
    result: tuple[torch.Tensor, torch.Tensor] = _TopK.apply(scores, k, stable)
    return result


class _RoutingMap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, probs: torch.Tensor, ids: torch.Tensor, experts: int) -> Any:
        dense, dense_map = spread(probs, ids, experts, with_map=True)
        ctx.mark_non_differentiable(dense_map)
        ctx.set_materialize_grads(False)  # or autograd fills a zero gradient of the map in every backward
        ctx.save_for_backward(ids)
        return dense, dense_map

    @staticmethod
    def backward(ctx: Any, grad_dense: torch.Tensor, _: Any) -> Any:
        if grad_dense is None:
            return None, None, None
        if grad_dense.stride(-1) != 1:
            grad_dense = grad_dense.contiguous()
        return pick(grad_dense, ctx.saved_tensors[0]), None, None


def routing_map(probs: torch.Tensor, ids: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Dense probabilities [T, E] and boolean map [T, E] of ``probs`` [T, K] at ``ids`` [T, K] (−1: dropped), differentiable.

    Where a token names an expert twice, the last one wins. E at most 4096. Workspace: none. Raises what :func:`check_ids` says.
    """
    check_ids(ids, experts)
    checks.require_shape("probs", probs, tuple(ids.shape))
    checks.require_dtype("probs", probs, "float32", "bfloat16", "float16")
    checks.require_same_device(probs=probs, ids=ids)
    if not 0 < experts <= 4096:
        raise ValueError(f"{experts} experts: 1 to 4096 are possible")
    result: tuple[torch.Tensor, torch.Tensor] = _RoutingMap.apply(probs, ids, experts)
    return result


def routing_map_scattered(probs: torch.Tensor, ids: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by storing onto zeros: racy where a token names an expert twice. No gradient."""
    dense = torch.zeros((ids.shape[0], experts), dtype=probs.dtype, device=probs.device)
    dense_map = torch.zeros((ids.shape[0], experts), dtype=torch.bool, device=probs.device)
    if ids.numel():
        options = config_for("moe.pick", ids.numel(), probs)
        _spread_unordered[(triton.cdiv(ids.numel(), options["BLOCK"]),)](
            probs.contiguous(), ids.contiguous(), dense, dense_map.view(torch.int8), ids.numel(), experts,
            K=ids.shape[1], **options,
        )  # fmt: skip
    return dense, dense_map


def tokens_per_expert(ids: torch.Tensor, experts: int) -> torch.Tensor:
    """How many of ``ids`` [T, K] name each expert, int64 [``experts``]; ids outside 0 .. ``experts`` − 1 are not counted."""
    check_ids(ids, experts)
    counts = torch.zeros((experts,), dtype=torch.int64, device=ids.device)
    if ids.numel():
        options = config_for("moe.count", experts, ids)
        _count[(triton.cdiv(ids.numel(), options["BLOCK"]),)](
            ids.contiguous(), counts, ids.numel(), experts, WIDTH=triton.next_power_of_2(experts + 1), **options
        )  # fmt: skip
    return counts


def tokens_per_expert_one_by_one(ids: torch.Tensor, experts: int) -> torch.Tensor:
    """The same with one atomic per id."""
    counts = torch.zeros((experts,), dtype=torch.int64, device=ids.device)
    if ids.numel():
        options = config_for("moe.pick", ids.numel(), ids)
        grid = (triton.cdiv(ids.numel(), options["BLOCK"]),)
        _count_one_by_one[grid](ids.contiguous(), counts, ids.numel(), experts, **options)
    return counts
