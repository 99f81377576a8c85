"""Random routings that the MoE ops share as inputs."""

from __future__ import annotations

from typing import Any


def random_experts(case: Any, device: str, generator: Any) -> Any:
    """Expert ids [tokens, topk] int64, distinct per token; −1 where ``case.drop`` (a fraction) drops a choice."""
    import torch

    scores = torch.rand(case.tokens, case.experts, device=device, generator=generator)
    ids = scores.topk(case.topk, dim=1).indices
    if case.get("drop"):
        ids = ids.masked_fill(torch.rand(ids.shape, device=device, generator=generator) < case.drop, -1)
    return ids


def expert_order(ids: Any) -> tuple[Any, Any]:
    """Rows in expert order, tokens rising within an expert: (slots [T, K] int32 with −1 for dropped, token of each row [R])."""
    import torch

    flat = ids.flatten()
    order = torch.argsort(flat, stable=True)[int((flat < 0).sum()) :]
    slots = torch.full(flat.shape, -1, dtype=torch.int32, device=ids.device)
    slots[order] = torch.arange(order.numel(), dtype=torch.int32, device=ids.device)
    return slots.view(ids.shape), order // ids.shape[1]
