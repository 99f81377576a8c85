"""moe/permute: tokens' rows copied into expert order, and their gradients summed back."""

from __future__ import annotations

from typing import Any

from perfgate import Case, Op

from ...blocks.sort.shape import workspace_bytes
from ..routes import random_experts


def _rows(case: Case) -> int:
    rows: int = round(case.tokens * case.topk * (1 - case.get("drop", 0.0)))
    return rows


op = Op(
    "moe/permute",
    kind="triton",
    racy="the backward of index_select is index_add_, which adds a token's rows in arrival order",
    phases=("fwd", "bwd"),
    gradients=("hidden",),
    max_error=5e-2,
    bytes_moved=lambda case, _phase: (case.tokens + _rows(case)) * case.hidden * 2 + case.tokens * case.topk * 8,
    tests=("tests/unit/workloads/test_permute.py", "tests/gpu/test_kernels.py"),
)
op.cases(
    smoke=dict(tokens=64, hidden=128, topk=4, experts=16),
    small=dict(tokens=2048, hidden=2048, topk=8, experts=64),
    typical=dict(tokens=16384, hidden=2048, topk=8, experts=256),
    dsv3=dict(tokens=4096, hidden=7168, topk=8, experts=256),
    large=dict(tokens=32768, hidden=4096, topk=8, experts=128),
    edge_holes=dict(tokens=4096, hidden=2048, topk=8, experts=64, drop=0.2),
    edge_one_expert=dict(tokens=4096, hidden=2048, topk=1, experts=64, to=5),
    edge_odd_hidden=dict(tokens=4096, hidden=2880, topk=4, experts=160),
    edge_127_tokens=dict(tokens=127, hidden=2048, topk=8, experts=96),
)
op.suites(typical=("dsv3",), pr=("typical",))


@op.inputs
def inputs(case: Case, device: str, generator: Any) -> dict[str, Any]:
    """Hidden [T, H] bf16, ids [T, K] int64 (−1: dropped), and how many rows remain, as the dispatcher's capacity tells."""
    import torch

    ids = random_experts(case, device, generator)
    if case.get("to") is not None:
        ids.fill_(case.to)
    hidden = torch.randn(case.tokens, case.hidden, device=device, generator=generator).to(torch.bfloat16)
    return {"hidden": hidden, "ids": ids, "experts": case.experts, "count": int((ids >= 0).sum())}


@op.reference
def reference(x: dict[str, Any]) -> Any:
    """Expert by expert: the tokens that chose it, rising."""
    import torch

    tokens = torch.cat([(x["ids"] == expert).nonzero()[:, 0] for expert in range(x["experts"])])
    return x["hidden"][tokens], tokens


@op.default("torch.index_select")
def index_select(x: dict[str, Any]) -> Any:
    flat = x["ids"].flatten()
    order = flat.argsort(stable=True)[flat.numel() - x["count"] :]
    tokens = order // x["ids"].shape[1]
    return x["hidden"].index_select(0, tokens), tokens


@op.stock_deterministic("torch.index_select.deterministic")
def index_select_deterministic(x: dict[str, Any]) -> Any:
    return index_select(x)


def _workspace(case: Case) -> int:
    """The slots, or the sort that made them: its buffers are gone before the rows are allocated."""
    entries = case.tokens * case.topk
    rows: int = _rows(case) * (case.hidden * 2 + 8)
    sort: int = workspace_bytes(entries, case.experts)
    return int(max(entries * 4, sort - rows))


@op.champion("triton.counting_sort", backend="triton", workspace=_workspace)
def counting_sort(x: dict[str, Any]) -> Any:
    from .kernels import permute

    return permute(x["hidden"], x["ids"], x["experts"], x["count"])[:2]


@op.contender("triton.atomic_backward", backend="triton")
def atomic_backward(x: dict[str, Any]) -> Any:
    """The same forward; the backward adds with packed atomics."""
    from .kernels import permute

    return permute(x["hidden"], x["ids"], x["experts"], x["count"], atomic_backward=True)[:2]
