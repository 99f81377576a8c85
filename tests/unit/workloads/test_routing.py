import pytest
import torch

from perfgate import Case, discover
from tests.unit.workloads.launched import fills_of_backward

registry = discover.load()
TOPK, MAP, COUNT = (registry.op(name) for name in ("moe/router_topk", "moe/routing_map", "moe/tokens_per_expert"))
SHAPES = [dict(tokens=9, experts=16, topk=4), dict(tokens=5, experts=96, topk=6), dict(tokens=1, experts=5, topk=5)]


def kernels():
    return discover.module("moe.routing.kernels")


def same_bits(one, other):
    if one.is_floating_point():
        one, other = one.view(torch.int32), other.view(torch.int32)
    return torch.equal(one, other)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scores", ["random", "equal", "nan"])
def test_topk_is_a_stable_sort(shape, scores, device, generator):
    x = TOPK.make_inputs(Case("test", {**shape, "scores": scores}), device, generator)
    if scores == "nan":
        x["scores"][0, ::2] = float("nan")

    values, ids = TOPK.with_role("champion").run(x)

    wanted_values, wanted_ids = TOPK.compute_reference(x)
    assert torch.equal(wanted_ids, ids)
    torch.testing.assert_close(values, wanted_values, rtol=0, atol=0, equal_nan=True)


def test_topk_orders_zeros_infinities_and_nan_as_torch_does(device):
    inf, nan = float("inf"), float("nan")
    scores = torch.tensor([[-0.0, 0.0, -inf, 1e-45, nan, inf, -1e-45]], device=device)

    values, ids = kernels().router_topk(scores, 7)

    assert ids.tolist() == [[4, 5, 3, 0, 1, 6, 2]]
    assert values[0, 3].view(torch.int32).item() == 0
    assert torch.equal(scores.sort(dim=1, descending=True, stable=True).indices, ids)


def test_a_nan_with_its_sign_set_is_above_all_too(device):
    scores = torch.tensor([[1.0, 0.0, float("inf")]], device=device)
    scores.view(torch.int32)[0, 1] = -1  # all bits set; torch.sort on a GPU puts it last, torch.topk first

    assert kernels().router_topk(scores, 3)[1].tolist() == [[1, 2, 0]]


def test_topk_takes_each_column_once_even_where_all_are_minus_infinity(device):
    scores = torch.full((2, 5), float("-inf"), device=device)

    _, ids = kernels().router_topk(scores, 5)

    assert ids.tolist() == [[0, 1, 2, 3, 4]] * 2


def test_topk_reads_strided_bf16_rows(device, generator):
    wide = torch.randn(6, 40, device=device, generator=generator).to(torch.bfloat16)

    values, ids = kernels().router_topk(wide[:, :20], 3)

    expected = wide[:, :20].sort(dim=1, descending=True, stable=True)
    assert torch.equal(expected.indices[:, :3], ids)
    assert torch.equal(expected.values[:, :3], values)


@pytest.mark.parametrize("op", [TOPK, MAP], ids=["topk", "map"])
def test_gradients_agree_with_autograds_own(op, device, generator):
    x = op.make_inputs(Case("test", SHAPES[0]), device, generator)
    wanted = x[op.gradients[0]].requires_grad_()
    (expected_out, *_), (actual_out, *_) = op.compute_reference(x), op.with_role("champion").run(x)
    cotangent = torch.randn(expected_out.shape, device=device, generator=generator)

    (expected,) = torch.autograd.grad(expected_out, [wanted], cotangent)

    for _ in range(2):
        (actual,) = torch.autograd.grad(actual_out, [wanted], cotangent, retain_graph=True)
        assert torch.equal(expected, actual)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("op", [TOPK, MAP, COUNT], ids=["topk", "map", "count"])
def test_every_implementation_gives_the_references_bits(op, shape, device, generator):
    x = op.make_inputs(Case("test", shape), device, generator)
    reference = op.compute_reference(x)

    for implementation in op.implementations:
        outputs = implementation.run(x)
        pairs = [(outputs, reference)] if isinstance(outputs, torch.Tensor) else zip(outputs, reference, strict=True)
        for actual, expected in pairs:
            assert same_bits(expected, actual), implementation.name


def test_the_map_drops_minus_one_and_the_last_of_two_equal_ids_wins(device):
    probs = torch.tensor([[1.0, 2.0, 3.0]], device=device)
    ids = torch.tensor([[2, -1, 2]], device=device)

    dense, dense_map = kernels().routing_map(probs, ids, 4)

    assert dense.tolist() == [[0.0, 0.0, 3.0, 0.0]]
    assert dense_map.tolist() == [[False, False, True, False]]


def test_a_dropped_choice_has_no_gradient(device):
    probs = torch.ones(1, 2, device=device, requires_grad=True)
    dense, _ = kernels().routing_map(probs, torch.tensor([[-1, 1]], device=device), 3)

    (actual,) = torch.autograd.grad(dense.sum(), [probs])

    assert actual.tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_counts_leave_out_ids_that_name_no_expert(dtype, device):
    ids = torch.tensor([[0, 5], [-1, 5], [7, 6]], dtype=dtype, device=device)

    assert kernels().tokens_per_expert(ids, 7).tolist() == [1, 0, 0, 0, 0, 2, 1]


def test_no_tokens_give_empty_results_and_zero_counts(device):
    none = torch.empty(0, 2, dtype=torch.int64, device=device)

    assert kernels().tokens_per_expert(none, 3).tolist() == [0, 0, 0]
    assert kernels().routing_map(none.float(), none, 3)[0].shape == (0, 3)
    assert kernels().router_topk(torch.empty(0, 4, device=device), 2)[1].shape == (0, 2)


@pytest.mark.parametrize(
    ("error", "words", "call"),
    [
        (ValueError, "top-9 of 8 experts", lambda k: k.router_topk(torch.ones(2, 8), 9)),
        (TypeError, "scores is float64", lambda k: k.router_topk(torch.ones(2, 8, dtype=torch.float64), 2)),
        (ValueError, "probs has shape", lambda k: k.routing_map(torch.ones(2, 3), torch.zeros(2, 2, dtype=torch.int64), 4)),
        (TypeError, "ids is float32", lambda k: k.routing_map(torch.ones(2, 2), torch.zeros(2, 2), 4)),
        (ValueError, "5000 experts", lambda k: k.routing_map(torch.ones(2, 2), torch.zeros(2, 2, dtype=torch.int64), 5000)),
        (ValueError, "ids has shape", lambda k: k.tokens_per_expert(torch.zeros(2, dtype=torch.int64), 4)),
    ],
)
def test_inputs_that_do_not_fit_are_refused_by_name(error, words, call):
    with pytest.raises(error, match=words):
        call(kernels())


def test_ids_out_of_range_are_named_under_the_switch(device, monkeypatch):
    monkeypatch.setenv("PERFGATE_CHECK_INPUTS", "1")

    with pytest.raises(IndexError, match="ids holds 4"):
        kernels().tokens_per_expert(torch.tensor([[0, 4]], device=device), 4)


def test_the_backwards_fill_no_gradient_for_outputs_that_have_none(device, generator):
    x = MAP.make_inputs(Case("test", SHAPES[0]), device, generator)
    probs = x["probs"].float().requires_grad_()
    dense, _ = kernels().routing_map(probs, x["ids"], SHAPES[0]["experts"])

    assert [] == fills_of_backward(dense, probs)
