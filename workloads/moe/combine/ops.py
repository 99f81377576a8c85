"""moe/combine: the experts' rows summed back per token, weighted by the router's probabilities."""

from __future__ import annotations

from typing import Any

from perfgate import Case, Op

from ..routes import expert_order, random_experts


def _rows(case: Case) -> int:
    rows: int = round(case.tokens * case.topk * (1 - case.get("drop", 0.0)))
    return rows


def _bytes(case: Case, phase: str) -> int:
    """bf16 rows read (backward: read and their gradients written) once, tokens once; probabilities and slots 4 bytes each."""
    rows, small = _rows(case) * case.hidden * 2, _rows(case) * 4 + case.tokens * case.topk * 4
    once = rows + case.tokens * case.hidden * 2 + small
    return int({"fwd": once, "bwd": once + rows + _rows(case) * 4}[phase])


op = Op(
    "moe/combine",
    kind="triton",
    racy="scatter_add_ adds the rows of one token in arrival order",
    control_case="edge-many-slots",
    phases=("fwd", "bwd"),
    gradients=("rows", "probs"),
    max_error=5e-2,
    bytes_moved=_bytes,
    flops=lambda case, phase: _rows(case) * case.hidden * {"fwd": 2, "bwd": 3}[phase],
    tests=("tests/unit/workloads/test_combine.py", "tests/gpu/test_kernels.py"),
)
op.cases(
    smoke=dict(tokens=64, hidden=128, topk=4, experts=16),
    small=dict(tokens=2048, hidden=2048, topk=8, experts=64),
    typical=dict(tokens=16384, hidden=2048, topk=8, experts=256),
    dsv3=dict(tokens=4096, hidden=7168, topk=8, experts=256),
    large=dict(tokens=32768, hidden=4096, topk=8, experts=128),
    edge_holes=dict(tokens=4096, hidden=2048, topk=8, experts=64, drop=0.2),
    edge_odd_hidden=dict(tokens=4096, hidden=2880, topk=4, experts=32),
    edge_one_token=dict(tokens=1, hidden=7168, topk=8, experts=256),
    edge_127_tokens=dict(tokens=127, hidden=2048, topk=8, experts=64),
    edge_top2=dict(tokens=8192, hidden=2048, topk=2, experts=8),  # two addends commute: the racy default can't differ
    edge_many_slots=dict(tokens=256, hidden=4096, topk=64, experts=128),  # sized so that the racy default shows
)
op.suites(typical=("dsv3",), pr=("typical", "dsv3"))


@op.inputs
def inputs(case: Case, device: str, generator: Any) -> dict[str, Any]:
    """Rows [R, H] bf16 in expert order, probs [R] f32, slots [T, K] int32 (−1: dropped), token_of_row [R] int64."""
    import torch

    slots, token_of_row = expert_order(random_experts(case, device, generator))
    count = token_of_row.numel()
    return {
        "rows": torch.randn(count, case.hidden, device=device, generator=generator).to(torch.bfloat16),
        "probs": torch.rand(count, device=device, generator=generator) / case.topk,
        "slots": slots,
        "token_of_row": token_of_row,
    }


@op.reference
def reference(x: dict[str, Any]) -> Any:
    """Slot by slot in float64."""
    total = 0.0
    for k in range(x["slots"].shape[1]):
        slot = x["slots"][:, k].long()
        weight = x["probs"][slot.clamp(min=0)] * (slot >= 0)
        total = total + weight[:, None] * x["rows"][slot.clamp(min=0)]
    return total


def _scatter_add(x: dict[str, Any]) -> Any:
    rows, token_of_row = x["rows"], x["token_of_row"]
    weighted = rows * x["probs"].to(rows.dtype)[:, None]
    out = rows.new_zeros((x["slots"].shape[0], rows.shape[1]))
    return out.scatter_add_(0, token_of_row[:, None].expand(-1, rows.shape[1]), weighted)


op.default("torch.scatter_add_")(_scatter_add)
op.stock_deterministic("torch.scatter_add_.deterministic")(_scatter_add)


@op.champion("triton.gather", backend="triton", workspace=lambda _: 0)
def gather(x: dict[str, Any]) -> Any:
    from .kernels import combine

    return combine(x["rows"], x["probs"], x["slots"], every_row=True)


def _gathered(case: Case) -> int:
    """Every slot's row twice; where slots are empty the backward holds their rows' gradients too."""
    slots = case.tokens * case.topk
    return int((2 * slots + (slots - _rows(case))) * case.hidden * 2)


@op.candidate("torch.gather_sum", workspace=_gathered)
def gather_sum(x: dict[str, Any]) -> Any:
    """Plain torch: every slot's row gathered, then one sum over the slots."""
    slots = x["slots"].long()
    kept = (slots >= 0)[..., None]
    weighted = x["rows"][slots.clamp(min=0)] * x["probs"].to(x["rows"].dtype)[slots.clamp(min=0)][..., None]
    return (weighted * kept).sum(dim=1)
