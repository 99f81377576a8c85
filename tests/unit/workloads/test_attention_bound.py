"""The proof that dQ's sum fits its integers, as a property: no worst case that hypothesis finds comes near 2^31 quanta."""

import hypothesis.strategies as st
import torch
from hypothesis import HealthCheck, given, settings

from perfgate import discover

QUERIES, KEYS, DIM = 4, 24, 64
SCALE = DIM**-0.5


def kernels():
    return discover.module("attention.backward.kernels")


def draw(shape, kind, exponent, g):
    """Rows of one magnitude 2^exponent in f16: random, all of one sign and size, or one outlier among zeros."""
    made = torch.randn(shape, generator=g)
    if kind == "aligned":
        made = torch.sign(made[..., :1]).expand(shape).clone()
    if kind == "outlier":
        made[:, :, 1:] *= 2.0**-6
    return (made * 2.0**exponent).half()[None]


def opposed(q, k, v, grad_out):
    """The worst case: half of the weight on V = +dO, half on V = -dO, keys as large as can be, and nothing cancels."""
    direction = grad_out[:, :, :1]
    signs = torch.where(torch.arange(KEYS) % 2 == 0, 1.0, -1.0)[None, None, :, None].half()
    return q * 0, (signs * k.abs().amax()).expand_as(k).clone(), signs * direction.expand_as(v), direction.expand_as(q).clone()


KINDS = st.sampled_from(["random", "aligned", "outlier"])
SMALL = st.integers(-6, 5)
SEEDS = st.integers(0, 2**31)
PROPERTY = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def in_quanta(q, k, v, grad_out):
    """Every |contribution| to dQ, one key at a time (the finest blocks there can be), in quanta of its row: [Sq, Sk, D]."""
    plain, forward = discover.module("attention.plain"), discover.module("attention.forward.kernels")
    out, lse = plain.forward(q.double(), k.double(), v.double(), causal=False, scale=SCALE)
    survey = forward.survey_of(q, k, v)
    _, _, inverse, quantum, _ = kernels()._prepared(q, k, out.half(), lse.float(), grad_out, SCALE, 2, survey)
    weights = torch.exp(q.double() @ k.double().mT * SCALE - lse[..., None])
    delta = (out.half().double() * grad_out.double()).sum(dim=-1, keepdim=True)
    slopes = (weights * (grad_out.double() @ v.double().mT - delta))[0, 0]
    parts = slopes[:, :, None] * k[0, 0].double()
    return (parts * inverse[0, :QUERIES, None, None].double()).abs(), inverse[0, :QUERIES], quantum[0, :QUERIES]


@PROPERTY
@given(
    kinds=st.tuples(KINDS, KINDS, KINDS, KINDS),
    exponents=st.tuples(SMALL, SMALL, SMALL, SMALL),
    seed=SEEDS,
    worst=st.booleans(),
)
def test_no_partial_sum_in_any_order_reaches_2_to_the_31_quanta(kinds, exponents, seed, worst):
    g = torch.Generator().manual_seed(seed)
    lengths = (QUERIES, KEYS, KEYS, QUERIES)
    tensors = [
        draw((1, length, DIM), kind, size, g) for length, kind, size in zip(lengths, kinds, exponents, strict=True)
    ]  # fmt: skip
    if worst:
        tensors = opposed(*tensors)

    parts, inverse, quantum = in_quanta(*tensors)

    # whatever the order and the blocks, a partial sum is at most the sum of all magnitudes; 2 quanta a part for rounding
    assert float((parts.sum(dim=1) + 2 * KEYS).max()) < 2**31
    assert bool((torch.frexp(inverse)[0] == 0.5).all())  # a power of two: the scaling rounds nothing
    assert torch.allclose(quantum.double(), SCALE / inverse.double(), rtol=1e-6)


def test_the_bound_is_near_what_the_worst_case_reaches():
    g = torch.Generator().manual_seed(1)
    tensors = opposed(*(draw((1, length, DIM), "random", 0, g) for length in (QUERIES, KEYS, KEYS, QUERIES)))

    parts, _, _ = in_quanta(*tensors)

    assert 2**28 < float(parts.sum(dim=1).max()) < 2**30


@PROPERTY
@given(parts=st.lists(st.integers(-(2**31) + 1, 2**31 - 1), min_size=2, max_size=12), seed=SEEDS)
def test_integers_that_wrap_on_the_way_still_end_at_their_sum_in_any_order(parts, seed):
    order = torch.randperm(len(parts), generator=torch.Generator().manual_seed(seed)).tolist()
    total, shuffled = torch.zeros((), dtype=torch.int32), torch.zeros((), dtype=torch.int32)

    for place, other in enumerate(order):
        total += torch.tensor(parts[place], dtype=torch.int32)
        shuffled += torch.tensor(parts[other], dtype=torch.int32)

    assert int(total) == int(shuffled)
    if abs(sum(parts)) < 2**31:
        assert int(total) == sum(parts)


@PROPERTY
@given(mantissa=st.floats(1, 2, exclude_max=True, width=32), exponents=st.tuples(*[st.integers(-60, 40)] * 3))
def test_a_rows_quantum_holds_its_bound_in_30_bits_and_wastes_at_most_one(mantissa, exponents):
    row, value, key = (2.0**exponent for exponent in exponents)  # their products on the way may be too small for an f32
    reach = torch.tensor([value, key, 0.0]).view(3, 1, 1)
    survey = discover.module("attention.forward.kernels").Survey(torch.zeros(1, 128), reach)
    grad_out = torch.zeros(1, 1, 1, DIM)
    grad_out[..., 0] = mantissa * row
    lse, zeros = torch.zeros(1, 1, 1), torch.zeros(1, 1, 1, DIM)

    _, _, inverse, quantum, _ = kernels()._prepared(zeros, zeros, zeros, lse, grad_out, 1.0, 2, survey)

    bound = 1.125 * mantissa * row * value * key
    if bound >= 2.0**128:
        assert bool(quantum[0, 0].isnan())
    else:
        quanta = bound * float(inverse[0, 0])
        assert quanta <= 2**30 * 1.001
        assert quanta > 2**29 * 0.999 or float(inverse[0, 0]) == 2.0**126  # no quantum is finer


def test_a_norm_whose_squares_vanish_still_counts():
    reach = torch.ones(3, 1, 1)
    survey = discover.module("attention.forward.kernels").Survey(torch.zeros(1, 128), reach)
    tiny = torch.full((1, 1, 1, DIM), 2.0**-80)  # its square is no f32

    _, _, inverse, _, _ = kernels()._prepared(tiny, tiny, tiny, torch.zeros(1, 1, 1), tiny, 1.0, 2, survey)

    assert 2**29 < 1.125 * 2.0**-77 * float(inverse[0, 0]) <= 2**30
