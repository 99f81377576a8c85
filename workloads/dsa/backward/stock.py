"""The forward, the backward by stock torch, and the float64 reference: plain tensor operations over a few queries at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

CHUNK_BYTES = 2**29  # gathered kv rows of the queries that are worked on at once


def chunk_of(queries: int, chosen: int, dim: int, element: int) -> int:
    """Queries worked on at once: their gathered rows, of ``element`` bytes each number, fill ``CHUNK_BYTES`` at most."""
    return max(1, min(queries, CHUNK_BYTES // max(1, chosen * dim * element)))


def chosen_rows(topk: Any, topk_length: Any, keys: int) -> Any:
    """The rows [S_q, K] int64, −1 where an entry chooses none: outside 0 .. keys − 1, or from its query's length on."""
    import torch

    kept = (topk >= 0) & (topk < keys)
    if topk_length is not None:
        kept &= torch.arange(topk.shape[1], device=topk.device) < topk_length[:, None]
    return torch.where(kept, topk.long(), -1)


def forward(q: Any, kv: Any, rows: Any, dim_v: int, scale: float) -> tuple[Any, Any]:
    """The forward's out [S_q, H, Dv] in the dtype of ``q`` and lse [S_q, H] f32 (+inf for a query without rows), in f32."""
    import torch

    out = torch.empty((*q.shape[:2], dim_v), dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    step = chunk_of(q.shape[0], rows.shape[1], q.shape[2], 4)
    for first in range(0, q.shape[0], step):
        part = slice(first, first + step)
        kept = (rows[part] >= 0)[:, None, :]
        k = kv[rows[part].clamp(min=0)].float()
        scores = (q[part].float() @ k.transpose(1, 2) * scale).masked_fill(~kept, float("-inf"))
        level = scores.logsumexp(dim=2)
        level = torch.where(kept.any(dim=2), level, float("inf"))
        p = torch.exp(scores - level[:, :, None])
        out[part] = (p @ k[:, :, :dim_v]).to(q.dtype)
        lse[part] = level
    return out, lse


def gradients(x: dict[str, Any], dtype: Any) -> Iterator[tuple[slice, Any, Any, Any, Any]]:
    """(queries, rows, dq, dS, P) of some queries at a time, computed in ``dtype``; dS and P are [queries, H, K]."""
    import torch

    q, kv, out, dout, lse, scale = (x[name] for name in ("q", "kv", "out", "dout", "lse", "scale"))
    rows = chosen_rows(x["topk"], x["topk_length"], kv.shape[0])
    step = chunk_of(q.shape[0], rows.shape[1], q.shape[2], torch.empty((), dtype=dtype).element_size())
    for first in range(0, q.shape[0], step):
        part = slice(first, first + step)
        k = kv[rows[part].clamp(min=0)].to(dtype)
        d = dout[part].to(dtype)
        p = torch.exp(q[part].to(dtype) @ k.transpose(1, 2) * scale - lse[part].to(dtype)[:, :, None])
        p = p * (rows[part] >= 0)[:, None, :]
        dp = d @ k[:, :, : d.shape[2]].transpose(1, 2)
        ds = p * (dp - (d * out[part].to(dtype)).sum(dim=2)[:, :, None]) * scale
        yield part, rows[part], ds @ k, ds, p


def backward(x: dict[str, Any], dtype: Any) -> tuple[Any, Any]:
    """(dq, dkv) in the dtype of q and kv: contributions in ``dtype``, added by ``index_add_`` a few queries at a time.

    Entries that choose no row are taken out first, which waits for the host.
    """
    import torch

    q, kv = x["q"], x["kv"]
    dq = torch.empty_like(q)
    sums = torch.zeros(kv.shape, dtype=dtype, device=kv.device)
    for part, rows, dq_part, ds, p in gradients(x, dtype):
        d = x["dout"][part].to(dtype)
        dq[part] = dq_part.to(q.dtype)
        contributions = ds.transpose(1, 2) @ q[part].to(dtype)
        contributions[:, :, : d.shape[2]] += p.transpose(1, 2) @ d
        kept = rows >= 0
        sums.index_add_(0, rows[kept], contributions[kept])
    return dq, sums.to(kv.dtype)


def mean_bound(x: dict[str, Any], tile: int) -> Any:
    """The mean bound on a contribution, [1] f32: ‖dS‖·max‖Q‖ + ‖P‖·max‖dO‖, norms over a tile of ``tile`` heads."""
    import torch

    total, count = torch.zeros((), dtype=torch.float64, device=x["q"].device), 0
    for part, rows, _, ds, p in gradients(x, torch.float32):
        kept = rows >= 0
        for first in range(0, x["q"].shape[1], tile):
            heads = slice(first, first + tile)
            q_norm, d_norm = (x[name][part, heads].float().norm(dim=1).amax(dim=1)[:, None] for name in ("q", "dout"))
            bound = ds[:, heads].norm(dim=1) * q_norm + p[:, heads].norm(dim=1) * d_norm
            total += bound[kept].double().sum()
            count += int(kept.sum())
    return (total / max(1, count)).float().reshape(1)
