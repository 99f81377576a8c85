"""Attention's kernels against float64; which inputs they survive; that no order of additions shows in the bits of dQ."""

import math

import pytest
import torch

from perfgate import discover
from perfgate.determinism.bits import bytes_equal

from .attention_cases import problem, relative, worst_row

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # the interpreter's NumPy meets NaN and Inf
LIMIT = 6e-3  # bf16 on a GPU; the interpreter's f16 stays below 1e-3
RULES = ("exact", "atomic", "two_pass")
SHAPES = {
    "causal": dict(q_len=37),
    "full, 128 wide": dict(q_len=40, kv_len=33, dim=128, causal=False),
    "group of 4": dict(heads=4, q_len=20, kv_len=33),
    "group of 2, more queries than keys": dict(heads=2, q_len=40, kv_len=20, batch=2),
    "window": dict(q_len=40, window=7),
    "window and more keys": dict(q_len=20, kv_len=50, window=16),
    "one query": dict(q_len=1, kv_len=17),
}


@pytest.mark.parametrize("name", SHAPES)
def test_outputs_and_gradients_are_those_of_float64(name, device):
    given = problem(device, **SHAPES[name])
    expected_out, expected_lse, *gradients = given.exact()

    out, lse, survey = given.forward()

    assert relative(out, expected_out) < LIMIT
    assert torch.allclose(lse.double(), expected_lse, atol=1e-4)
    for how in RULES:
        actual = given.backward(out, lse, how, survey)
        assert max(map(relative, actual, gradients)) < LIMIT, how


def test_the_survey_is_the_same_taken_in_the_forward_or_alone(device):
    given = problem(device, heads=4, kv_heads=2, q_len=37, kv_len=50, batch=2)

    _, _, taken = given.forward()
    alone = discover.module("attention.forward.kernels").survey_of(*given[:3])

    for survey in (taken, alone):
        assert torch.equal(survey.reach[2].amax(dim=1), given.q.float().abs().view(4, -1).amax(dim=1))
        assert torch.allclose(survey.reach[0].amax(dim=1), given.v.float().norm(dim=-1).amax(dim=-1).flatten(), rtol=1e-5)
        assert torch.equal(survey.reach[1].amax(dim=1), given.k.float().abs().amax(dim=(2, 3)).flatten())


@pytest.mark.parametrize("exponent", [-24, -14, 0, 15])
def test_the_survey_holds_at_any_magnitude(exponent, device):
    given = problem(device, kv_heads=2, heads=2, q_len=20)
    for one in (given.k, given.v):
        one.copy_(torch.where(one < 0, -(2.0**exponent), 2.0**exponent))

    reach = discover.module("attention.forward.kernels").survey_of(*given[:3]).reach

    assert torch.equal(torch.full_like(reach[1, :, 0], 2.0**exponent), reach[1].amax(dim=1))
    assert torch.equal(torch.full_like(reach[0, :, 0], 8 * 2.0**exponent), reach[0].amax(dim=1))  # √64 elements


def test_exact_without_a_survey_takes_one_itself_that_knows_no_shares(device):
    given = problem(device, q_len=33)
    out, lse, survey = given.forward()
    unknown = survey._replace(shares=torch.ones_like(survey.shares))

    with_it, without = given.backward(out, lse, "exact", unknown), given.backward(out, lse, "exact")

    assert all(map(bytes_equal, with_it, without))


@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize("sharp", [1, 8])
def test_no_block_of_keys_has_more_of_a_querys_probability_than_its_share(window, sharp, device):
    given = problem(device, q_len=40, kv_len=300, window=window)
    given.q.mul_(sharp)
    _, expected_lse, *_ = given.exact()
    hidden = ~discover.module("attention.plain").mask(0, 40, 40, 300, True, window, device)
    scores = (given.q[0, 0].double() @ given.k[0, 0].double().mT * given.rule["scale"]).masked_fill(hidden, float("-inf"))
    weights = torch.exp(scores - expected_lse[0, 0, :, None])
    true = torch.nn.functional.pad(weights, (0, 84)).view(40, 3, 128).sum(dim=2).amax(dim=1)

    _, _, survey = given.forward()

    shares = survey.shares[0, :40].double()
    assert bool((shares >= true * 0.999).all())
    lanes = torch.nn.functional.pad(weights, (0, 4)).view(40, 19, 2, 4, 2).sum(dim=(2, 4))  # the interpreter's blocks of 16
    assert bool((shares <= 8 * lanes.amax(dim=1).sum(dim=1) * 1.001).all())


def test_small_shares_make_finer_quanta(device):
    given = problem(device, q_len=16, kv_len=1024, causal=False)
    given.q.mul_(0.25)
    out, lse, survey = given.forward()
    coarse = survey._replace(shares=torch.ones_like(survey.shares))
    kernels = discover.module("attention.backward.kernels")

    quanta = [
        kernels._prepared(given.q, given.k, out, lse, given.grad_out, given.rule["scale"], 2, one)[2][0, :16]
        for one in (survey, coarse)
    ]

    assert bool((quanta[0] <= quanta[1] / 2).all())


