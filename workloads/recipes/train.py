"""The training loop of every recipe: forward, backward, gradient norm with clipping, AdamW."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import perfgate

from .data import batches
from .kernels import kernels
from .model import build
from .scalars import Scalars
from .sizes import Size

CLIP = 1.0


def train(
    size: Size, chosen: Mapping[str, str], device: str, steps: int, seed: int, folder: Path | None
) -> list[dict[str, float]]:
    """Trains for ``steps`` steps and returns loss, cross entropy and gradient norm of each; writes them below ``folder``.

    ``chosen`` is the kernel of each op (table.py). The mode's switches (torch's flags, variables) are the caller's.
    """
    callables = kernels()
    used = {op: callables[op][kernel] for op, kernel in chosen.items()}
    model = build(size, used, device, seed)
    weights = list(model.parameters())
    optimizer = used["optimizer"](weights, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    with Scalars(folder) as scalars:
        for ids, targets in perfgate.steps(batches(size, steps, seed, device), tokens=size.tokens):
            total, loss = model(ids, targets)
            total.backward()
            with perfgate.range("grad_norm"):
                norm = used["grad_norm"](weights, CLIP)
            with perfgate.range("optimizer"):
                optimizer.step()
            scalars.add(loss=total, cross_entropy=loss, grad_norm=norm)
        return scalars.rows()
