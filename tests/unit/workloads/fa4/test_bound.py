"""The proof's claims, tried: no partial sum in any order reaches 2²⁴ quanta, so every order gives the same bits."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from perfgate import discover

bound = discover.module("attention.fa4.bound")
FLOAT = np.float32


def rounded(values, c):
    c = FLOAT(c)
    return (values.astype(FLOAT) + c) - c


def totals_in_many_orders(rows, rng, orders=6):
    """f32 sums over the first axis, one addend after another, in several orders; and the largest partial sum met."""
    found, largest = [], 0.0
    for _ in range(orders):
        total = np.zeros(rows.shape[1:], FLOAT)
        for row in rng.permutation(len(rows)):
            total = total + rows[row]
            largest = max(largest, float(np.abs(total).max(initial=0.0)))
        found.append(total.tobytes())
    return found, largest


@pytest.mark.parametrize(
    ("limit", "u"),
    [
        (1.0, 1.0),
        (1.0000001, 2.0),
        (800.0, 1024.0),
        (0.0, 2.0**-100),
        (1e-45, 2.0**-100),
        (2.0**126, 2.0**126),
        (2.0**127, 2.0**127),
        (3e-20, 2.0 ** math.ceil(math.log2(3e-20))),
    ],
)
def test_the_constant_is_one_and_a_half_times_the_next_power_of_two(limit, u):
    assert 1.5 * u == bound.constant(limit)


@pytest.mark.parametrize("limit", [2.0**127 * 1.01, math.inf, math.nan])
def test_no_constant_where_it_would_overflow(limit):
    assert math.isnan(bound.constant(limit))


def bits(value):
    return int(np.array(value, FLOAT).view(np.int32))


@given(st.floats(2.0**-126, 2.0**127, width=32))
def test_what_a_row_carries_is_the_exponent_that_its_constant_has(limit):
    carried = bound.exponent(bits(limit))
    made = float(np.array(bound.constant_bits(carried), np.int32).view(FLOAT))

    assert 0 <= carried <= bound.ROW_MASK
    assert bound.constant(limit) == made


@pytest.mark.parametrize("limit", [float(np.nextafter(FLOAT(2.0**127), FLOAT(np.inf))), 3.4e38, math.inf])
def test_what_is_too_large_for_a_constant_carries_the_exponent_of_inf(limit):
    assert 255 == bound.exponent(bits(limit))
    assert np.isnan(np.array(bound.constant_bits(255), np.int32).view(FLOAT))


def row_constant(grad, value, key):
    """C as the kernel makes it, in f32."""
    with np.errstate(over="ignore", under="ignore"):
        extent = FLOAT(bound.extent(FLOAT(value), FLOAT(key), np.maximum))
        limit = (FLOAT(grad) + FLOAT(bound.LOST)) * extent
    return float(np.array(bound.constant_bits(bound.exponent(bits(limit))), np.int32).view(FLOAT))


NORMS = st.floats(0.0, float(np.nextafter(FLOAT(2.0**64), FLOAT(0.0))), width=32)
KEYS = st.floats(0.0, 2.0**127, width=32)


@given(NORMS, NORMS, KEYS)
def test_the_constant_of_a_row_reaches_its_bound_and_is_a_power_of_two(grad, value, key):
    u = row_constant(grad, value, key) / 1.5

    assert math.isnan(u) or u >= 2.0 * grad * value * key * (1 - 1e-6)
    assert math.isnan(u) or (math.frexp(u)[0] == 0.5 and u >= bound.SMALLEST)


@given(NORMS, NORMS, KEYS)
def test_the_constant_of_a_row_is_less_than_a_binade_above_its_bound(grad, value, key):
    assume(bound.extent(value, key) < 2.0**127)
    most = bound.row_limit(grad, value, key) * 2.0 * (1 + 1e-6)
    u = row_constant(grad, value, key) / 1.5

    assert u <= max(most, bound.SMALLEST) or (math.isnan(u) and most > bound.LARGEST)


@pytest.mark.parametrize(("value", "key"), [(math.inf, 1.0), (2.0**64, 2.0**64)])
@pytest.mark.parametrize("grad", [0.0, 1.0, 2.0**63])
def test_an_extent_that_overflows_leaves_no_row_a_bound(grad, value, key):
    assert math.isnan(row_constant(grad, value, key))


@given(st.lists(st.floats(0.0, 2.0**60, width=32), min_size=1, max_size=128))
def test_squares_that_underflow_cost_less_than_what_is_added_to_a_norm(row):
    squares = np.array(row, FLOAT) * np.array(row, FLOAT)
    found = FLOAT(np.sqrt(np.sum(squares, dtype=FLOAT))) + FLOAT(bound.LOST)

    assert float(found) >= float(np.linalg.norm(np.array(row, np.float64))) * (1 - 1e-5)


@given(st.floats(-1.0, 1.0, width=32), st.integers(-99, 125))
def test_rounding_gives_multiples_of_half_a_quantum_off_by_at_most_one(fraction, exponent):
    u = 2.0**exponent
    x = FLOAT(fraction) * FLOAT(u)
    q = u * 2.0**-23
    got = float(rounded(np.array([x]), bound.constant(u))[0])

    assert 0.0 == math.fmod(got, q / 2)
    assert abs(got - float(x)) <= q
    assert abs(float(x)) > u / 2 or (abs(got - float(x)) <= q / 2 and math.fmod(got, q) == 0.0)


SCALES = st.integers(-30, 30).map(lambda e: 10.0 ** (e / 6))


def softmax(scores):
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def attention(seed, rows, keys, dim, scale_q, scale_k, scale_v, scale_g, huge, causal):
    """Contributions of every key to dQ [keys, rows, dim] (as if a tile held one key), and what the bound is taken from."""
    rng = np.random.default_rng(seed)
    q, g = (rng.standard_normal((rows, dim)) * s for s in (scale_q, scale_g))
    k, v = (rng.standard_normal((keys, dim)) * s for s in (scale_k, scale_v))
    if huge:
        k[keys // 2] *= 1e3
        g *= 10.0 ** rng.integers(-3, 4, (rows, 1))
    scores = q @ k.T / math.sqrt(dim)
    if causal:
        scores = np.where(np.arange(keys)[None, :] <= np.arange(rows)[:, None] + keys - rows, scores, -np.inf)
    p = softmax(scores)
    dp = g @ v.T
    ds = p * (dp - (p * dp).sum(axis=1, keepdims=True))
    sizes = [(np.linalg.norm(row), np.linalg.norm(v, axis=1).max(), np.abs(k).max()) for row in g]
    limits, constants = (np.array([of(*size) for size in sizes]) for of in (bound.row_limit, row_constant))
    return ds.T[:, :, None] * k[:, None, :], limits, constants[:, None], rng


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(6, 40), st.sampled_from([4, 16]),
    SCALES, SCALES, SCALES, SCALES, st.booleans(), st.booleans(),
)  # fmt: skip
def test_no_partial_sum_of_a_row_passes_its_bound_and_every_order_agrees(
    seed, rows, keys, dim, scale_q, scale_k, scale_v, scale_g, huge, causal
):
    contributions, limits, constants, rng = attention(
        seed, rows, keys, dim, scale_q, scale_k, scale_v, scale_g, huge, causal
    )  # fmt: skip
    orders, largest = totals_in_many_orders(rounded(contributions, constants) / (constants / 1.5), rng)

    assert np.all(np.abs(contributions).sum(axis=0) <= limits[:, None] / 2 * (1 + 1e-9))
    assert largest <= 1.0
    assert {orders[0]} == set(orders)


def test_without_rounding_the_orders_differ():
    contributions, _limits, _constants, rng = attention(3, 6, 40, 16, 1.0, 1.0, 1.0, 1.0, True, False)
    orders, _largest = totals_in_many_orders(contributions.astype(FLOAT), rng)

    assert len(set(orders)) > 1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 12), st.floats(1e-4, 1.0), st.integers(-60, 60))
def test_a_group_of_tiles_that_all_fit_is_exact(seed, group, share, exponent):
    c = bound.constant(2.0**exponent)
    rng = np.random.default_rng(seed)
    tiles = (rng.uniform(-1, 1, (group, 64)) * share).astype(FLOAT)
    tiles[:, 0] = 1.0  # the worst: all as large as may be, of one sign
    tiles *= FLOAT(c) * FLOAT(bound.most(group))
    orders, largest = totals_in_many_orders(rounded(tiles, c), rng)

    assert largest <= c / 1.5 * (1 + group * 2.0**-23)
    assert {orders[0]} == set(orders)


@given(st.integers(2, 16), st.integers(-60, 60))
def test_a_tile_in_the_shared_sum_keeps_eleven_bits_of_its_largest_element(group, exponent):
    c = bound.constant(2.0**exponent)
    largest = FLOAT(c) * FLOAT(bound.least())
    assume(bound.least() < bound.most(group))
    error = abs(float(rounded(np.array([largest * FLOAT(1.0001)]), c)[0]) - float(largest * FLOAT(1.0001)))

    assert error <= largest * 2.0**-12 * 1.001


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF))
def test_of_words_in_order_inf_and_nan_alone_are_negative(low, high):
    """What the forward's survey masks by, where it meets any."""
    ordered = np.array([bound.in_order(high << 16 | low)], np.uint32).view(np.int16)
    values = (np.array([low, high], np.uint32) << 16).view(FLOAT)

    assert (~np.isfinite(values)).tolist() == (ordered < 0).tolist()
