"""The state-space recurrence over chunks, as in Mamba-2's state-space duality (Dao and Gu 2024, arXiv 2405.21060, section 6).

``h[t] = exp(a[t])·h[t−1] + B[t] ⊗ x[t]``, ``y[t] = C[t]·h[t]``, per head. Within a chunk it is a masked matrix product like
attention; between chunks the states are combined by one small product with the chunks' total decays.
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def chunked_scan(x: Tensor, log_decay: Tensor, into: Tensor, out_of: Tensor, chunk: int) -> Tensor:
    """``y`` [B, L, H, P] of ``x`` [B, L, H, P], ``log_decay`` a [B, L, H] f32 (≤ 0), ``into`` B and ``out_of`` C [B, L, N].

    Products in the dtype of ``x``, decays in f32. L must be a multiple of ``chunk``.
    """
    batch, length, heads, width = x.shape
    chunks = length // chunk
    values = x.reshape(batch, chunks, chunk, heads, width).permute(0, 3, 1, 2, 4)  # [B, H, chunks, Q, P]
    keys = into.reshape(batch, 1, chunks, chunk, -1)
    queries = out_of.reshape(batch, 1, chunks, chunk, -1)
    total = log_decay.reshape(batch, chunks, chunk, heads).permute(0, 3, 1, 2).cumsum(-1)  # [B, H, chunks, Q]
    within = (queries @ keys.transpose(-1, -2)) * _decays(total, total, strictly=False).to(x.dtype)
    states = (values * (total[..., -1:] - total).exp()[..., None].to(x.dtype)).transpose(-1, -2) @ keys  # [B, H, chunks, P, N]
    entering = _entering(states, total[..., -1])
    across = (queries @ entering.transpose(-1, -2)) * total.exp()[..., None].to(x.dtype)
    return (within @ values + across).permute(0, 2, 3, 1, 4).reshape(batch, length, heads, width)


def _entering(states: Tensor, totals: Tensor) -> Tensor:
    """The state before each chunk: what the earlier chunks left, each decayed by the chunks between."""
    ends = totals.cumsum(-1)  # [B, H, chunks]: decay from the start to each chunk's end
    weights = _decays(ends - totals, ends, strictly=True).to(states.dtype)
    return (weights @ states.flatten(-2)).view(states.shape)


def _decays(to: Tensor, since: Tensor, *, strictly: bool) -> Tensor:
    """exp(``to``[i] − ``since``[j]) where j ≤ i (``strictly``: j < i), else 0."""
    size = to.shape[-1]
    earlier = torch.ones(size, size, dtype=torch.bool, device=to.device).tril(-1 if strictly else 0)
    return (to[..., :, None] - since[..., None, :]).masked_fill(~earlier, float("-inf")).exp()
