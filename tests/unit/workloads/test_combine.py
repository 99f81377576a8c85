import pytest
import torch

from perfgate import Case, discover

op = discover.load().op("moe/combine")
SHAPES = {
    "plain": {"tokens": 6, "hidden": 96, "topk": 4, "experts": 8},
    "holes": {"tokens": 9, "hidden": 40, "topk": 3, "experts": 8, "drop": 0.3},
    "odd hidden, several blocks": {"tokens": 3, "hidden": 1029, "topk": 2, "experts": 4},
    "one token": {"tokens": 1, "hidden": 17, "topk": 8, "experts": 16},
    "top-1": {"tokens": 4, "hidden": 33, "topk": 1, "experts": 4},
}


def made(shape, device, generator, dtype=torch.float32):
    x = op.make_inputs(Case("test", shape), device, generator)
    return {**x, "rows": x["rows"].to(dtype)}


def in_float64(x):
    return {key: value.detach().double().requires_grad_() if value.is_floating_point() else value for key, value in x.items()}


def kernels():
    return discover.module("moe.combine.kernels")


@pytest.mark.parametrize("name", SHAPES)
def test_every_implementation_agrees_with_float64(name, device, generator):
    x = made(SHAPES[name], device, generator)
    expected = op.compute_reference(in_float64(x))

    for implementation in op.implementations:
        actual = implementation.run(x)

        assert (x["slots"].shape[0], x["rows"].shape[1]) == tuple(actual.shape)
        # the stock paths round the weights to the rows' dtype, which is f32 here
        torch.testing.assert_close(actual.double(), expected.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", SHAPES)
def test_the_champions_sums_are_the_sequential_fold_bit_for_bit(name, device, generator):
    x = made(SHAPES[name], device, generator)
    slots, rows, probs = x["slots"].long(), x["rows"], x["probs"]
    expected = torch.zeros(slots.shape[0], rows.shape[1], device=device)
    for k in range(slots.shape[1]):
        kept = (slots[:, k] >= 0)[:, None]
        product = probs[slots[:, k].clamp(min=0)][:, None] * rows[slots[:, k].clamp(min=0)]
        expected = torch.where(kept, expected + product, expected)

    actual = kernels().combine(rows, probs, x["slots"])

    assert torch.equal(expected.view(torch.int32), actual.view(torch.int32))


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("role", ["default", "champion"])
def test_gradients_agree_with_float64(name, role, device, generator):
    x = made(SHAPES[name], device, generator)
    exact = in_float64(x)
    wanted = [x[key].requires_grad_() for key in op.gradients]
    out = op.with_role(role).run(x)
    cotangent = torch.randn(out.shape, device=device, generator=generator)
    expected = torch.autograd.grad(op.compute_reference(exact), [exact[key] for key in op.gradients], cotangent.double())

    for _ in range(2):  # a graph that is kept must allow a second backward
        actual = torch.autograd.grad(out, wanted, cotangent, retain_graph=True)

        for one, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


def test_a_rows_gradient_is_one_product_bit_for_bit(device, generator):
    x = made(SHAPES["holes"], device, generator)
    rows = x["rows"].requires_grad_()
    out = kernels().combine(rows, x["probs"], x["slots"], every_row=True)
    cotangent = torch.randn(out.shape, device=device, generator=generator)

    (actual,) = torch.autograd.grad(out, [rows], cotangent)

    expected = x["probs"][:, None] * cotangent[x["token_of_row"]]
    assert torch.equal(expected.view(torch.int32), actual.view(torch.int32))


def test_rows_that_no_slot_names_get_a_zero_gradient(device):
    rows = torch.ones(3, 8, device=device, requires_grad=True)
    slots = torch.tensor([[2, -1]], device=device)

    (actual,) = torch.autograd.grad(kernels().combine(rows, torch.ones(3, device=device), slots).sum(), [rows])

    assert actual.sum(dim=1).tolist() == [0.0, 0.0, 8.0]


def test_nothing_but_dropped_slots_gives_zeros_and_reads_no_row(device):
    rows = torch.full((2, 8), float("nan"), device=device)
    slots = torch.full((5, 3), -1, dtype=torch.int32, device=device)

    actual = kernels().combine(rows, torch.ones(2, device=device), slots)

    assert torch.equal(torch.zeros(5, 8, device=device), actual)


def test_no_tokens_give_an_empty_result(device):
    actual = kernels().combine(
        torch.empty(0, 8, device=device), torch.empty(0, device=device), torch.empty(0, 2, dtype=torch.int32, device=device)
    )

    assert tuple(actual.shape) == (0, 8)


def test_rows_with_a_stride_are_read_where_they_are(device, generator):
    wide = torch.randn(6, 64, device=device, generator=generator)
    slots = torch.tensor([[0, 3], [5, 1]], device=device)
    probs = torch.rand(6, device=device, generator=generator)

    expected = kernels().combine(wide[:, :20].contiguous(), probs, slots)
    actual = kernels().combine(wide[:, :20], probs, slots)

    assert torch.equal(expected, actual)


def test_two_addends_commute_so_top_2_is_no_negative_control(device, generator):
    x = made({"tokens": 8, "hidden": 32, "topk": 2, "experts": 4}, device, generator)
    swapped = {**x, "slots": x["slots"].flip(1)}

    assert torch.equal(op.with_role("champion").run(x), op.with_role("champion").run(swapped))


@pytest.mark.parametrize(
    ("error", "words", "change"),
    [
        (ValueError, "probs has shape", lambda x: {**x, "probs": x["probs"][:-1]}),
        (ValueError, "slots has shape", lambda x: {**x, "slots": x["slots"].flatten()}),
        (TypeError, "slots is float32", lambda x: {**x, "slots": x["slots"].float()}),
        (TypeError, "rows is int32", lambda x: {**x, "rows": x["rows"].int()}),
        (ValueError, "stride", lambda x: {**x, "rows": x["rows"].T.contiguous().T}),
        (ValueError, "one device", lambda x: {**x, "slots": x["slots"].to("meta")}),
    ],
)
def test_inputs_that_do_not_fit_are_refused_by_name(error, words, change, device, generator):
    x = change(made(SHAPES["plain"], device, generator))

    with pytest.raises(error, match=words):
        kernels().combine(x["rows"], x["probs"], x["slots"])


@pytest.mark.parametrize("bad", [-2, 99])
def test_slots_out_of_range_are_named_under_the_switch(bad, device, generator, monkeypatch):
    monkeypatch.setenv("PERFGATE_CHECK_INPUTS", "1")
    x = made(SHAPES["plain"], device, generator)
    x["slots"][0, 0] = bad

    with pytest.raises(IndexError, match=f"slots holds {bad}"):
        kernels().combine(x["rows"], x["probs"], x["slots"])
