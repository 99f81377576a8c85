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


@settings(deadline=None)
@given(st.lists(f32s, min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_the_second_run_needs_no_certificate(values, random):
    largest = max(abs(value) for value in values)
    assume(largest <= 2.0**100)
    exponent = quantum.exponent_again(len(values), largest)
    rounded = [quantum.rounded(value, exponent) for value in values]
    exact = float(sum(map(Fraction, rounded)))

    assert quantum.MOST_UNITS >= sum(math.ceil(abs(value) / quantum.quantum(exponent)) for value in rounded)
    for _ in range(3):
        random.shuffle(rounded)
        assert exact == summed(rounded)


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

    expected = Fraction((sampled + quantum.PRIOR) * every * tiles) * Fraction(reach) / quantum.MARGIN
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
