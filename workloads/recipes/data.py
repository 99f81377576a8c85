"""Seeded tokens, made on the CPU: the same for every arm, run and card."""

from __future__ import annotations

import torch

from .sizes import Size


def batches(size: Size, steps: int, seed: int, device: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """``steps`` pairs of ids and next ids [B, L] int64, all on ``device`` before the first step: no step waits for a copy.

    Ids are log-uniform, as words are: a few come often, so that their gradients are long sums, and there is something to learn.
    """
    made = [_ids(size, seed * 1_000_003 + step).to(device) for step in range(steps)]
    return [(ids[:, :-1].contiguous(), ids[:, 1:].contiguous()) for ids in made]


def _ids(size: Size, seed: int) -> torch.Tensor:
    uniform = torch.rand(size.batch, size.length + 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (size.vocab**uniform).long().sub_(1).clamp_(0, size.vocab - 1)
