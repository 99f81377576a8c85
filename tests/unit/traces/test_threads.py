"""Portions at the same time, answers in their order."""

import pytest

from perfgate.traces import _threads
from perfgate.traces._threads import both, side_by_side


@pytest.mark.parametrize("workers", [1, 3])
def test_answers_come_in_the_order_of_the_items(monkeypatch, workers):
    monkeypatch.setattr(_threads, "WORKERS", workers)

    assert [number**2 for number in range(50)] == side_by_side(lambda number: number**2, range(50))
    assert [] == side_by_side(str, [])


@pytest.mark.parametrize("workers", [1, 3])
def test_an_error_is_raised_again(monkeypatch, workers):
    monkeypatch.setattr(_threads, "WORKERS", workers)

    with pytest.raises(ZeroDivisionError):
        side_by_side(lambda number: 1 // number, [1, 2, 0, 3])


def test_both_give_their_answers():
    assert (1, "two") == both(lambda: 1, lambda: "two")
