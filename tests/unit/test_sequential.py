import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfgate import sequential
from perfgate.errors import UsageError
from perfgate.estimate import Estimate, unpaired
from perfgate.sequential import FAIL, PASS, UNDECIDED, Looks
from tests.unit.arms import known


@pytest.mark.parametrize(
    ("first", "limit", "expected"),
    [(3, 24, (3, 6, 12, 24)), (3, 3, (3,)), (3, 5, (3, 5)), (3, 6, (3, 6)), (1, 1, (1,)), (2, 20, (2, 4, 8, 16, 20))],
)
def test_looks_double_until_the_limit(first, limit, expected):
    assert expected == Looks.plan(first, limit).at


@pytest.mark.parametrize(("first", "limit"), [(0, 3), (3, 2), (-1, 5)])
def test_impossible_plans_are_refused(first, limit):
    with pytest.raises(UsageError, match="--"):
        Looks.plan(first, limit)


@settings(deadline=None)
@given(st.integers(1, 10), st.integers(0, 50), st.floats(0.001, 0.2))
def test_all_looks_together_spend_alpha_and_no_more(first, more, alpha):
    looks = Looks.plan(first, first + more, alpha)
    levels = [looks.level(look, before) for before, look in zip((0, *looks.at), looks.at, strict=False)]

    assert all(level > 0 for level in levels)
    assert pytest.approx(alpha) == sum(levels)


def test_an_early_end_gets_a_look_of_its_own():
    looks = Looks.plan(3, 24)

    assert [3, 5] == looks.until(5, final=True)
    assert [3] == looks.until(5, final=False)
    assert [2] == looks.until(2, final=True)
    assert [] == looks.until(2, final=False)
    assert looks.until(24) == looks.until(30) == [3, 6, 12, 24]
    assert [] == looks.until(0)


def evidence(ratios, error=0.001, freedom=10.0, **doubt):
    logs = np.log(np.asarray(ratios, dtype=float))
    zero, never = np.zeros_like(logs), np.full_like(logs, np.inf)
    facts = {"drift_low": zero, "drift_high": zero, "reach_low": never, "reach_high": -never}
    facts |= {name: np.full_like(logs, value) for name, value in doubt.items()}
    return Estimate(logs, np.full_like(logs, error), np.full_like(logs, freedom), logs, **facts)


def decide(found, budget=0.15, ceiling=None, alpha=0.05, family=None, failed=0):
    size = len(found.log_ratio)
    limits = [np.full(size, math.log1p(limit)) for limit in (budget, budget if ceiling is None else ceiling)]
    return sequential.decide(found, *limits, alpha=alpha, family=family or size, failed=failed)


def test_three_outcomes():
    outcomes, _ = decide(evidence([1.14, 1.15, 1.16]))

    assert list(outcomes) == [PASS, UNDECIDED, FAIL]


def test_floor_excuses_a_small_excess_and_nothing_else():
    outcomes, _ = decide(evidence([1.155, 1.17, 1.1505]), ceiling=0.16)

    assert list(outcomes) == [PASS, FAIL, PASS]


def test_drift_and_modes_leave_it_open():
    assert list(decide(evidence([1.14], drift_high=0.05))[0]) == [UNDECIDED]
    assert list(decide(evidence([1.16], drift_low=0.05))[0]) == [UNDECIDED]
    assert list(decide(evidence([1.14], reach_high=math.log(1.2)))[0]) == [UNDECIDED]
    assert list(decide(evidence([1.14], reach_high=math.log(1.149)))[0]) == [PASS]
    assert list(decide(evidence([1.16], reach_low=math.log(1.1)))[0]) == [UNDECIDED]


def test_holm_is_harder_on_one_of_many():
    alone, level = decide(evidence([1.153]))
    among, levels = decide(evidence([1.153, *[1.149] * 19]))

    assert (alone[0], among[0]) == (FAIL, UNDECIDED)
    assert 0.05 == level[0]
    assert pytest.approx([0.05 / 20] * 20) == list(levels)


def test_holm_steps_down_after_each_failure():
    outcomes, levels = decide(evidence([1.30, 1.25, 1.0]))

    assert list(outcomes) == [FAIL, FAIL, PASS]
    assert pytest.approx([0.05 / 3, 0.05 / 2, 0.05]) == list(levels)


def test_family_stays_the_whole_run_at_later_looks():
    _, levels = decide(evidence([1.15]), family=20, failed=3)

    assert pytest.approx([0.05 / 17]) == list(levels)


@settings(deadline=None)
@given(st.lists(st.floats(0.9, 1.4), min_size=1, max_size=8), st.floats(0, 0.02))
def test_outcome_is_what_the_shown_bounds_say(ratios, error):
    found = evidence(ratios, error=error)
    outcomes, levels = decide(found)
    low, high = found.lowest(levels), found.highest(0.05)

    for place, outcome in enumerate(outcomes):
        if outcome == FAIL:
            assert low[place] >= math.log(1.15) - 1e-9
        if outcome == PASS:
            assert high[place] <= math.log(1.15) + 1e-9
        if outcome == UNDECIDED:
            assert low[place] <= math.log(1.15) + 1e-9
            assert high[place] >= math.log(1.15) - 1e-9


def test_blocks_needed_decide_about_every_other_time():
    rng = np.random.default_rng(1)
    looks, limit = Looks.plan(3, 24), math.log(1.15)
    found = unpaired(rng.normal(0, 0.01, 6), rng.normal(math.log(1.14), 0.01, 6))
    needed = known(sequential.blocks_needed(found, 3, limit, limit, looks, 1))
    noise, shape = float(found.error) * math.sqrt(3), (2000, 2 * needed)
    more = unpaired(rng.normal(0, noise, shape), rng.normal(float(found.log_ratio), noise, shape))

    assert needed > 3
    assert 0.3 < (more.highest(looks.level(24, 12)) <= limit).mean() < 0.7


def test_on_the_budget_no_number_of_blocks_is_enough():
    found = unpaired(np.array([0.0, 0.02, -0.02]), np.array([0.0, 0.02, -0.02]))

    assert sequential.blocks_needed(found, 3, 0.0, 0.0, Looks.plan(3, 24), 1) is None


@pytest.mark.parametrize(("blocks", "expected"), [([], 0), ([3], 3), ([3, 6], 3), ([6, 6], 6), ([24], 0), ([5, 24], 1)])
def test_next_look(blocks, expected):
    assert expected == sequential.next_look(blocks, Looks.plan(3, 24))
