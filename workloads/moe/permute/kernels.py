"""Permute: positions from a stable counting sort of expert ids, rows copied once per slot, gradients gathered back."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ...blocks import checks
from ...blocks.configs import config_for
from ...blocks.sort.kernels import stable_sort
from ..combine.kernels import FLOATS, combine_atomic, sum_slots


@triton.jit
def _copy_rows(hidden, slots, out, token_of_row, width, stride, count, K: tl.constexpr, BLOCK: tl.constexpr):
    """Reads a token's row once and writes it to each of its slots below ``count``; no slot is written twice."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(hidden + token * stride + columns, mask=columns < width, other=0.0)
    for k in tl.static_range(K):
        row = tl.load(slots + token * K + k).to(tl.int64)
        limit = tl.where((row >= 0) & (row < count), width, 0)
        tl.store(out + row * width + columns, value, mask=columns < limit)
        if tl.program_id(1) == 0:
            tl.store(token_of_row + row, token, mask=(row >= 0) & (row < count))


class _Permute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, slots: torch.Tensor, count: int, atomic: bool) -> Any:
        tokens, topk = slots.shape
        width = hidden.shape[1]
        out = hidden.new_empty((count, width))
        token_of_row = torch.empty((count,), dtype=torch.int64, device=hidden.device)
        if out.numel():
            options = config_for("moe.copy_rows", width, hidden)
            _copy_rows[(tokens, triton.cdiv(width, options["BLOCK"]))](
                hidden, slots, out, token_of_row, width, hidden.stride(0), count, K=topk, **options
            )  # fmt: skip
        ctx.mark_non_differentiable(token_of_row)
        ctx.set_materialize_grads(False)  # or autograd fills a zero gradient of token_of_row in every backward
        ctx.save_for_backward(slots, token_of_row)
        ctx.atomic = atomic
        return out, token_of_row

    @staticmethod
    def backward(ctx: Any, grad_rows: torch.Tensor, _: Any) -> Any:
        slots, token_of_row = ctx.saved_tensors
        if grad_rows is None:
            return None, None, None, None
        if grad_rows.stride(-1) != 1:
            grad_rows = grad_rows.contiguous()
        if ctx.atomic:
            return combine_atomic(grad_rows, None, token_of_row, slots.shape[0]), None, None, None
        return sum_slots(grad_rows, None, slots), None, None, None


def permute(
    hidden: torch.Tensor, ids: torch.Tensor, experts: int, count: int | None = None, atomic_backward: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows of ``hidden`` [T, H] in expert order: (rows [R, H], token of each row [R] int64, slots [T, K] int32).

    ``ids`` [T, K] (int32 or int64) name each token's experts, −1: dropped. R is ``count``, by default T·K; a caller that drops
    must name how many remain, since the host does not know. Within an expert tokens rise, then k. ``slots[t, k]`` is the row of
    that choice, −1 where it was dropped: what :func:`~..combine.kernels.combine` takes. Differentiable in ``hidden``: a token's
    gradient is the sum of its rows' in f32, k rising (``atomic_backward``: in arrival order, racy).
    Workspace: that of the sort. Raises ``ValueError`` or ``TypeError`` for inputs that don't fit.
    """
    checks.require_shape("hidden", hidden, (None, None))
    checks.require_shape("ids", ids, (hidden.shape[0], None))
    checks.require_dtype("hidden", hidden, *FLOATS)
    checks.require_dtype("ids", ids, "int32", "int64")
    checks.require_same_device(hidden=hidden, ids=ids)
    checks.require_rows("hidden", hidden)
    places = stable_sort(ids.reshape(-1), experts, with_places=True).places
    assert places is not None  # noqa: S101 - asked for
    slots = places.view(ids.shape)
    rows, token_of_row = _Permute.apply(hidden, slots, ids.numel() if count is None else count, atomic_backward)
    return rows, token_of_row, slots
