"""Combine by gathering: each token folds its own rows in slot order, so no two programs ever write one place."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ...blocks import checks
from ...blocks.configs import config_for

FLOATS = ("float32", "bfloat16", "float16")


@triton.jit
def _gather_forward(
    rows, probs, slots, out, hidden, stride, K: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """out[t] = Σ_k probs[s]·rows[s] with s = slots[t, k], in f32, k rising; a slot of −1 adds nothing; no probs: 1."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < hidden
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for k in tl.static_range(K):
        row = tl.load(slots + token * K + k).to(tl.int64)
        width = tl.where(row >= 0, hidden, 0)
        value = tl.load(rows + row * stride + columns, mask=columns < width, other=0.0).to(tl.float32)
        if WEIGHTED:
            value = tl.load(probs + row, mask=row >= 0, other=0.0).to(tl.float32) * value
        total += value
    tl.store(out + token * hidden + columns, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _gather_backward(
    grad_out, rows, probs, slots, grad_rows, grad_probs, hidden, stride, grad_stride,
    K: tl.constexpr, K_PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of token t, for each kept slot s: grad_rows[s] = probs[s]·grad_out[t] and grad_probs[s] = rows[s]·grad_out[t] (dot)."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.arange(0, K_PADDED)
    row = tl.load(slots + token * K + slot, mask=slot < K, other=-1).to(tl.int64)
    kept = row >= 0
    weight = tl.load(probs + row, mask=kept, other=0.0).to(tl.float32)
    dots = tl.zeros((K_PADDED, BLOCK), dtype=tl.float32)
    for start in tl.range(0, hidden, BLOCK, num_stages=3):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < hidden
        both = kept[:, None] & inside[None, :]
        gradient = tl.load(grad_out + token * grad_stride + columns, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(rows + row[:, None] * stride + columns[None, :], mask=both, other=0.0).to(tl.float32)
        dots += value * gradient[None, :]
        scaled = weight[:, None] * gradient[None, :]
        tl.store(grad_rows + row[:, None] * hidden + columns[None, :], scaled.to(grad_rows.dtype.element_ty), mask=both)
    tl.store(grad_probs + row, tl.sum(dots, axis=1).to(grad_probs.dtype.element_ty), mask=kept)


@triton.jit
def _scatter_atomic(
    rows, probs, token_of_row, out, hidden, stride, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The racy form: one program per row adds its weighted row to its token in arrival order."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < hidden
    token = tl.load(token_of_row + row)
    value = tl.load(rows + row * stride + columns, mask=inside, other=0.0).to(tl.float32)
    if WEIGHTED:
        value = tl.load(probs + row).to(tl.float32) * value
    tl.atomic_add(out + token * hidden + columns, value.to(out.dtype.element_ty), mask=inside, sem="relaxed")


def check_inputs(rows: torch.Tensor, probs: torch.Tensor, slots: torch.Tensor) -> None:
    """Raises ``ValueError``, ``TypeError`` or (under ``PERFGATE_CHECK_INPUTS``) ``IndexError`` for inputs that don't fit."""
    checks.require_shape("rows", rows, (None, None))
    checks.require_shape("probs", probs, (rows.shape[0],))
    checks.require_shape("slots", slots, (None, None))
    checks.require_dtype("rows", rows, *FLOATS)
    checks.require_dtype("probs", probs, *FLOATS)
    checks.require_dtype("slots", slots, "int32", "int64")
    checks.require_same_device(rows=rows, probs=probs, slots=slots)
    checks.require_rows("rows", rows)
    checks.require_range("slots", slots, rows.shape[0])


def sum_slots(rows: torch.Tensor, probs: torch.Tensor | None, slots: torch.Tensor) -> torch.Tensor:
    """The forward of :func:`combine` without checks and gradient; ``probs`` None adds the rows as they are."""
    tokens, topk = slots.shape
    hidden = rows.shape[1]
    out = rows.new_empty((tokens, hidden))
    if out.numel():
        options = config_for("moe.combine_forward", hidden, rows)
        # no fused multiply-add: the fold is then the documented one on every compiler, bit for bit
        _gather_forward[(tokens, triton.cdiv(hidden, options["BLOCK"]))](
            rows, rows if probs is None else probs, slots, out, hidden, rows.stride(0),
            K=topk, WEIGHTED=probs is not None, enable_fp_fusion=False, **options,
        )  # fmt: skip
    return out


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, probs: torch.Tensor, slots: torch.Tensor, every_row: bool) -> torch.Tensor:
        probs, slots = probs.contiguous(), slots.contiguous()
        out = sum_slots(rows, probs, slots)
        ctx.save_for_backward(rows, probs, slots)
        ctx.every_row = every_row
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor) -> Any:
        rows, probs, slots = ctx.saved_tensors
        tokens, topk = slots.shape
        hidden = rows.shape[1]
        if grad_out.stride(-1) != 1:
            grad_out = grad_out.contiguous()
        made = torch.empty if ctx.every_row else torch.zeros
        grad_rows = made(rows.shape, dtype=rows.dtype, device=rows.device)
        grad_probs = made(probs.shape, dtype=probs.dtype, device=probs.device)
        if tokens and hidden:
            options = config_for("moe.combine_backward", hidden, rows)
            _gather_backward[(tokens,)](
                grad_out, rows, probs, slots, grad_rows, grad_probs, hidden, rows.stride(0), grad_out.stride(0),
                K=topk, K_PADDED=triton.next_power_of_2(topk), enable_fp_fusion=False, **options
            )  # fmt: skip
        return grad_rows, grad_probs, None, None


def combine(rows: torch.Tensor, probs: torch.Tensor, slots: torch.Tensor, every_row: bool = False) -> torch.Tensor:
    """The weighted sum of each token's rows: ``out[t] = Σ_k probs[slots[t, k]] · rows[slots[t, k]]``, differentiable.

    ``rows`` [R, H] float in any order (experts' order), ``probs`` [R] the weight of each row, ``slots`` [T, K] int32 or int64:
    the row of each token's k-th choice, −1 where it was dropped. A row belongs to at most one slot. Returns [T, H] in the
    dtype of ``rows``; sums are f32, k rising, one rounding at the end. Workspace: none.

    ``every_row`` promises that each row is named by a slot, so that gradients need no zero fill first. Raises what
    :func:`check_inputs` says.
    """
    check_inputs(rows, probs, slots)
    result: torch.Tensor = _Combine.apply(rows, probs, slots, every_row)
    return result


def combine_atomic(rows: torch.Tensor, probs: torch.Tensor | None, token_of_row: torch.Tensor, tokens: int) -> torch.Tensor:
    """The same sum with packed atomics in the dtype of ``rows``, in arrival order: racy. ``token_of_row`` [R]. No gradient."""
    out = rows.new_zeros((tokens, rows.shape[1]))
    if rows.numel():
        options = config_for("moe.combine_atomic", rows.shape[1], rows)
        grid = (rows.shape[0], triton.cdiv(rows.shape[1], options["BLOCK"]))
        _scatter_atomic[grid](
            rows, rows if probs is None else probs, token_of_row, out, rows.shape[1], rows.stride(0),
            WEIGHTED=probs is not None, **options,
        )  # fmt: skip
    return out
