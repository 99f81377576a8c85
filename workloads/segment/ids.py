"""Distributions of segment ids that the ops share as inputs."""

from __future__ import annotations

from typing import Any


def make_ids(pattern: str, count: int, bins: int, device: str, generator: Any) -> Any:
    """``count`` ids below ``bins``, int64.

    Patterns: "random", "unique" (a permutation), "one" (all equal), "zipf" (exponent 1.1), "hot-K" (only K different ones).
    """
    import torch

    if pattern == "unique":
        return torch.randperm(bins, device=device, generator=generator)[:count]
    if pattern == "one":
        return torch.full((count,), bins // 2, device=device)
    if pattern == "zipf":
        weights = torch.arange(1, bins + 1, device=device, dtype=torch.float64).pow(-1.1)
        edges = (weights / weights.sum()).cumsum(0)
        drawn = torch.rand(count, device=device, dtype=torch.float64, generator=generator)
        return torch.searchsorted(edges, drawn).clamp(max=bins - 1)
    if pattern.startswith("hot-"):
        spread = bins // int(pattern[4:])
        return torch.randint(int(pattern[4:]), (count,), device=device, generator=generator) * spread
    if pattern == "random":
        return torch.randint(bins, (count,), device=device, generator=generator)
    raise ValueError(f"no id pattern {pattern!r}: random, unique, one, zipf or hot-K")
