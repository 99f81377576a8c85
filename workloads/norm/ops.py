"""norm/layer_norm and norm/rms_norm: backward, where the weight's gradient is a sum over all rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfgate import Case, Op


def inputs(case: Case, device: str, generator: Any) -> dict[str, Any]:
    """Inputs x [rows, width] bf16, weight and bias [width] bf16."""
    import torch

    def made(*shape: int) -> Any:
        return torch.randn(shape, device=device, generator=generator).to(torch.bfloat16)

    return {"x": made(case.rows, case.width), "weight": made(case.width), "bias": made(case.width)}


def layer_norm(x: dict[str, Any]) -> Any:
    import torch.nn.functional as F  # noqa: N812

    return F.layer_norm(x["x"], x["x"].shape[-1:], x["weight"], x["bias"], 1e-5)


def rms_norm(x: dict[str, Any]) -> Any:
    import torch.nn.functional as F  # noqa: N812

    return F.rms_norm(x["x"], x["x"].shape[-1:], x["weight"], 1e-5)


def layer_norm_reference(x: dict[str, Any]) -> Any:
    centred = x["x"] - x["x"].mean(dim=1, keepdim=True)
    return centred * (centred.square().mean(dim=1, keepdim=True) + 1e-5).rsqrt() * x["weight"] + x["bias"]


def rms_norm_reference(x: dict[str, Any]) -> Any:
    return x["x"] * (x["x"].square().mean(dim=1, keepdim=True) + 1e-5).rsqrt() * x["weight"]


def _declare(name: str, gradients: tuple[str, ...], run: Callable[..., Any], reference: Callable[..., Any]) -> Op:
    op = Op(
        f"norm/{name}",
        kind="torch-op",
        phases=("bwd",),
        gradients=gradients,
        max_error=5e-2,
        bytes_moved=lambda case, _phase: 3 * case.rows * case.width * 2,
        tests=("tests/unit/workloads/test_stock_ops.py",),
    )
    op.cases(
        smoke=dict(rows=64, width=128),
        small=dict(rows=4096, width=1024),
        typical=dict(rows=16384, width=2048),
        large=dict(rows=32768, width=8192),
        edge_narrow=dict(rows=65536, width=128),
        edge_odd_width=dict(rows=16384, width=2047),
    )
    op.inputs(inputs)
    op.reference(reference)
    op.default(f"torch.{name}")(run)
    op.stock_deterministic(f"torch.{name}.deterministic")(run)
    return op


layer = _declare("layer_norm", ("x", "weight", "bias"), layer_norm, layer_norm_reference)
layer.suites(pr=("typical",))
rms = _declare("rms_norm", ("x", "weight"), rms_norm, rms_norm_reference)