SCALES = {
    "grad_out over six decades": lambda g: g.grad_out.mul_(torch.logspace(-3, 3, 40)[:, None].to(g.q)),
    "values over six decades": lambda g: g.v.mul_(torch.logspace(-3, 3, 40)[:, None].to(g.q)),
    "one huge key": lambda g: g.k[:, :, 13].mul_(200),
    "one huge channel of keys": lambda g: g.k[..., 5].mul_(100),
    "zero rows": lambda g: (g.q[:, :, 3].zero_(), g.k[:, :, 9].zero_(), g.v[:, :, 20].zero_(), g.grad_out[:, :, 30].zero_()),
    "sharp": lambda g: g.q.mul_(30),
}


@pytest.mark.parametrize("name", SCALES)
def test_every_row_of_dq_keeps_its_accuracy_at_any_scale(name, device):
    given = problem(device, causal=name != "one huge key")
    SCALES[name](given)
    _, _, dq, dk, dv = given.exact()
    out, lse, survey = given.forward()

    exact, atomic = (given.backward(out, lse, how, survey) for how in ("exact", "atomic"))

    assert all(torch.isfinite(one).all() for one in exact)
    assert relative(exact[0], dq) <= math.hypot(relative(atomic[0], dq), 1e-3)  # bf16 alone loses 2.5e-3
    if name in ("grad_out over six decades", "zero rows"):  # the others' error is in the scores, with any accumulation
        assert worst_row(exact[0], dq) < 4 * LIMIT
        assert max(relative(exact[1], dk), relative(exact[2], dv)) < LIMIT


@pytest.mark.parametrize("large", [8.0, 1e4])
def test_one_large_query_leaves_the_quanta_of_others_alone(large, device):
    given = problem(device, q_len=40, kv_len=300)
    kernels = discover.module("attention.backward.kernels")
    quanta = []
    for factor in (1.0, large):
        given.q[:, :, 7].mul_(factor)
        out, lse, survey = given.forward()
        quanta.append(kernels._prepared(given.q, given.k, out, lse, given.grad_out, given.rule["scale"], 2, survey)[2][0, :40])

    assert torch.isfinite(quanta[1]).all()
    others = torch.arange(40, device=device) != 7
    assert torch.equal(quanta[0][others], quanta[1][others])


def test_a_query_whose_scores_are_all_minus_infinity_has_nan_as_its_gradient_not_zero(device):
    given = problem(device, heads=2, kv_heads=2, q_len=20)
    given.k[..., 3].abs_()
    given.q[0, 1, 17, 3] = float("-inf")

    out, lse, survey = given.forward()

    assert out[0, 1, 17].isnan().all()
    assert given.backward(out, lse, "exact", survey)[0][0, 1, 17].isnan().all()


def test_without_any_gradient_dq_is_zero_not_nan(device):
    given = problem(device)
    given.grad_out.zero_()
    out, lse, survey = given.forward()

    dq, dk, dv = given.backward(out, lse, "exact", survey)

    assert not dq.any()
    assert not dk.any()
    assert not dv.any()


@pytest.mark.parametrize("large", [1.0, 3e4])  # small enough for the head's bound, or each row pays for its own query
def test_a_row_that_sees_nothing_has_a_gradient_of_zero_whatever_its_query_holds(large, device):
    given = problem(device, q_len=40, kv_len=24)
    given.q[0, 0, 0, 0] = float("nan")
    given.q[0, 0, 30, 5] = given.k[0, 0, 3, 6] = large
    out, lse, survey = given.forward()

    dq = given.backward(out, lse, "exact", survey)[0]

    seeing = dq[0, 0, [*range(16, 30), *range(31, 40)]]  # the large query's own row is beyond what the bound can hold
    assert not dq[0, 0, :16].any()
    assert bool(seeing.isfinite().all())


def test_rows_that_see_nothing_give_zeros(device):
    given = problem(device, q_len=40, kv_len=10)  # aligned at the bottom right: the first 30 queries see no key

    out, lse, survey = given.forward()

    assert not out[:, :, :30].any()
    assert (lse[:, :, :30] == float("-inf")).all()
    assert torch.isfinite(lse[:, :, 30:]).all()
    for how in RULES:
        dq, dk, dv = given.backward(out, lse, how, survey)
        assert not dq[:, :, :30].any()
        assert all(torch.isfinite(one).all() for one in (dq, dk, dv))


