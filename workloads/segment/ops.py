"""segment/index_add: rows added to the rows of a smaller table by id."""

from __future__ import annotations

from typing import Any

from perfgate import Case, Op

from ..blocks.segment.shape import workspace_bytes
from .ids import make_ids


def _bytes(case: Case, _phase: str) -> int:
    """Rows and ids read once, the f32 table written once."""
    return int(case.rows * (case.width * 4 + 8) + case.segments * case.width * 4)


def _workspace(case: Case) -> int:
    """Partial sums; sorted keys and order with the sort's own two buffers of each."""
    return int(workspace_bytes(case.rows, case.width) + case.rows * (8 + 2 * 4 + 2 * 8))


index_add = Op(
    "segment/index_add",
    kind="triton",
    racy="index_add_ adds the rows of one id in arrival order",
    max_error=1e-5,
    bytes_moved=_bytes,
    flops=lambda case, _phase: case.rows * case.width,
    tests=("tests/unit/workloads/test_segment.py", "tests/gpu/test_kernels.py"),
)
index_add.cases(
    smoke=dict(rows=512, width=64, segments=32),
    small=dict(rows=8192, width=512, segments=1024),
    typical=dict(rows=65536, width=1024, segments=4096),
    large=dict(rows=524288, width=1024, segments=32768),
    edge_unique=dict(rows=65536, width=1024, segments=65536, ids="unique"),
    edge_zipf=dict(rows=65536, width=1024, segments=4096, ids="zipf"),
    edge_one_id=dict(rows=65536, width=1024, segments=4096, ids="one"),
    edge_one_row=dict(rows=1, width=1024, segments=4096),
    edge_odd_width=dict(rows=65536, width=1023, segments=4096),
)


@index_add.inputs
def inputs(case: Case, device: str, generator: Any) -> dict[str, Any]:
    """Values [N, W] f32, ids [N] int64 below ``segments``."""
    import torch

    return {
        "values": torch.randn(case.rows, case.width, device=device, generator=generator),
        "ids": make_ids(case.get("ids", "random"), case.rows, case.segments, device, generator),
        "segments": case.segments,
    }


@index_add.reference
def reference(x: dict[str, Any]) -> Any:
    """One id after the other in float64."""
    values = x["values"]
    out = values.new_zeros((x["segments"], values.shape[1]))
    return out.index_add_(0, x["ids"], values)


def _index_add(x: dict[str, Any]) -> Any:
    values = x["values"]
    return values.new_zeros((x["segments"], values.shape[1])).index_add_(0, x["ids"], values)


index_add.default("torch.index_add_")(_index_add)
index_add.stock_deterministic("torch.index_add_.deterministic")(_index_add)


@index_add.champion("triton.sorted_fold", backend="triton", workspace=_workspace)
def sorted_fold(x: dict[str, Any]) -> Any:
    from ..blocks.segment.kernels import sort_segments, sum_segments

    return sum_segments(x["values"], sort_segments(x["ids"], x["segments"]))


@index_add.contender("triton.atomic", backend="triton")
def atomic(x: dict[str, Any]) -> Any:
    from ..blocks.segment.kernels import sum_atomically

    return sum_atomically(x["values"], x["ids"], x["segments"])
