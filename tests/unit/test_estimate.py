import numpy as np
import pytest
from scipy import stats

from perfgate import estimate


def test_unpaired_is_welchs_interval_with_fewer_degrees_of_freedom():
    rng = np.random.default_rng(1)
    a, b = rng.normal(0, 1, 6), rng.normal(1, 3, 7)
    expected = stats.ttest_ind(b, a, equal_var=False)
    evidence = estimate.unpaired(a, b)
    error = (b.mean() - a.mean()) / expected.statistic
    freedom = (expected.df + 5) / 2

    assert pytest.approx((error, freedom)) == (float(evidence.error), float(evidence.freedom))
    assert pytest.approx(b.mean() - a.mean() - stats.t.ppf(0.95, freedom) * error) == float(evidence.low(0.05))
    assert pytest.approx(stats.t.sf(expected.statistic, freedom)) == float(evidence.p_above(np.asarray(0.0)))


def test_level_holds_where_one_arm_is_much_noisier():
    rng = np.random.default_rng(6)
    evidence = estimate.unpaired(rng.normal(0, 0.25, (200_000, 6)), rng.normal(0, 1, (200_000, 6)))
    level = 0.001

    assert level * 1.2 > (evidence.p_above(np.zeros(200_000)) <= level).mean()


def test_paired_is_students_interval():
    differences = np.random.default_rng(2).normal(0.1, 0.05, 6)
    expected = stats.ttest_1samp(differences, 0).confidence_interval(0.9)
    evidence = estimate.paired(differences)

    assert expected == pytest.approx((float(evidence.low(0.05)), float(evidence.high(0.05))))


def test_many_ranges_at_once_are_the_same_as_one_by_one():
    rng = np.random.default_rng(3)
    a, b = rng.normal(0, 1, (5, 6)), rng.normal(0, 1, (5, 6))
    together = estimate.unpaired(a, b)
    alone = [float(estimate.unpaired(a[n], b[n]).high(0.01)) for n in range(5)]

    assert pytest.approx(list(together.high(0.01))) == alone


def test_no_noise_at_all_decides_by_the_sign():
    evidence = estimate.unpaired(np.zeros(6), np.full(6, 0.125))

    assert [0.0, 1.0, 1.0] == [float(evidence.p_above(np.asarray(limit))) for limit in (0.05, 0.125, 0.2)]
    assert 0.0 == float(evidence.detectable(0.01))


def test_one_slow_process_is_another_mode_and_widens_both_bounds():
    a, b = np.array([0, 1e-4, 0, -1e-4, 0, 0]), np.array([0, 0, 1e-4, 0, -1e-4, 0.1])
    evidence = estimate.unpaired(a, b)

    assert bool(evidence.parted)
    assert pytest.approx(float(evidence.reach_high), abs=1e-3) == 0.1
    assert 1.0 == float(evidence.p_below(np.asarray(0.09)))
    assert float(evidence.p_below(np.asarray(0.11))) < 1.0


def test_plain_noise_is_one_mode():
    rng = np.random.default_rng(4)
    evidence = estimate.unpaired(rng.normal(0, 0.003, (2000, 6)), rng.normal(0, 0.003, (2000, 6)))

    assert evidence.parted.mean() < 0.01


def test_detectable_effect_is_found_with_95_percent_probability():
    rng = np.random.default_rng(5)
    excess = np.log1p(
        estimate.unpaired(rng.normal(0, 0.003, (4000, 24)), rng.normal(0, 0.003, (4000, 24))).detectable(0.05).mean()
    )
    found = estimate.unpaired(rng.normal(0, 0.003, (4000, 24)), rng.normal(excess, 0.003, (4000, 24))).p_above(np.zeros(4000))

    assert pytest.approx((found <= 0.05).mean(), abs=0.015) == 0.95
