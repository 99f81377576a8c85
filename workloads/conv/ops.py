"""conv/causal_conv1d: the backward of a short depthwise convolution over time."""

from __future__ import annotations

from typing import Any

from perfgate import Case, Op

op = Op(
    "conv/causal_conv1d",
    kind="external-lib",
    phases=("bwd",),
    gradients=("x", "weight"),
    max_error=5e-2,
    bytes_moved=lambda case, _phase: 3 * case.batch * case.channels * case.length * 2,
    tests=("tests/unit/workloads/test_stock_ops.py",),
)
op.cases(
    smoke=dict(batch=1, channels=16, length=64, taps=4),
    small=dict(batch=2, channels=1024, length=1024, taps=4),
    typical=dict(batch=2, channels=4096, length=4096, taps=4),
    large=dict(batch=4, channels=8192, length=8192, taps=4),
    edge_short=dict(batch=16, channels=4096, length=512, taps=4),
    edge_two_taps=dict(batch=2, channels=4096, length=4096, taps=2),
)


@op.inputs
def inputs(case: Case, device: str, generator: Any) -> dict[str, Any]:
    """Inputs x [B, C, L] bf16, weight [C, 1, taps] bf16."""
    import torch

    return {
        "x": torch.randn(case.batch, case.channels, case.length, device=device, generator=generator).to(torch.bfloat16),
        "weight": torch.randn(case.channels, 1, case.taps, device=device, generator=generator).to(torch.bfloat16),
    }


@op.reference
def reference(x: dict[str, Any]) -> Any:
    """Tap by tap: the sum of shifted copies."""
    import torch.nn.functional as F  # noqa: N812

    taps, length = x["weight"].shape[-1], x["x"].shape[-1]
    padded = F.pad(x["x"], (taps - 1, 0))
    return sum(padded[..., tap : tap + length] * x["weight"][:, 0, tap, None] for tap in range(taps))


@op.default("torch.conv1d")
def conv1d(x: dict[str, Any]) -> Any:
    import torch.nn.functional as F  # noqa: N812

    taps, length = x["weight"].shape[-1], x["x"].shape[-1]
    return F.conv1d(x["x"], x["weight"], padding=taps - 1, groups=x["x"].shape[1])[..., :length]


@op.stock_deterministic("torch.conv1d.deterministic")
def conv1d_deterministic(x: dict[str, Any]) -> Any:
    return conv1d(x)
