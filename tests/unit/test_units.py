import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate import units


@pytest.mark.parametrize(
    ("ns", "expected"),
    [
        (None, "–"),
        (math.nan, "–"),
        (0, "0 ns"),
        (3, "3 ns"),
        (3550, "3.55 us"),
        (48_210, "48.2 us"),
        (482_100, "482.1 us"),
        (999_999, "1.00 ms"),
        (1_028_900, "1.03 ms"),
        (-10_000, "−10.0 us"),
        (2_500_000_000, "2.50 s"),
        (86_400_000_000_000, "86400 s"),
    ],
)
def test_format_ns(ns, expected):

    assert expected == units.format_ns(ns)


@pytest.mark.parametrize(
    ("size", "expected"),
    [(None, "–"), (12, "12 B"), (1024, "1 KiB"), (512 * 2**20, "512 MiB"), (3 * 2**29, "1.50 GiB"), (-(2**20), "−1 MiB")],
)
def test_format_bytes(size, expected):

    assert expected == units.format_bytes(size)


@pytest.mark.parametrize(
    ("fraction", "expected"),
    [
        (None, "–"),
        (math.nan, "–"),
        (0.1234, "+12.3 %"),
        (-0.53, "−53.0 %"),
        (-0.00001, "0.0 %"),
        (0.0, "0.0 %"),
        (1.234, "+123 %"),
    ],
)
def test_format_percent(fraction, expected):

    assert expected == units.format_percent(fraction)


def test_percent_without_sign_is_for_sizes_not_differences():
    expected = "1.25 %"

    assert expected == units.format_percent(0.0125, decimals=2, sign=False)


@pytest.mark.parametrize(
    ("fraction", "expected"), [(0.15, "+15 %"), (-0.5, "−50 %"), (0.0, "0 %"), (0.0125, "+1.25 %"), (None, "–")]
)
def test_format_limit(fraction, expected):

    assert expected == units.format_limit(fraction)


@pytest.mark.parametrize(("ratio", "expected"), [(1.1234, "1.123×"), (None, "–"), (math.nan, "–")])
def test_format_ratio(ratio, expected):

    assert expected == units.format_ratio(ratio)


def test_overhead_of_a_ratio_and_of_none():

    assert units.overhead(1.15) == pytest.approx(0.15)
    assert units.overhead(None) is None


def test_a_column_shares_its_unit_and_decimals():
    values = [1_028_900, 482_100, 3_550, None]
    scale = units.time_scale(values)
    expected = ["us", "1028.90", "482.10", "3.55", "–"]

    assert expected == [scale.unit, *(scale.format(value) for value in values)]


def test_a_column_without_figures_has_a_scale_that_shows_them_missing():
    expected = "–"

    assert expected == units.time_scale([None, None]).format(None)


def test_a_column_of_bytes():
    scale = units.byte_scale([2**20, 3 * 2**20])
    expected = ("MiB", "3.000")

    assert expected == (scale.unit, scale.format(3 * 2**20))


@pytest.mark.parametrize(
    ("value", "expected"), [(8_900, "+8.900"), (-8_900, "−8.900"), (0, "0.000"), (-0.1, "0.000"), (None, "–")]
)
def test_a_difference_always_has_its_sign(value, expected):

    assert expected == units.Scale("us", 1e3, 3).difference(value)


@given(st.integers(min_value=1, max_value=10**15))
def test_no_measured_time_is_ever_shown_as_zero(ns):
    shown = units.format_ns(ns)

    assert float(shown.split()[0]) > 0


@given(st.integers(min_value=1, max_value=10**13))
def test_what_is_shown_is_within_one_percent_of_what_was_measured(ns):
    number, unit = units.format_ns(ns).split()
    factor = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}[unit]

    assert pytest.approx(ns, rel=0.01) == float(number) * factor
