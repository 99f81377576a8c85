"""The proof in numbers: quanta, rounding and certificates, against exact arithmetic, in any order."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from perfgate import discover

quantum = discover.module("dsa.cudnn.quantum")
f32s = st.floats(width=32, allow_nan=False, allow_infinity=False)
moderate = st.floats(min_value=-1e6, max_value=1e6, width=32)


def summed(values):
    """Left to right in f32, as atomics would in that order."""
    total = np.float32(0)
    for value in values:
        total = np.float32(total + np.float32(value))
    return float(total)


@settings(deadline=None)
@given(st.lists(moderate, min_size=1, max_size=30), st.integers(115, 165), st.randoms(use_true_random=False))
def test_a_certificate_that_holds_proves_the_sum_exact_in_every_order(values, exponent, random):
    certificate = sum(quantum.units(abs(value), exponent) for value in values)
    rounded = [quantum.rounded(value, exponent) for value in values]
    assume(certificate <= quantum.MOST_UNITS)

    exact = float(sum(map(Fraction, rounded)))
    q = quantum.quantum(exponent)
    assert all((value / q).is_integer() for value in rounded)
    for _ in range(5):
        random.shuffle(rounded)
        assert exact == summed(rounded)


def survey(values, first):
    """(count, largest, total), as the second run takes them before it adds ``values``."""
    magnitudes = [abs(value) for value in values]
    return len(values), max(magnitudes), sum(quantum.surveyed(one, first) for one in magnitudes)


def assert_exact_in_every_order(values, exponent, random):
    """Rounded to the quantum, the magnitudes fit 24 bits, and f32 sums in several orders are the exact one."""
    q, rounded = quantum.quantum(exponent), [quantum.rounded(value, exponent) for value in values]
    exact = float(sum(map(Fraction, rounded)))

    assert all((value / q).is_integer() and abs(value - given) <= q / 2 for value, given in zip(rounded, values, strict=True))
    assert quantum.MOST_UNITS >= sum(abs(value) / q for value in rounded)
    for order in (sorted(rounded), sorted(rounded, key=abs), *(random.sample(rounded, len(rounded)) for _ in range(3))):
        assert exact == summed(order)


@settings(deadline=None)
@given(st.lists(f32s, min_size=1, max_size=40), st.integers(1, quantum.MOST_EXPONENT), st.randoms(use_true_random=False))
def test_the_second_run_needs_no_certificate(values, first, random):
    exponent = quantum.exponent_again(*survey(values, first), first)
    assume(exponent <= quantum.MOST_EXPONENT)

    assert_exact_in_every_order(values, exponent, random)


@settings(deadline=None)
@given(
    st.lists(st.floats(2.0**-12, 1.0), min_size=1, max_size=60),
    st.floats(2.0**10, 2.0**33),
    st.floats(0.0, 0.999),
    st.integers(30, 200),
    st.randoms(use_true_random=False),
)
def test_the_sum_of_a_survey_proves_a_quantum_whatever_signs_and_sizes_it_has(shares, units, head, first, random):
    """Contributions of either sign, one up to a thousand times the rest together, that measure ``units`` quanta in all."""
    shares = [head * sum(shares) / (1 - head), *shares]
    values = [quantum.f32(random.choice((-1, 1)) * one / sum(shares) * units * quantum.quantum(first)) for one in shares]
    count, largest, total = survey(values, first)
    exponent = quantum.exponent_of_sum(total, count, largest, first)
    assume(exponent <= quantum.MOST_EXPONENT)

    assert total < quantum.MOST_SURVEYED
    assert_exact_in_every_order(values, exponent, random)


@settings(deadline=None)
@given(st.integers(1, 2**12), st.integers(-23, 8), st.integers(-3, 3), st.integers(1, 60), st.randoms(use_true_random=False))
def test_at_the_limit_of_24_bits_equal_signs_still_fit_and_a_finer_quantum_would_not_be_proven(spare, k, off, count, random):
    """Whole units and a little less, around the largest total that a quantum of 2^k units proves."""
    first, total = 120, max(2 * count, (((quantum.MOST_UNITS - count) << (k + 23)) >> 23) + off)
    assume(total < quantum.MOST_SURVEYED)
    parts = [total // count] * (count - 1) + [total - total // count * (count - 1)]
    values = [quantum.f32((one - random.choice((0, spare)) / 2**13) * quantum.quantum(first)) for one in parts]
    counted, largest, surveyed = survey(values, first)
    exponent = quantum.exponent_of_sum(surveyed, counted, largest, first)

    assert_exact_in_every_order(values, exponent, random)
    finer, held = exponent - 1 - first, quantum.MOST_UNITS - count
    if exponent > quantum.log2_above(largest) + 105:
        assert surveyed * Fraction(2) ** -finer > held


@settings(deadline=None)
@given(st.lists(f32s, min_size=1, max_size=20), st.integers(1, quantum.MOST_EXPONENT))
def test_the_second_quantum_is_never_coarser_than_that_of_count_and_largest(values, first):
    count, largest, total = survey(values, first)

    assert quantum.exponent_again(count, largest, total, first) <= quantum.exponent_of_largest(count, largest)


def test_a_row_with_one_contribution_far_above_the_rest_keeps_its_quantum():
    """As row 0 of case ``local``, whose certificate, taken from pairs, fails by a tenth; count · largest is 2¹⁰ coarser."""
    first, rest = 127, 2**23.4 / 2047
    values = [2.0**19.5, *[rest] * 2047]
    count, largest, total = survey(values, first)

    assert first == quantum.exponent_again(count, largest, total, first)
    assert first + 1 == quantum.exponent_again(count, largest, 2 * total, first)
    assert first + 10 == quantum.exponent_of_largest(count, largest)


@pytest.mark.parametrize("largest", [2.0**32, 2.0**40, 2.0**127, float("inf")])
def test_a_contribution_beyond_what_a_survey_counts_makes_its_sum_prove_nothing(largest):
    total = quantum.surveyed(largest, 127) + quantum.surveyed(1.0, 127)

    assert quantum.MOST_SURVEYED + 1 == total
    assert quantum.MOST_EXPONENT < quantum.exponent_of_sum(total, 2, min(largest, 2.0**127), 127)


def test_no_number_of_contributions_wraps_a_survey_around():
    most = quantum.surveyed(float("inf"), 1)

    assert 2**63 > quantum.MOST_UNITS + 1 + (2**31 - 1) * most


@pytest.mark.parametrize(
    ("count", "total", "exponent"),
    [(1, 2**24 - 1, 127), (1, 2**24, 128), (2**23, 2**23, 127), (2**23, 2**23 + 1, 128), (2**23 + 1, 2**23 + 1, 231)],
)
def test_every_contribution_takes_a_quantum_of_the_room_for_its_rounding(count, total, exponent):
    assert exponent == quantum.exponent_of_sum(total, count, 1.0, 127)


def test_so_many_contributions_that_their_count_alone_needs_24_bits_have_no_quantum():
    assert quantum.MOST_EXPONENT < quantum.exponent_again(2**24, 1.0, 2**24, 127)


@settings(deadline=None)
@given(f32s, st.integers(1, quantum.MOST_EXPONENT))
def test_a_survey_never_counts_a_contribution_below_its_size(value, first):
    counted = quantum.surveyed(abs(value), first)

    assert counted == quantum.MOST_SURVEYED or Fraction(abs(value)) <= counted * Fraction(2) ** (first - 127)
    assert (0 == counted) == (0 == value)


@settings(deadline=None)
@given(f32s.filter(lambda x: x != 0), st.integers(1, quantum.MOST_EXPONENT))
def test_a_contribution_is_never_counted_below_its_rounded_size(value, exponent):
    counted = quantum.units(abs(value), exponent)

    if abs(value) <= 2.0**22 * quantum.quantum(exponent):
        rounded = abs(quantum.rounded(value, exponent)) / quantum.quantum(exponent)
        assert rounded.is_integer()
        assert rounded <= counted <= 2**22
    else:
        assert counted > quantum.MOST_UNITS


@given(f32s, f32s)
def test_the_rounded_sum_of_two_magnitudes_bounds_both(one, other):
    total = quantum.f32(abs(one) + abs(other))

    assert total >= abs(one)
    assert total >= abs(other)


@given(
    st.integers(0, 2**14), st.integers(1, 16), st.floats(min_value=2.0**-100, max_value=2.0**100, width=32), st.integers(1, 4)
)
def test_the_guess_leaves_room_for_the_expected_sum_and_at_most_twice_as_much(sampled, every, reach, tiles):
    exponent = quantum.exponent_for(sampled, every, reach, tiles)

    hits = max((sampled + quantum.PRIOR) * every, quantum.LEAST_HITS)
    expected = Fraction(hits * tiles) * Fraction(reach) / quantum.MARGIN
    room = quantum.MOST_UNITS * Fraction(quantum.quantum(exponent))
    slack = Fraction(1) + Fraction(1, 2**22)  # of two roundings to f32
    if 1 < exponent < quantum.MOST_EXPONENT:
        assert expected <= room * slack
        assert room <= 2 * expected * slack


@pytest.mark.parametrize("reach", [0.0, -1.0, float("nan"), float("inf"), float("-inf")])
def test_a_reach_that_says_nothing_gives_the_finest_quantum_so_that_the_certificate_decides(reach):
    assert 1 == quantum.exponent_for(100, 16, reach, 1)
    assert quantum.MOST_UNITS < quantum.units(1e-20, 1)


def test_constants_at_both_ends_are_finite_and_normal():
    for exponent in (1, quantum.MOST_EXPONENT):
        assert 2.0**-126 <= quantum.quantum(exponent)
        assert math.isfinite(quantum.f32(quantum.bias(exponent) + 2**22 * quantum.quantum(exponent)))
        assert quantum.f32(quantum.bias(exponent)) == quantum.bias(exponent)
        assert 0 == quantum.bits(quantum.bias(exponent)) & 1  # what `tied` relies on


def test_nothing_adds_nothing_and_infinity_fails():
    assert 0 == quantum.units(0.0, 127)
    assert quantum.MOST_UNITS < quantum.units(float("inf"), 127)
    assert quantum.FAILS + 2**40 == quantum.units(float("inf"), 127)


def test_no_number_of_contributions_wraps_the_certificate_around():
    assert 2**63 > 2**22 * quantum.units(float("inf"), 127)  # queries times tiles, far beyond any case
