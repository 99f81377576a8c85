"""gemm/grouped_wgrad: the weight gradients of a mixture's experts, one product per group of rows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from perfgate import Case, Op

op = Op(
    "gemm/grouped_wgrad",
    kind="external-lib",
    max_error=5e-2,
    bytes_moved=lambda case, _phase: 2 * (case.rows * (case.width + case.out) + case.groups * case.width * case.out),
    flops=lambda case, _phase: 2 * case.rows * case.width * case.out,
    tests=("tests/unit/workloads/test_stock_ops.py",),
)
op.cases(
    smoke=dict(rows=128, groups=4, width=32, out=64),
    small=dict(rows=4096, groups=8, width=1024, out=2048),
    typical=dict(rows=16384, groups=8, width=2048, out=8192),
    large=dict(rows=65536, groups=32, width=2048, out=8192),
    edge_skewed=dict(rows=16384, groups=8, width=2048, out=8192, skewed=True),
    edge_empty_groups=dict(rows=4096, groups=16, width=2048, out=2048, used=4),
)


@op.inputs
def inputs(case: Case, device: str, generator: Any) -> dict[str, Any]:
    """Inputs x [rows, width] and dy [rows, out] bf16; ends [groups] int32, where each group's rows end, in steps of 16."""
    import torch

    used = case.get("used", case.groups)
    share = [0.5**number if case.get("skewed") else 1.0 for number in range(used)]
    ends, reached = [], 0.0
    for one in share:
        reached += one / sum(share)
        ends.append(round(reached * case.rows / 16) * 16)
    ends += [case.rows] * (case.groups - used)
    ends[-1] = case.rows
    return {
        "x": torch.randn(case.rows, case.width, device=device, generator=generator).to(torch.bfloat16),
        "dy": torch.randn(case.rows, case.out, device=device, generator=generator).to(torch.bfloat16),
        "ends": torch.tensor(ends, dtype=torch.int32, device=device),
    }


@op.reference
def reference(x: dict[str, Any]) -> Any:
    """Group by group."""
    import torch

    bounds = pairwise([0, *x["ends"].tolist()])
    return torch.stack([x["x"][start:end].T @ x["dy"][start:end] for start, end in bounds])


@op.default("torch.grouped_mm")
def grouped_mm(x: dict[str, Any]) -> Any:
    import torch

    return torch._grouped_mm(x["x"].T, x["dy"], offs=x["ends"])


@op.stock_deterministic("torch.grouped_mm.deterministic")
def grouped_mm_deterministic(x: dict[str, Any]) -> Any:
    return grouped_mm(x)
