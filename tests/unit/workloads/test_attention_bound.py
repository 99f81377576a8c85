"""The proof that dQ's contributions and sum fit their integers, as properties that hypothesis tries to break."""

import hypothesis.strategies as st
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import HealthCheck, given, settings

from perfgate import discover

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # the interpreter's NumPy meets log2(0)
QUERIES, KEYS, DIM = 4, 24, 64
SCALE = DIM**-0.5
_log2_above = discover.module("attention.forward.kernels")._log2_above


@triton.jit
def _logarithms(values, out):
    at = tl.arange(0, 16)
    tl.store(out + at, _log2_above(tl.load(values + at)))


def kernels():
    return discover.module("attention.backward.kernels")


_carrying = discover.module("attention.backward.quanta")._carrying


@triton.jit
def _carry(values, carried, out):
    at = tl.arange(0, 16)
    tl.store(out + at, _carrying(tl.load(values + at), tl.load(carried + at)))


def inverse_of(delta):
    """1/quantum of rows: the last eight bits of their ``delta`` carry half of its exponent in f32."""
    return ((delta.view(torch.int32) & 255) << 24).view(torch.float32)


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


def in_quanta(q, k, v, grad_out, shared=None):
    """Every |contribution| to dQ, one key at a time (the finest blocks there can be), in quanta of its row: [Sq, Sk, D].

    ``shared``: the row's shares are those of blocks of so many keys; None: of nothing known.
    """
    plain, forward = discover.module("attention.plain"), discover.module("attention.forward.kernels")
    out, lse = plain.forward(q.double(), k.double(), v.double(), causal=False, scale=SCALE)
    survey = forward.survey_of(q, k, v)
    weights = torch.exp(q.double() @ k.double().mT * SCALE - lse[..., None])
    if shared:
        survey.shares[0, :QUERIES] = weights[0, 0].view(QUERIES, -1, shared).sum(dim=2).amax(dim=1)
    _, delta, quantum, _ = kernels()._prepared(q, k, out.half(), lse.float(), grad_out, SCALE, 2, survey)
    delta, quantum = delta[0, :QUERIES], quantum[0, :QUERIES]
    inverse = inverse_of(delta)
    slopes = (weights * (grad_out.double() @ v.double().mT - delta.double()[:, None]))[0, 0]
    parts = slopes[:, :, None] * k[0, 0].double()
    return (parts * inverse[:, None, None].double()).abs(), inverse, quantum


def drawn(kinds, exponents, seed, worst):
    g = torch.Generator().manual_seed(seed)
    lengths = (QUERIES, KEYS, KEYS, QUERIES)
    tensors = [
        draw((1, length, DIM), kind, size, g) for length, kind, size in zip(lengths, kinds, exponents, strict=True)
    ]  # fmt: skip
    return opposed(*tensors) if worst else tensors


DRAWN = dict(
    kinds=st.tuples(KINDS, KINDS, KINDS, KINDS),
    exponents=st.tuples(SMALL, SMALL, SMALL, SMALL),
    seed=SEEDS,
    worst=st.booleans(),
)


@PROPERTY
@given(**DRAWN)
def test_no_contribution_reaches_2_to_the_22_quanta_nor_any_partial_sum_2_to_the_31(kinds, exponents, seed, worst):
    parts, inverse, quantum = in_quanta(*drawn(kinds, exponents, seed, worst))

    # whatever the order and the blocks, a partial sum is at most the sum of all magnitudes; 1 quantum a part for rounding
    assert float((parts.sum(dim=1) + KEYS).max()) < 2**22
    assert bool((torch.frexp(inverse)[0] == 0.5).all())  # a power of two: the scaling rounds nothing
    assert torch.allclose(quantum.double(), SCALE / inverse.double(), rtol=1e-6)


