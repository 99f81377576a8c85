"""Attention and its gradient in plain torch, in the dtype of the inputs (float64: the reference), one head at a time."""

from __future__ import annotations

from typing import Any

import torch

BLOCK = 2048  # queries at a time, so that 16384 × 16384 scores never exist at once


def mask(first: int, last: int, q_len: int, kv_len: int, causal: bool, window: int | None, device: Any) -> torch.Tensor | None:
    """What queries ``first`` .. ``last`` − 1 see, [last − first, kv_len] bool, aligned at the bottom right; None: all."""
    if not causal and window is None:
        return None
    queries = torch.arange(first, last, device=device)[:, None] + kv_len - q_len
    keys = torch.arange(kv_len, device=device)[None, :]
    seen = keys <= queries
    return seen if window is None else seen & (keys > queries - window)


def _probabilities(
    q: torch.Tensor, k: torch.Tensor, first: int, q_len: int, causal: bool, scale: float, window: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities [rows, Sk] and log-sum-exp [rows] of some queries of one head; a row that sees nothing: 0 and −inf."""
    scores = (q @ k.T) * scale
    seen = mask(first, first + q.shape[0], q_len, k.shape[0], causal, window, q.device)
    if seen is not None:
        scores.masked_fill_(~seen, float("-inf"))
    lse = torch.logsumexp(scores, dim=1)
    weights = torch.exp(scores - lse.masked_fill(lse == float("-inf"), 0.0)[:, None])
    return weights, lse


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float, window: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [B, Hq, Sq, D] and lse [B, Hq, Sq] of q [B, Hq, Sq, D] and k, v [B, Hkv, Sk, D]."""
    out, lse = torch.empty_like(q), torch.empty(q.shape[:3], dtype=q.dtype, device=q.device)
    group = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for first in range(0, q.shape[2], BLOCK):
                rows = slice(first, first + BLOCK)
                weights, lse[b, h, rows] = _probabilities(
                    q[b, h, rows], k[b, h // group], first, q.shape[2], causal, scale, window
                )
                out[b, h, rows] = weights @ v[b, h // group]
    return out, lse


def backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    grad_out: torch.Tensor,
    *,
    causal: bool,
    scale: float,
    window: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients dq, dk, dv."""
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    group = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            owner = h // group
            for first in range(0, q.shape[2], BLOCK):
                rows = slice(first, first + BLOCK)
                weights, _ = _probabilities(q[b, h, rows], k[b, owner], first, q.shape[2], causal, scale, window)
                slopes = grad_out[b, h, rows] @ v[b, owner].T
                slopes = weights * (slopes - (weights * slopes).sum(dim=1, keepdim=True)) * scale
                dv[b, owner] += weights.T @ grad_out[b, h, rows]
                dk[b, owner] += slopes.T @ q[b, h, rows]
                dq[b, h, rows] = slopes @ k[b, owner]
    return dq, dk, dv


class _Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, causal: bool, scale: float, window: int | None) -> torch.Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.rule = {"causal": causal, "scale": scale, "window": window}
        return forward(q, k, v, **ctx.rule)[0]

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor) -> Any:
        q, k, v = ctx.saved_tensors
        return (*backward(q, k, v, grad_out, **ctx.rule), None, None, None)


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float, window: int | None = None
) -> torch.Tensor:
    """:func:`forward`'s output, differentiable, without keeping any scores."""
    result: torch.Tensor = _Plain.apply(q, k, v, causal, scale, window)
    return result
