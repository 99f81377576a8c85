"""scan/cumsum: a long prefix sum in f32."""

from __future__ import annotations

from typing import Any

from perfgate import Case, Op

op = Op(
    "scan/cumsum",
    kind="torch-op",
    racy="the single-pass scan adds the sums of the tiles before it in whatever grouping has arrived",
    max_error=1e-3,
    bytes_moved=lambda case, _phase: 2 * case.count * 4,
    flops=lambda case, _phase: case.count,
    tests=("tests/unit/workloads/test_stock_ops.py",),
)
op.cases(
    smoke=dict(count=2**14),
    small=dict(count=2**20),
    typical=dict(count=2**26),
    large=dict(count=2**29),
    edge_odd=dict(count=2**24 + 1),
)


@op.inputs
def inputs(case: Case, device: str, generator: Any) -> dict[str, Any]:
    """Inputs x [count] f32 in 0 .. 1."""
    import torch

    return {"x": torch.rand(case.count, device=device, generator=generator)}


@op.reference
def reference(x: dict[str, Any]) -> Any:
    return x["x"].cumsum(0)


@op.default("torch.cumsum")
def cumsum(x: dict[str, Any]) -> Any:
    return x["x"].cumsum(0)


@op.stock_deterministic("torch.cumsum.deterministic")
def cumsum_deterministic(x: dict[str, Any]) -> Any:
    return cumsum(x)
