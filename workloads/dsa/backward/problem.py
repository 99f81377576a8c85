"""The inputs of a case: queries, kv rows, which rows each query chose, and the forward's results."""

from __future__ import annotations

from typing import Any

from perfgate import Case

from ...segment.ids import make_ids
from . import stock
from .shape import WORKSPACE, tile_of

DIM_V = 512  # columns of a row that are values too; what a head has beyond is the rotary part
SAMPLED = 64  # queries that stand for "the step before"


def choose(case: Case, device: str, generator: Any) -> Any:
    """The rows of each query, [queries, topk] int32, by ``case.pattern``.

    "random": distinct rows, anywhere (``keys`` a power of two). "local": the row at the query's own position and those before
    it, −1 before the first. "zipf": drawn with exponent 1.1, −1 instead of a row that the query already has. Then, where the
    case asks: ``duplicates`` (the second half repeats the first), ``hot`` (entry 0 of every query is one row), ``holes`` (that
    fraction −1), ``empty`` (that fraction of queries without any row).
    """
    import torch

    queries, keys, topk = case.queries, case.keys, case.topk
    entry = torch.arange(topk, device=device)
    if case.pattern == "random":
        order = torch.randperm(keys, device=device, generator=generator)
        start = torch.randint(keys, (queries, 1), device=device, generator=generator)
        step = torch.randint(keys, (queries, 1), device=device, generator=generator) * 2 + 1  # odd: no row twice
        rows = order[(start + step * entry) % keys]
    elif case.pattern == "local":
        position = (torch.arange(queries, device=device) + 1) * keys // queries - 1
        rows = (position[:, None] - entry).clamp(min=-1)
    elif case.pattern == "zipf":
        rows = make_ids("zipf", queries * topk, keys, device, generator).view(queries, topk)
        ordered, place = rows.sort(dim=1, stable=True)
        again = torch.zeros_like(rows, dtype=torch.bool)
        again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
        rows = torch.where(torch.zeros_like(again).scatter_(1, place, again), -1, rows)
    else:
        raise ValueError(f"no index pattern {case.pattern!r}: random, local or zipf")
    if case.get("duplicates"):
        rows[:, topk // 2 :] = rows[:, : topk - topk // 2]
    if case.get("hot"):
        rows[:, 0] = keys // 2
    if case.get("holes"):
        rows[torch.rand(rows.shape, device=device, generator=generator) < case.holes] = -1
    if case.get("empty"):
        rows[torch.rand(queries, device=device, generator=generator) < case.empty] = -1
    return rows.to(torch.int32).contiguous()


def make(case: Case, device: str, generator: Any) -> dict[str, Any]:
    """What the backward takes; layouts are those of cuDNN frontend's interface, so that nobody copies.

    ``reach`` is what a step before of the same scale would have left: four times the mean bound of the first queries'
    contributions.
    """
    import torch

    def normal(*shape: int) -> Any:
        return torch.randn(shape, device=device, generator=generator).to(torch.bfloat16)

    dim_v = min(DIM_V, case.get("dim_v", DIM_V))
    q, kv = normal(case.queries, case.heads, case.dim), normal(case.keys, case.dim)
    topk = choose(case, device, generator)
    length = None
    if case.get("lengths"):
        length = torch.randint(case.topk + 1, (case.queries,), device=device, generator=generator).to(torch.int32)
    scale = case.dim**-0.5
    out, lse = stock.forward(q, kv, stock.chosen_rows(topk, length, case.keys), dim_v, scale)
    x = {
        "q": q, "kv": kv, "topk": topk, "topk_length": length, "out": out, "lse": lse, "scale": scale,
        "dout": normal(case.queries, case.heads, dim_v),
        "sink": torch.full((case.heads,), float("-inf"), device=device),
        "max_workspace": case.get("max_workspace", WORKSPACE),
    }  # fmt: skip
    spread = slice(None, None, max(1, case.queries // SAMPLED))  # the first have few rows each where all are local
    sample = {name: x[name][spread] for name in ("q", "topk", "out", "lse", "dout")}
    sample |= {"kv": kv, "scale": scale, "topk_length": None if length is None else length[spread]}
    return {**x, "reach": 4 * stock.mean_bound(sample, tile_of(case.heads))}
