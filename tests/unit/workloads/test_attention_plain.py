"""The float64 reference against torch's own autograd, and the arithmetic of what a mask lets through."""

import pytest
import torch

from perfgate import discover

MASKS = {
    "full": dict(causal=False, window=None),
    "causal": dict(causal=True, window=None),
    "window": dict(causal=True, window=3),
}


def drawn(q_len, kv_len, causal, window):
    queries, keys = torch.arange(q_len)[:, None] + kv_len - q_len, torch.arange(kv_len)[None, :]
    seen = torch.ones(q_len, kv_len, dtype=torch.bool)
    if causal:
        seen &= keys <= queries
    if window is not None:
        seen &= keys > queries - window
    return seen


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("q_len", "kv_len"), [(7, 7), (5, 9)])
def test_values_and_gradients_are_those_of_the_whole_score_matrix(name, q_len, kv_len, monkeypatch):
    plain = discover.module("attention.plain")
    monkeypatch.setattr(plain, "BLOCK", 3)
    g = torch.Generator().manual_seed(1)
    q = torch.randn(2, 4, q_len, 8, generator=g, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(2, 2, kv_len, 8, generator=g, dtype=torch.float64, requires_grad=True) for _ in range(2))
    cotangent = torch.randn(q.shape, generator=g, dtype=torch.float64)

    whole = [one.repeat_interleave(2, dim=1) for one in (k, v)]
    scores = (q @ whole[0].mT * 0.3).masked_fill(~drawn(q_len, kv_len, **MASKS[name]), float("-inf"))
    expected = scores.softmax(dim=-1) @ whole[1]
    gradients = torch.autograd.grad(expected, (q, k, v), cotangent)

    actual = plain.attention(q, k, v, scale=0.3, **MASKS[name])
    assert torch.allclose(expected, actual, rtol=1e-12)
    for one, other in zip(gradients, torch.autograd.grad(actual, (q, k, v), cotangent), strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12)


def test_gradients_pass_gradcheck():
    plain = discover.module("attention.plain")
    g = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, 1, 5, 4, generator=g, dtype=torch.float64, requires_grad=True) for _ in range(3))

    assert torch.autograd.gradcheck(lambda *x: plain.attention(*x, scale=0.5, causal=True), (q, k, v))


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (7, 7), (5, 9), (9, 5)])
def test_visible_pairs_are_those_of_the_mask(name, q_len, kv_len):
    pairs = discover.module("attention.shape").visible_pairs(q_len, kv_len, **MASKS[name])

    assert pairs == int(drawn(q_len, kv_len, **MASKS[name]).sum())


@pytest.mark.parametrize("name", ["attention/fwd_bwd", "attention/bwd"])
def test_flops_are_five_products_backward_and_seven_in_all(name):
    op = discover.load().op(name)
    case = op.case("typical")
    product = 2 * 2 * 16 * 128 * (4096 * 4097 // 2)

    assert op.flops(case, op.phases[0]) == product * {"bwd": 5, "step": 7}[op.phases[0]]
    assert (
        len(discover.load().op("attention/fwd_bwd").in_suite("full") + discover.load().op("attention/bwd").in_suite("full"))
        <= 20
    )


@pytest.mark.parametrize("name", ["attention/fwd_bwd", "attention/bwd"])
def test_the_reference_fits_the_inputs_of_every_shape_in_small(name, generator, device):
    op = discover.load().op(name)
    case = op.case("smoke")
    x = op.make_inputs(case, device, generator)
    exact = {key: value.double() if torch.is_tensor(value) and value.is_floating_point() else value for key, value in x.items()}
    q, k, v = (exact[one].requires_grad_() for one in ("q", "k", "v"))

    out = op.compute_reference(exact)

    assert out.shape == x["q"].shape
    assert [one.shape for one in torch.autograd.grad(out.sum(), (q, k, v))] == [one.shape for one in (q, k, v)]