@PROPERTY
@given(shared=st.sampled_from([1, 2, 4, 8, 12]), **DRAWN)
def test_known_shares_make_quanta_finer_but_not_too_fine(shared, kinds, exponents, seed, worst):
    tensors = drawn(kinds, exponents, seed, worst)

    parts, inverse, _ = in_quanta(*tensors, shared=shared)
    _, coarse, _ = in_quanta(*tensors)

    blocks = parts.view(QUERIES, KEYS // shared, shared, DIM)
    assert float((blocks.sum(dim=2) + shared).max()) < 2**22
    assert float((parts.sum(dim=1) + KEYS).max()) < 2**31
    assert bool((inverse >= coarse).all())


def test_the_bound_is_near_what_the_worst_case_reaches():
    g = torch.Generator().manual_seed(1)
    tensors = opposed(*(draw((1, length, DIM), "random", 0, g) for length in (QUERIES, KEYS, KEYS, QUERIES)))

    parts, _, _ = in_quanta(*tensors)

    assert 2**20 < float(parts.sum(dim=1).max()) < 2**22


@PROPERTY
@given(parts=st.lists(st.integers(-(2**22), 2**22), min_size=1, max_size=300), exponent=st.integers(-100, 100), seed=SEEDS)
def test_bits_of_an_f32_beside_the_anchor_are_the_rounded_quanta_and_add_up_in_any_order(parts, exponent, seed):
    """What the kernels do to one element, in torch: multiply-add, the bits as int32, sums modulo 2^32, anchors off."""
    g = torch.Generator().manual_seed(seed)
    off = torch.rand(len(parts), generator=g) * 0.98 - 0.49  # not whole quanta
    off *= torch.tensor(parts).abs() < 2**21  # f32 has no fractions for the others' sake
    scaled = torch.tensor(parts, dtype=torch.float32) + off
    values = scaled * 2.0**exponent
    quanta = discover.module("attention.backward.quanta")
    anchor, bits = quanta.ANCHOR.value, quanta.ANCHOR_BITS.value

    encoded = (values * 2.0**-exponent + anchor).view(torch.int32)
    totals = set()
    for _ in range(4):
        total = torch.zeros((), dtype=torch.int32)
        for one in encoded[torch.randperm(len(parts), generator=g)]:
            total = total + one
        totals.add(int(total))

    expected = int(scaled.double().round().sum())
    assert torch.tensor(anchor).view(torch.int32).item() == bits
    assert len(totals) == 1
    assert expected == (totals.pop() - len(parts) * bits + 2**31) % 2**32 - 2**31


@PROPERTY
@given(st.lists(st.floats(0, 2.0**127, width=32), min_size=16, max_size=16))
def test_logarithms_are_never_too_small_and_at_most_a_tenth_too_large(numbers):
    values = torch.tensor(numbers, dtype=torch.float32)
    out = torch.empty(16)

    _logarithms[(1,)](values, out)

    excess = out.double() - torch.log2(values.double())
    assert bool((excess > 0).all())
    assert bool((excess < 0.1)[values >= 2.0**-126].all())


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


def survey_with(reach, share=1.0):
    return discover.module("attention.forward.kernels").Survey(torch.full((1, 128), share), reach)


@PROPERTY
@given(
    mantissa=st.floats(1, 2, exclude_max=True, width=32),
    exponents=st.tuples(*[st.integers(-60, 40)] * 3),
    share=st.integers(-12, 0),
)
def test_a_rows_quantum_holds_its_bounds_and_wastes_at_most_two_bits(mantissa, exponents, share):
    row, value, key = (2.0**exponent for exponent in exponents)  # their products on the way may be too small for an f32
    reach = torch.tensor([value, key, 0.0]).view(3, 1, 1)
    grad_out = torch.zeros(1, 1, 1, DIM)
    grad_out[..., 0] = mantissa * row
    lse, zeros = torch.zeros(1, 1, 1), torch.zeros(1, 1, 1, DIM)

    _, delta, quantum, _ = kernels()._prepared(zeros, zeros, zeros, lse, grad_out, 1.0, 2, survey_with(reach, 2.0**share))

    inverse = inverse_of(delta)
    bound = 1.125 * mantissa * row * value * key
    if bound >= 2.0**128:
        assert bool(quantum[0, 0].isnan())
    else:
        all_of_them = bound * float(inverse[0, 0])
        one = all_of_them * 2.0**share
        assert all_of_them <= 2**30 * 1.001
        assert one <= 2**22 * 1.001
        # no quantum is finer than 2^-125
        assert one > 2**20 * 0.91 or all_of_them > 2**28 * 0.96 or float(inverse[0, 0]) == 2.0**125


def test_a_norm_whose_squares_vanish_still_counts():
    reach = torch.ones(3, 1, 1)
    tiny = torch.full((1, 1, 1, DIM), 2.0**-80)  # its square is no f32

    _, delta, _, _ = kernels()._prepared(tiny, tiny, tiny, torch.zeros(1, 1, 1), tiny, 1.0, 2, survey_with(reach))

    assert 2**20 < 1.125 * 2.0**-77 * float(inverse_of(delta)[0, 0]) <= 2**22


@PROPERTY
@given(
    numbers=st.lists(st.floats(width=32), min_size=16, max_size=16),
    carried=st.lists(st.integers(0, 253), min_size=16, max_size=16),
)
def test_what_delta_carries_moves_it_by_2_to_the_minus_16_and_neither_nan_nor_inf(numbers, carried):
    values, bits, out = torch.tensor(numbers, dtype=torch.float32), torch.tensor(carried, dtype=torch.int32), torch.empty(16)

    _carry[(1,)](values, bits, out)

    finite = torch.isfinite(values)
    assert torch.equal(values[~finite].view(torch.int32), out[~finite].view(torch.int32))
    assert torch.equal(bits[finite], out[finite].view(torch.int32) & 255)
    off = (out.double() - values.double()).abs()[finite]
    assert bool((off <= (values.double().abs()[finite] * 2.0**-16).clamp(min=2.0**-141)).all())


@PROPERTY
@given(key=st.integers(-149, 127), others=st.tuples(st.integers(-130, 60), st.integers(-60, 60)), share=st.integers(-12, 0))
def test_ds_over_its_quantum_is_a_bf16_however_small_or_large_keys_are(key, others, share):
    row, value = (2.0**exponent for exponent in others)
    grad_out = torch.zeros(1, 1, 1, DIM)
    grad_out[..., 0] = row
    zeros, reach = torch.zeros(1, 1, 1, DIM), torch.tensor([value, 2.0**key, 0.0]).view(3, 1, 1)

    _, delta, quantum, _ = kernels()._prepared(
        zeros, zeros, zeros, torch.zeros(1, 1, 1), grad_out, 1.0, 2, survey_with(reach, 2.0**share)
    )

    inverse = float(inverse_of(delta)[0, 0])
    if quantum[0, 0].isnan():
        assert inverse == 0
        assert 1.2 * row * value * 2.0**key >= 2.0**128
    else:
        largest = 1.125 * row * value * 2.0**share  # of the row's |dS|
        assert 2.0**-106 <= inverse <= 2.0**126
        assert largest * inverse < 2.0**127
        assert largest * 2.0**key * inverse <= 2**22 * 1.001


def in_turn(keys, slopes):
    """Kᵀ·dS [D] in f32, key by key."""
    total = torch.zeros(keys.shape[1], dtype=torch.float32)
    for key, slope in zip(keys.float(), slopes.float(), strict=True):
        total = total + key * slope
    return total


@PROPERTY
@given(key=st.integers(-104, 117), size=st.integers(-100, 100), spread=st.integers(0, 30), flushed=st.booleans(), seed=SEEDS)
def test_a_product_of_ds_over_its_quantum_counts_the_same_quanta_as_the_product_over_it(key, size, spread, flushed, seed):
    """What the kernel does to a column of bf16 dS, in torch: exact, but where dS over its quantum has no normal bf16."""
    g = torch.Generator().manual_seed(seed)
    size = min(max(size, -60 - key), 97 - key)  # neither a contribution nor a slope leaves f32 by itself
    fades = 2.0 ** -(torch.rand(128, generator=g) * spread)
    slopes = (torch.randn(128, generator=g).clamp(-2, 2) * fades * 2.0**size).bfloat16()
    keys = (torch.rand(128, 16, generator=g).double().mul(2).sub(1) * 2.0**key).bfloat16()
    exponent = size + key + 8 - 22  # 128 slopes of 2·2^size
    scaled = (slopes.double() * 2.0**-exponent).bfloat16()
    if flushed:
        scaled = torch.where(scaled.abs() < 2.0**-126, 0.0, scaled.double()).bfloat16()

    quanta, after = in_turn(keys, scaled), in_turn(keys, slopes) * 2.0**-exponent

    anchor = discover.module("attention.backward.quanta").ANCHOR.value
    if bool((scaled.double() == slopes.double() * 2.0**-exponent).all()):
        assert torch.equal((after + anchor).view(torch.int32), (quanta + anchor).view(torch.int32))
    assert float((quanta.double() - after.double()).abs().max()) < 0.5
