import pytest
import torch

from perfgate import Case, discover
from tests.unit.workloads.launched import fills_of_backward

op = discover.load().op("moe/permute")
SHAPES = {
    "plain": dict(tokens=6, hidden=20, topk=4, experts=8),
    "holes": dict(tokens=9, hidden=12, topk=3, experts=8, drop=0.3),
    "all to one expert": dict(tokens=7, hidden=9, topk=1, experts=5, to=3),
    "several blocks": dict(tokens=2, hidden=1030, topk=2, experts=96),
    "one token": dict(tokens=1, hidden=7, topk=2, experts=160),
}


def made(name, device, generator):
    return op.make_inputs(Case("test", SHAPES[name]), device, generator)


def kernels():
    return discover.module("moe.permute.kernels")


@pytest.mark.parametrize("name", SHAPES)
def test_every_implementation_gives_the_references_rows(name, device, generator):
    x = made(name, device, generator)
    expected_rows, expected_tokens = op.compute_reference(x)

    for implementation in op.implementations:
        rows, tokens = implementation.run(x)

        assert torch.equal(expected_tokens, tokens)
        assert torch.equal(expected_rows, rows)


@pytest.mark.parametrize("name", SHAPES)
def test_a_tokens_gradient_is_the_sequential_fold_of_its_rows_bit_for_bit(name, device, generator):
    x = made(name, device, generator)
    hidden = x["hidden"].float().requires_grad_()
    rows, _, slots = kernels().permute(hidden, x["ids"], x["experts"], x["count"])
    cotangent = torch.randn(rows.shape, device=device, generator=generator)
    expected = torch.zeros_like(hidden)
    for k in range(slots.shape[1]):
        slot = slots[:, k].long()
        expected = torch.where((slot >= 0)[:, None], expected + cotangent[slot.clamp(min=0)], expected)

    for _ in range(2):
        (actual,) = torch.autograd.grad(rows, [hidden], cotangent, retain_graph=True)

        assert torch.equal(expected.view(torch.int32), actual.view(torch.int32))


@pytest.mark.parametrize("role", ["default", "contender"])
def test_the_racy_backwards_agree_within_tolerance(role, device, generator):
    x = made("holes", device, generator)
    x["hidden"] = x["hidden"].float().requires_grad_()
    implementation = next(one for one in op.implementations if one.role == role)
    rows, _ = implementation.run(x)
    cotangent = torch.randn(rows.shape, device=device, generator=generator)

    (expected,) = torch.autograd.grad(op.compute_reference(x)[0], [x["hidden"]], cotangent)
    (actual,) = torch.autograd.grad(rows, [x["hidden"]], cotangent)

    torch.testing.assert_close(actual, expected)


def test_combine_after_permute_gives_the_tokens_back(device, generator):
    x = made("plain", device, generator)
    hidden = x["hidden"].float()
    rows, _, slots = kernels().permute(hidden, x["ids"], x["experts"])
    quarter = torch.full((rows.shape[0],), 0.25, device=device)

    actual = discover.module("moe.combine.kernels").combine(rows, quarter, slots)

    assert torch.equal(hidden, actual)


def test_rows_beyond_the_count_are_not_written(device):
    hidden = torch.ones(3, 4, device=device)

    rows, tokens, slots = kernels().permute(hidden, torch.tensor([[0], [1], [0]], device=device), 2, count=2)

    assert rows.shape == (2, 4)
    assert tokens.tolist() == [0, 2]
    assert slots.flatten().tolist() == [0, 2, 1]


@pytest.mark.parametrize(
    ("error", "words", "hidden", "ids"),
    [
        (ValueError, "ids has shape", torch.ones(3, 4), torch.zeros(2, 1, dtype=torch.int64)),
        (TypeError, "ids is float32", torch.ones(3, 4), torch.zeros(3, 1)),
        (TypeError, "hidden is int64", torch.ones(3, 4, dtype=torch.int64), torch.zeros(3, 1, dtype=torch.int64)),
        (ValueError, "stride", torch.ones(4, 3).T, torch.zeros(3, 1, dtype=torch.int64)),
    ],
)
def test_inputs_that_do_not_fit_are_refused_by_name(error, words, hidden, ids):
    with pytest.raises(error, match=words):
        kernels().permute(hidden, ids, 4)


def test_the_backward_fills_no_gradient_for_outputs_that_have_none(device, generator):
    x = made("plain", device, generator)
    hidden = x["hidden"].float().requires_grad_()
    rows, _, _ = kernels().permute(hidden, x["ids"], x["experts"], x["count"])

    assert [] == fills_of_backward(rows, hidden)
