"""moe/router_topk, moe/routing_map, moe/tokens_per_expert."""

from __future__ import annotations

from typing import Any

from perfgate import Case, Op

from ..routes import random_experts

TESTS = ("tests/unit/workloads/test_routing.py", "tests/gpu/test_kernels.py")

router_topk = Op(
    "moe/router_topk",
    kind="triton",
    phases=("fwd", "bwd"),
    gradients=("scores",),
    max_error=1e-6,
    bytes_moved=lambda case, _phase: case.tokens * (case.experts * 4 + case.topk * 12),
    tests=TESTS,
)
router_topk.cases(
    smoke=dict(tokens=64, experts=16, topk=4),
    small=dict(tokens=2048, experts=64, topk=8),
    typical=dict(tokens=8192, experts=256, topk=8),
    large=dict(tokens=65536, experts=256, topk=8),
    edge_equal_scores=dict(tokens=8192, experts=256, topk=8, scores="equal"),
    edge_nan_scores=dict(tokens=8192, experts=256, topk=8, scores="nan"),
    edge_96_experts=dict(tokens=8192, experts=96, topk=6),
    edge_160_experts=dict(tokens=8192, experts=160, topk=6),
)
router_topk.suites(pr=("typical",))


@router_topk.inputs
def scores(case: Case, device: str, generator: Any) -> dict[str, Any]:
    """Scores [tokens, experts] f32: random and distinct within a token, all equal, or with NaN in one of 64."""
    import torch

    # ranks, since of 256 random floats two are equal often enough to make any comparison of ids meaningless
    made = torch.rand(case.tokens, case.experts, device=device, generator=generator).argsort(dim=1) * (8 / case.experts) - 4
    if case.get("scores") == "equal":
        made.fill_(0.5)
    if case.get("scores") == "nan":
        made.masked_fill_(torch.rand(made.shape, device=device, generator=generator) < 1 / 64, float("nan"))
    return {"scores": made, "topk": case.topk}


@router_topk.reference
def topk_reference(x: dict[str, Any]) -> Any:
    """Stable sort: equal scores keep the order of their ids."""
    values, ids = x["scores"].sort(dim=1, descending=True, stable=True)
    return values[:, : x["topk"]], ids[:, : x["topk"]]


@router_topk.default("torch.topk")
def topk(x: dict[str, Any]) -> Any:
    return tuple(x["scores"].topk(x["topk"], dim=1))


@router_topk.stock_deterministic("torch.sort.stable")
def stable_sort(x: dict[str, Any]) -> Any:
    return topk_reference(x)


@router_topk.champion("triton.argmax_rounds", backend="triton", workspace=lambda _: 0)
def argmax_rounds(x: dict[str, Any]) -> Any:
    from .kernels import router_topk as champion

    return champion(x["scores"], x["topk"])


@router_topk.contender("triton.argmax_any_tie", backend="triton")
def argmax_any_tie(x: dict[str, Any]) -> Any:
    """One reduction a round: of equal scores any may win."""
    from .kernels import router_topk as kernel

    return kernel(x["scores"], x["topk"], stable=False)


routing_map = Op(
    "moe/routing_map",
    kind="triton",
    phases=("fwd", "bwd"),
    gradients=("probs",),
    max_error=1e-6,
    bytes_moved=lambda case, phase: case.tokens * (case.topk * 12 + (case.experts * 5 if phase == "fwd" else case.topk * 4)),
    tests=TESTS,
)
routing_map.cases(
    smoke=dict(tokens=64, experts=16, topk=4),
    small=dict(tokens=2048, experts=64, topk=8),
    typical=dict(tokens=8192, experts=256, topk=8),
    large=dict(tokens=65536, experts=256, topk=8),
    edge_96_experts=dict(tokens=8192, experts=96, topk=6),
    edge_160_experts=dict(tokens=8192, experts=160, topk=6),
)
routing_map.suites(pr=("typical",))


@routing_map.inputs
def chosen(case: Case, device: str, generator: Any) -> dict[str, Any]:
    """Probs [tokens, topk] f32 and ids [tokens, topk] int64, distinct per token."""
    import torch

    ids = random_experts(case, device, generator)
    return {
        "probs": torch.rand(ids.shape, device=device, generator=generator),
        "ids": ids,
        "experts": case.experts,
    }


