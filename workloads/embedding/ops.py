"""embedding/backward: the gradient of an embedding table, whole or one vocabulary shard of it."""

from __future__ import annotations

from typing import Any

from perfgate import Case, Op

from ..blocks.segment.shape import sorted_sum_bytes
from ..segment.ids import make_ids


def _workspace(case: Case) -> int:
    return int(sorted_sum_bytes(case.count, case.vocab, case.width, output=case.vocab * case.width * 2))


op = Op(
    "embedding/backward",
    kind="triton",
    phases=("bwd",),
    gradients=("weight",),
    max_error=5e-2,
    bytes_moved=lambda case, _phase: (case.count + case.vocab) * case.width * 2 + case.count * 8,
    flops=lambda case, _phase: case.count * case.width,
    tests=("tests/unit/workloads/test_embedding.py", "tests/gpu/test_kernels.py"),
)
op.cases(
    smoke=dict(vocab=256, width=64, count=512),
    small=dict(vocab=32000, width=1024, count=4096),
    typical=dict(vocab=128256, width=4096, count=16384),
    hot=dict(vocab=8192, width=1024, count=32768, ids="hot-64"),
    large=dict(vocab=151936, width=8192, count=32768, ids="zipf"),
    edge_padding=dict(vocab=32000, width=2048, count=16384, padding=3, padded=0.3),
    edge_shard=dict(vocab=16032, width=4096, count=16384, whole=128256, first=32064),
    edge_one_id=dict(vocab=8192, width=1024, count=32768, ids="one"),
    edge_odd_width=dict(vocab=8192, width=1021, count=16384),
    edge_one_row=dict(vocab=8192, width=1024, count=1),
)
op.suites(typical=("hot",), pr=("typical",))


@op.inputs
def inputs(case: Case, device: str, generator: Any) -> dict[str, Any]:
    """Weight [vocab, width] bf16 and ids [count] int64; of a shard, ids of the whole vocabulary and its ``first`` one."""
    import torch

    ids = make_ids(case.get("ids", "random"), case.count, case.get("whole", case.vocab), device, generator)
    if case.get("padded"):
        ids = ids.masked_fill(torch.rand(ids.shape, device=device, generator=generator) < case.padded, case.padding)
    weight = torch.randn(case.vocab, case.width, device=device, generator=generator).to(torch.bfloat16)
    return {"weight": weight, "ids": ids, "first": case.get("first"), "padding": case.get("padding", -1)}


@op.reference
def reference(x: dict[str, Any]) -> Any:
    """Plain indexing; padding and other shards' ids are cut out of the graph."""
    local, weight = x["ids"] - (x["first"] or 0), x["weight"]
    if x["first"] is None:
        rows = weight[local]
    else:
        foreign = (local < 0) | (local >= weight.shape[0])
        rows = weight[local.masked_fill(foreign, 0)].masked_fill(foreign[..., None], 0.0)
    return rows.detach().where((x["ids"] == x["padding"])[..., None], rows) if x["padding"] >= 0 else rows


@op.default("torch.embedding")
def embedding(x: dict[str, Any]) -> Any:
    """Whole table: F.embedding. Shard: what vocabulary-parallel layers do, other ids looked up in row 0 and masked out."""
    import torch.nn.functional as F  # noqa: N812

    if x["first"] is None:
        return F.embedding(x["ids"], x["weight"], padding_idx=x["padding"] if x["padding"] >= 0 else None)
    local = x["ids"] - x["first"]
    foreign = (local < 0) | (local >= x["weight"].shape[0])
    return F.embedding(local.masked_fill(foreign, 0), x["weight"]).masked_fill(foreign[..., None], 0.0)


@op.stock_deterministic("torch.embedding.deterministic")
def embedding_deterministic(x: dict[str, Any]) -> Any:
    return embedding(x)


@op.candidate("torch.index_put_")
def indexing(x: dict[str, Any]) -> Any:
    """Plain indexing, whose backward is index_put_ with accumulation."""
    return reference(x)


@op.champion("triton.sorted_fold", backend="triton", workspace=_workspace)
def sorted_fold(x: dict[str, Any]) -> Any:
    from .kernels import embedding as lookup

    return lookup(x["weight"], x["ids"], x["first"], x["padding"])


@op.candidate("triton.radix_fold", backend="triton")
def radix_fold(x: dict[str, Any]) -> Any:
    from .kernels import embedding as lookup
    from .kernels import fold_radix_sorted

    return lookup(x["weight"], x["ids"], x["first"], x["padding"], fold_radix_sorted)


@op.candidate("triton.exact", backend="triton", workspace=lambda case: case.vocab * (case.width * 4 + 8) + case.count * 8)
def exact(x: dict[str, Any]) -> Any:
    from .kernels import add_exactly
    from .kernels import embedding as lookup

    return lookup(x["weight"], x["ids"], x["first"], x["padding"], add_exactly)


@op.contender("triton.atomic", backend="triton")
def atomic(x: dict[str, Any]) -> Any:
    from .kernels import add_atomically
    from .kernels import embedding as lookup

    return lookup(x["weight"], x["ids"], x["first"], x["padding"], add_atomically)
