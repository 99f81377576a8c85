import pytest
import torch

from perfgate import Case, discover

op = discover.load().op("embedding/backward")
SHAPES = {
    "dense": dict(vocab=9, width=20, count=40),
    "padding": dict(vocab=9, width=6, count=30, padding=3, padded=0.4),
    "shard": dict(vocab=6, width=5, count=40, whole=24, first=12),
    "hot ids": dict(vocab=16, width=4, count=70, ids="hot-2"),
    "one row": dict(vocab=4, width=3, count=1),
}


def made(name, device, generator):
    x = op.make_inputs(Case("test", SHAPES[name]), device, generator)
    return {**x, "weight": x["weight"].float().requires_grad_()}


def gradient(run, x, cotangent):
    return torch.autograd.grad(run(x), [x["weight"]], cotangent)[0]


@pytest.mark.parametrize("name", SHAPES)
def test_every_implementation_looks_up_and_sums_as_the_reference(name, device, generator):
    x = made(name, device, generator)
    exact = {**x, "weight": x["weight"].detach().double().requires_grad_()}
    looked_up = op.compute_reference(x)
    cotangent = torch.randn(looked_up.shape, device=device, generator=generator)
    expected = gradient(op.compute_reference, exact, cotangent.double())

    for implementation in op.implementations:
        assert torch.equal(looked_up, implementation.run(x))
        few_bits = "exact" in implementation.name
        torch.testing.assert_close(
            gradient(implementation.run, x, cotangent).double(), expected, rtol=1e-5, atol=1e-3 if few_bits else 1e-5
        )


@pytest.mark.parametrize("name", ["dense", "padding", "shard"])
def test_the_gradient_is_the_sequential_fold_of_its_rows_bit_for_bit(name, device, generator):
    x = made(name, device, generator)
    x["ids"] = x["ids"][:32]  # one chunk: rows of an id fold in their order
    cotangent = torch.randn(32, x["weight"].shape[1], device=device, generator=generator)
    if x["ids"].numel() < 32:
        cotangent = cotangent[: x["ids"].numel()]
    expected = torch.zeros_like(x["weight"])
    for row, id_ in enumerate(x["ids"].tolist()):
        local = id_ - (x["first"] or 0)
        if id_ != x["padding"] and 0 <= local < expected.shape[0]:
            expected[local] = expected[local] + cotangent[row]

    actual = gradient(op.with_role("champion").run, x, cotangent)

    assert torch.equal(expected.view(torch.int32), actual.view(torch.int32))


def test_a_shard_leaves_row_0_alone_when_all_ids_belong_to_others(device):
    weight = torch.ones(4, 8, device=device, requires_grad=True)
    ids = torch.tensor([0, 1, 8, 9], device=device)
    out = discover.module("embedding.kernels").embedding(weight, ids, first=4)

    (actual,) = torch.autograd.grad(out, [weight], torch.full_like(out, float("nan")))

    assert torch.equal(torch.zeros(4, 8, device=device), actual)


def test_ids_of_any_shape_are_looked_up(device, generator):
    weight = torch.randn(5, 3, device=device, generator=generator, requires_grad=True)
    ids = torch.tensor([[0, 4], [4, 2]], dtype=torch.int32, device=device)

    out = discover.module("embedding.kernels").embedding(weight, ids)
    (actual,) = torch.autograd.grad(out, [weight], torch.ones_like(out))

    assert torch.equal(weight[ids.long()], out)
    assert actual[:, 0].tolist() == [1.0, 0.0, 1.0, 0.0, 2.0]


@pytest.mark.parametrize("name", ["dense", "padding"])
def test_of_a_whole_table_nothing_is_masked(name, device, generator):
    """The masks of a shard cost the default a fifth of its time once, and flattered whoever was held against it."""
    x = made(name, device, generator)

    for implementation in op.implementations:
        out = implementation.run(x)
        assert "MaskedFill" not in type(out.grad_fn).__name__, implementation.name


def test_a_shards_ids_may_have_any_shape(device, generator):
    x = made("shard", device, generator)
    flat = op.with_role("default").run(x)
    folded = {**x, "ids": x["ids"].reshape(2, -1)}

    for implementation in op.implementations:
        assert torch.equal(flat, implementation.run(folded).reshape(flat.shape)), implementation.name


@pytest.mark.parametrize(
    ("error", "words", "weight", "ids"),
    [
        (ValueError, "weight has shape", torch.ones(4), torch.zeros(2, dtype=torch.int64)),
        (TypeError, "ids is float32", torch.ones(4, 2), torch.zeros(2)),
        (TypeError, "weight is int64", torch.ones(4, 2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)),
    ],
)
def test_inputs_that_do_not_fit_are_refused_by_name(error, words, weight, ids):
    with pytest.raises(error, match=words):
        discover.module("embedding.kernels").embedding(weight, ids)