@routing_map.reference
def map_reference(x: dict[str, Any]) -> Any:
    """By comparing every choice with every expert."""
    import torch

    hit = x["ids"][:, :, None] == torch.arange(x["experts"], device=x["ids"].device)
    return (hit * x["probs"][:, :, None]).sum(dim=1), hit.any(dim=1)


@routing_map.default("torch.scatter")
def scatter(x: dict[str, Any]) -> Any:
    probs, ids = x["probs"], x["ids"]
    dense = probs.new_zeros((ids.shape[0], x["experts"])).scatter(1, ids, probs)
    return dense, ids.new_zeros((ids.shape[0], x["experts"])).scatter(1, ids, 1).bool()


@routing_map.stock_deterministic("torch.index_put_")
def index_put(x: dict[str, Any]) -> Any:
    """What frameworks switch to in deterministic mode: rows and ids as two index tensors."""
    import torch

    probs, ids = x["probs"], x["ids"]
    rows = torch.arange(ids.shape[0], device=ids.device)[:, None]
    dense = probs.new_zeros((ids.shape[0], x["experts"])).index_put((rows, ids), probs)
    one = torch.ones((), dtype=torch.bool, device=ids.device)
    return dense, torch.zeros(dense.shape, dtype=torch.bool, device=ids.device).index_put((rows, ids), one)


@routing_map.champion("triton.comparison", backend="triton", workspace=lambda _: 0)
def comparison(x: dict[str, Any]) -> Any:
    from .kernels import routing_map as champion

    return champion(x["probs"], x["ids"], x["experts"])


tokens_per_expert = Op(
    "moe/tokens_per_expert",
    kind="triton",
    max_error=1e-9,
    bytes_moved=lambda case, _phase: case.tokens * case.topk * 8 + case.experts * 8,
    tests=TESTS,
)
tokens_per_expert.cases(
    smoke=dict(tokens=64, experts=16, topk=4),
    small=dict(tokens=2048, experts=64, topk=8),
    typical=dict(tokens=16384, experts=256, topk=8),
    large=dict(tokens=131072, experts=256, topk=8),
    edge_one_expert=dict(tokens=16384, experts=256, topk=1, ids="one"),
    edge_empty_experts=dict(tokens=16384, experts=160, topk=6, ids="few"),
)
tokens_per_expert.suites(pr=("typical",))


@tokens_per_expert.inputs
def ids(case: Case, device: str, generator: Any) -> dict[str, Any]:
    """Ids [tokens, topk] int64: random and distinct per token, all the same, or only of the first topk experts."""
    import torch

    made = random_experts(case, device, generator)
    if case.get("ids") == "one":
        made.fill_(case.experts // 2)
    if case.get("ids") == "few":
        made = torch.arange(case.topk, device=device).expand(case.tokens, -1).contiguous()
    return {"ids": made, "experts": case.experts}


@tokens_per_expert.reference
def count_reference(x: dict[str, Any]) -> Any:
    import torch

    return torch.stack([(x["ids"] == expert).sum() for expert in range(x["experts"])])


@tokens_per_expert.default("torch.histc")
def histc(x: dict[str, Any]) -> Any:
    """Floats, as frameworks that call histc do: it takes no integers on every device."""
    return x["ids"].float().histc(bins=x["experts"], min=0, max=x["experts"]).long()


@tokens_per_expert.stock_deterministic("torch.scatter_.sum")
def dense_sum(x: dict[str, Any]) -> Any:
    """The dense map, summed: histc is refused in deterministic mode."""
    ids = x["ids"]
    return ids.new_zeros((ids.shape[0], x["experts"])).scatter_(1, ids, 1).sum(dim=0)


@tokens_per_expert.champion("triton.histogram", backend="triton", workspace=lambda _: 0)
def histogram(x: dict[str, Any]) -> Any:
    from .kernels import tokens_per_expert as champion

    return champion(x["ids"], x["experts"])


@tokens_per_expert.contender("triton.one_by_one", backend="triton")
def one_by_one(x: dict[str, Any]) -> Any:
    from .kernels import tokens_per_expert_one_by_one

    return tokens_per_expert_one_by_one(x["ids"], x["experts"])
