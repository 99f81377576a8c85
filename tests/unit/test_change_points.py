from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.change_points import change_points, penalty


def levels(*parts, noise=0.003, seed=1):
    """Logs that stay at each (level, runs) for so many runs."""
    rng = np.random.default_rng(seed)
    return np.concatenate([level + rng.normal(0, noise, runs) for level, runs in parts])


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([(0.0, 20)], []),
        ([(0.0, 8), (0.05, 6)], [8]),
        ([(0.0, 8), (-0.08, 1)], [8]),
        ([(0.0, 6), (0.04, 5), (0.0, 6)], [6, 11]),
        ([(0.0, 4), (0.1, 1)], [4]),
    ],
)
def test_changes_are_found_where_they_are(parts, expected):
    logs = levels(*parts)

    assert expected == [change.at for change in change_points(logs, np.full(logs.size, 0.003))]


def test_a_change_says_how_much():
    logs = levels((0.0, 10), (np.log(1.05), 10))

    assert change_points(logs, np.full(20, 0.003))[0].fraction == pytest.approx(0.05, abs=0.005)


def test_fewer_than_five_runs_tell_nothing():

    assert change_points([0.0, 0.0, 0.5, 0.5], [0.001] * 4) == []


def test_a_small_certain_change_is_not_worth_a_mark():
    logs = levels((0.0, 50), (0.006, 50), noise=0.0005)

    assert change_points(logs, np.full(100, 0.0005)) == []
    assert len(change_points(logs, np.full(100, 0.0005), least=0.003)) == 1


def test_a_value_with_a_wide_interval_moves_nothing():
    logs, errors = levels((0.0, 12)), np.full(12, 0.003)
    logs[6], errors[6] = 0.2, 0.2

    assert change_points(logs, errors) == []


@pytest.mark.parametrize(("runs", "wander"), [(5, 0.02), (10, 0.004), (30, 0.02), (60, 0.004)])
def test_at_most_one_series_in_a_hundred_without_a_change_shows_one(runs, wander):
    rng = np.random.default_rng(runs)
    errors = np.full(runs, 0.003)
    scale = np.hypot(wander, 0.003)
    shown = sum(bool(change_points(rng.normal(0, scale, runs), errors, least=0.0)) for _ in range(1000))

    assert shown <= 20


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(0, 0.1)), min_size=5, max_size=25))
def test_changes_lie_inside_in_order_and_join_levels(values):
    logs, errors = zip(*values, strict=True)
    changes = change_points(logs, errors, least=0.0)

    assert all(0 < change.at < len(logs) for change in changes)
    assert [change.at for change in changes] == sorted({change.at for change in changes})
    assert all(a.after == b.before for a, b in pairwise(changes))


def test_the_fewer_runs_the_dearer_a_change():

    assert penalty(5) > penalty(10) > penalty(100)
