"""Embedding lookups whose backward sums the gradient's rows by id, in a fixed order or exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everywhere in the field

from ..blocks import checks
from ..blocks.exact.kernels import exact_sum
from ..blocks.segment.kernels import FLOATS, sum_atomically, sum_segments
from ..blocks.sort.kernels import radix_sort, stable_sort

Backward = Callable[[torch.Tensor, torch.Tensor, int, int, int], torch.Tensor]


def local_ids(ids: torch.Tensor, bins: int, first: int, padding: int) -> torch.Tensor:
    """``ids − first``, −1 where another shard owns the id or it is ``padding``."""
    return torch.where((ids >= first) & (ids < first + bins) & (ids != padding), ids - first, -1)


def fold_sorted(grad: torch.Tensor, ids: torch.Tensor, bins: int, first: int, padding: int) -> torch.Tensor:
    """The gradient [bins, D] of a lookup, in the dtype of ``grad`` [n, D]: counting sort and fixed-order fold in f32."""
    return sum_segments(grad, stable_sort(ids, bins, first, padding))


def fold_radix_sorted(grad: torch.Tensor, ids: torch.Tensor, bins: int, first: int, padding: int) -> torch.Tensor:
    """The same after torch's radix sort."""
    return sum_segments(grad, radix_sort(local_ids(ids, bins, first, padding), bins))


def add_exactly(grad: torch.Tensor, ids: torch.Tensor, bins: int, first: int, padding: int) -> torch.Tensor:
    """The same by atomics whose additions do not round, in f32, then rounded once."""
    return exact_sum(grad, local_ids(ids, bins, first, padding), bins).to(grad.dtype)


def add_atomically(grad: torch.Tensor, ids: torch.Tensor, bins: int, first: int, padding: int) -> torch.Tensor:
    """The same by packed atomics in the dtype of ``grad``, in arrival order: racy."""
    return sum_atomically(grad, local_ids(ids, bins, first, padding), bins)


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weight: torch.Tensor, ids: torch.Tensor, first: int | None, padding: int, backward: Backward
    ) -> torch.Tensor:
        ctx.save_for_backward(ids)
        ctx.options = (weight.shape[0], first or 0, padding)
        ctx.sum = backward
        if first is None:
            return F.embedding(ids, weight)
        foreign = (ids < first) | (ids >= first + weight.shape[0])
        return F.embedding((ids - first).masked_fill(foreign, 0), weight).masked_fill(foreign[..., None], 0.0)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (ids,) = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        if rows.stride(-1) != 1:
            rows = rows.contiguous()
        return ctx.sum(rows, ids.reshape(-1), *ctx.options), None, None, None, None


def embedding(
    weight: torch.Tensor, ids: torch.Tensor, first: int | None = None, padding: int = -1, backward: Backward = fold_sorted
) -> torch.Tensor:
    """Rows ``weight[ids]`` of a table, or ``weight[ids − first]`` of a vocabulary shard, differentiable in ``weight`` [V, D].

    ``ids`` of any shape (int32 or int64). Of a table (``first`` is ``None``) all ids must be its own, as F.embedding demands.
    Of a shard, ids outside ``first`` .. ``first + V − 1`` give zero rows and no gradient: they are dropped before the sort, not
    collapsed onto row 0. ``padding`` looks up its row but has no gradient. ``backward`` sums the gradient.
    Raises ``ValueError`` or ``TypeError`` for inputs that don't fit.
    """
    checks.require_shape("weight", weight, (None, None))
    checks.require_dtype("weight", weight, *FLOATS)
    checks.require_dtype("ids", ids, "int32", "int64")
    checks.require_same_device(weight=weight, ids=ids)
    result: torch.Tensor = _Lookup.apply(weight, ids, first, padding, backward)
    return result
