"""Seeded tokens, made on the CPU: the same for every arm, run and card."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .sizes import Size


def batches(size: Size, steps: int, seed: int, device: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """``steps`` pairs of ids and next ids [B, L] int64 on ``device``.

    Ids are log-uniform, as words are: a few come often, so that their gradients are long sums, and there is something to learn.
    """
    for step in range(steps):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        uniform = torch.rand(size.batch, size.length + 1, generator=generator, dtype=torch.float64)
        ids = (size.vocab**uniform).long().sub_(1).clamp_(0, size.vocab - 1).to(device)
        yield ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
