"""The backward's kernels against float64, at the shapes and index patterns where kernels break."""

import pytest
import torch

from tests.unit.workloads.dsa.problems import arguments, error, in_float64, kernels, made, op, run, same, stock

TRITON = ["triton_atomic", "triton_exact", "sorted_segment"]
SHAPES = {
    "plain": {},
    "one query, one row": {"queries": 1, "topk": 1},
    "blocks cut off": {"topk": 129, "keys": 256, "queries": 1},
    "rotary columns": {"dim": 128, "queries": 2},
    "two tiles of heads": {"heads": 128, "queries": 2},
    "heads that no tile divides": {"heads": 72, "queries": 2, "dim": 128},
    "fewer heads than a tile": {"heads": 5},
    "holes": {"holes": 0.4},
    "no rows at all": {"empty": 1.0},
    "queries without rows": {"empty": 0.5, "queries": 5, "holes": 0.2},
    "duplicates": {"duplicates": True},
    "lengths": {"lengths": True, "queries": 4},
    "lengths and holes, two tiles": {"lengths": True, "holes": 0.3, "heads": 128, "queries": 3},
    "local": {"pattern": "local", "queries": 4},
    "zipf": {"pattern": "zipf", "keys": 50},
    "one row hit by all": {"hot": True},
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("implementation", [*TRITON, "index_add"])
def test_every_implementation_agrees_with_float64(name, implementation, device, generator):
    x = made(device, generator, **{"topk": 16, **SHAPES[name]})
    expected = op.compute_reference(in_float64(x))

    actual = run(implementation, x)

    for one, other, like in zip(actual, expected, (x["q"], x["kv"]), strict=True):
        assert (like.shape, like.dtype) == (one.shape, one.dtype)
        assert error(one, other) < 1e-3  # f16: 11 bits


def test_the_float64_reference_is_the_gradient_of_the_forward(device, generator):
    x = in_float64(made(device, generator, holes=0.3, lengths=True, empty=0.3, queries=5, dim=128, duplicates=True))
    rows = stock.chosen_rows(x["topk"], x["topk_length"], x["kv"].shape[0])
    q, kv = x["q"].requires_grad_(), x["kv"].requires_grad_()
    k = kv[rows.clamp(min=0)] * (rows >= 0)[:, :, None]
    scores = (q @ k.transpose(1, 2) * x["scale"]).masked_fill((rows < 0)[:, None, :], -1e300)
    out = torch.softmax(scores, dim=2) @ k[:, :, :64]
    x["out"] = out.detach()
    x["lse"] = torch.where((rows >= 0).any(dim=1)[:, None], scores.logsumexp(dim=2).detach(), float("inf"))

    expected = torch.autograd.grad(out, [q, kv], x["dout"])

    actual = op.compute_reference({**x, "q": q.detach(), "kv": kv.detach()})
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["plain", "two tiles of heads", "queries without rows", "lengths and holes, two tiles"])
def test_only_dkv_differs_between_the_racy_form_and_the_others_and_within_rounding(name, device, generator):
    x = made(device, generator, **{"topk": 16, **SHAPES[name]})

    racy = run("triton_atomic", x)

    for implementation in ("triton_exact", "sorted_segment"):
        dq, dkv = run(implementation, x)
        assert same(racy[0], dq)
        assert error(dkv, racy[1].double()) < 6e-4  # one rounding to f16 of each contribution, one of the sum


@pytest.mark.parametrize("name", ["plain", "holes", "lengths and holes, two tiles", "one row hit by all"])
def test_no_order_of_queries_changes_a_bit_of_the_exact_sum(name, device, generator):
    x = made(device, generator, **{"topk": 16, **SHAPES[name], "queries": 5})
    order = torch.randperm(5, generator=torch.Generator().manual_seed(3)).to(device)
    per_query = ("q", "topk", "topk_length", "out", "lse", "dout")
    shuffled = {**x, **{name: None if x[name] is None else x[name][order].contiguous() for name in per_query}}

    dq, dkv, reach = kernels.backward_exact(**arguments(x), reach=x["reach"])

    other_dq, other_dkv, other_reach = kernels.backward_exact(**arguments(shuffled), reach=x["reach"])
    assert same(dkv, other_dkv)
    assert same(dq[order], other_dq)
    assert torch.equal(reach, other_reach)