@pytest.mark.parametrize("special", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["q", "grad_out"])
def test_nan_and_inf_in_a_query_or_its_gradient_make_nan_of_its_dq_alone(special, where, device):
    given = problem(device, heads=2, kv_heads=2, q_len=20)
    clean = given.backward(*given.forward()[:2], "exact")[0]
    getattr(given, where)[0, 1, 17, 3] = special

    runs = [given.backward(*given.forward()[:2], "exact")[0] for _ in range(2)]

    assert runs[0][0, 1, 17].isnan().all()
    others = torch.ones(2, 20, dtype=torch.bool, device=device)
    others[1, 17] = False
    assert torch.equal(clean[0][others], runs[0][0][others])
    assert bytes_equal(*runs)


@pytest.mark.parametrize("special", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["k", "v"])
def test_nan_and_inf_in_keys_or_values_make_nan_of_all_dq_that_reads_the_head(special, where, device):
    given = problem(device, heads=2, kv_heads=2, q_len=20)
    clean = given.backward(*given.forward()[:2], "exact")[0]
    getattr(given, where)[0, 1, 5, 3] = special

    runs = [given.backward(*given.forward()[:2], "exact")[0] for _ in range(2)]

    assert runs[0][0, 1].isnan().all()
    assert torch.equal(clean[0, 0], runs[0][0, 0])
    assert bytes_equal(*runs)


def block_of_keys(device):
    configs = discover.module("blocks.configs")
    return configs.config_for("attention.backward_keys", 64, torch.empty(0, device=device))["N"]


def dq_with_key_blocks_in(order, given, how, out, lse, survey):
    """The same contributions to dQ, key block by key block, in another order of addition."""
    blocks = [one.unflatten(2, (len(order), -1))[:, :, order].flatten(2, 3) for one in (given.k, given.v)]
    return given._replace(k=blocks[0], v=blocks[1]).backward(out, lse, how, survey)[0]


def test_no_order_of_key_blocks_changes_a_bit_of_exact_dq_but_does_of_atomic_dq(device):
    given = problem(device, q_len=32, kv_len=8 * block_of_keys(device), causal=False)
    out, lse, survey = given.forward()
    orders = [torch.randperm(8, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    given.grad_out.mul_(1 / 3)  # no tidy products

    exact, atomic = (
        [dq_with_key_blocks_in(order.to(device), given, how, out, lse, survey) for order in orders]
        for how in ("exact", "atomic")
    )

    assert all(bytes_equal(exact[0], other) for other in exact[1:])
    assert any(not bytes_equal(atomic[0], other) for other in atomic[1:])  # rounded to 16 bits it shows in few elements


def test_when_parts_are_added_does_not_change_a_bit(device, monkeypatch):
    kernels = discover.module("attention.backward.kernels")
    configured = kernels.config_for
    given = problem(device, heads=2, q_len=40)
    out, lse, survey = given.forward()
    seen = []
    for late in (0, 1):
        monkeypatch.setattr(
            kernels, "config_for", lambda *names, late=late: {**configured(*names), **_if_late(configured, names, late)}
        )
        seen.append(given.backward(out, lse, "exact", survey))

    assert all(map(bytes_equal, *seen))


def _if_late(configured, names, late):
    return {"LATE": late} if "LATE" in configured(*names) else {}


@pytest.mark.parametrize("rows", [16, 33])
def test_padding_and_memory_left_by_others_do_not_show(rows, device, monkeypatch):
    given = problem(device, q_len=rows)
    expected = given.backward(*given.forward()[:2], "exact")
    empty = torch.empty

    def poisoned(*shape, **options):
        made = empty(*shape, **options)
        return made.fill_(float("nan") if made.is_floating_point() else 12345678)

    monkeypatch.setattr(torch, "empty", poisoned)
    actual = given.backward(*given.forward()[:2], "exact")

    assert all(map(bytes_equal, expected, actual))


@pytest.mark.parametrize("engine", ["triton_exact", "triton_atomic", "two_pass"])
def test_gradients_flow_through_autograd_and_strided_views(engine, device):
    differentiable, plain = discover.module("attention.differentiable"), discover.module("attention.plain")
    given = problem(device, heads=2, q_len=33)
    views = [one.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for one in given[:3]]
    exact = [one.detach().double().requires_grad_() for one in given[:3]]

    actual = torch.autograd.grad(differentiable.attention(*views, engine=engine, **given.rule), views, given.grad_out)

    expected = torch.autograd.grad(plain.attention(*exact, **given.rule), exact, given.grad_out.double())
    assert max(map(relative, actual, expected)) < LIMIT
    assert [one.shape for one in expected] == [one.shape for one in actual]


def test_a_forward_without_a_gradient_keeps_no_survey(device, monkeypatch):
    kernels = discover.module("attention.forward.kernels")
    asked = []
    real = kernels.forward
    monkeypatch.setattr(
        kernels, "forward", lambda *tensors, **options: asked.append(options["survey"]) or real(*tensors, **options)
    )
    given = problem(device, q_len=16)

    for needed in (False, True):
        discover.module("attention.differentiable").attention(
            given.q.requires_grad_(needed), *given[1:3], engine="triton_exact", **given.rule
        )

    assert asked == [False, True]
