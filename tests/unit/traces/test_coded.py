"""Codes in place of values, by whichever way is quickest for them."""

from __future__ import annotations

import numpy as np
import pytest

from perfgate.traces._coded import all_occur, coded, named, numbered, one_of_each

RANDOM = np.random.default_rng(0)
COLUMNS = {
    "none": np.empty(0, dtype=np.int64),
    "one": np.array([5]),
    "equal": np.broadcast_to(np.int64(9), 50),
    "close together": RANDOM.integers(-20, 20, 10_000),
    "few and far apart": RANDOM.integers(-(2**62), 2**62, 30)[RANDOM.integers(0, 30, 10_000)],
    "many and far apart": RANDOM.integers(-(2**62), 2**62, 10_000),
    "the extremes": np.array([np.iinfo(np.int64).min, np.iinfo(np.int64).max, 0, np.iinfo(np.int64).min]),
}


@pytest.mark.parametrize("values", COLUMNS.values(), ids=COLUMNS.keys())
def test_every_value_has_its_code(values):
    codes, unique = numbered(values)

    assert values.tolist() == unique[codes].tolist()
    assert sorted(set(values.tolist())) == sorted(unique.tolist())


@pytest.mark.parametrize("late", [0, 3000, 9000, 200_000])
def test_a_place_of_each_code_however_late_it_comes(late):
    codes = np.append(np.zeros(late, dtype=np.int64), [1, 2, 0])
    places = one_of_each(codes, 3)

    assert [0, 1, 2] == codes[places].tolist()


def test_whether_all_codes_occur_is_told_from_the_first_rows():
    assert all_occur(np.array([1, 0, 1]), 2)
    assert not all_occur(np.array([0, 2]), 3)


def test_equal_texts_become_one():
    column = coded(np.array([0, 1, 2, 1]), ["a", "b", "a"])

    assert (["a", "b", "a", "b"], ["a", "b"]) == (column.at(np.arange(4)), list(column.names))


def test_many_texts_need_wider_codes():
    column = coded(np.arange(300), [f"name {number}" for number in range(300)])

    assert [f"name {number}" for number in range(300)] == column.at(np.arange(300))


def test_a_name_is_made_once_per_key():
    asked = []
    column = named(np.array([7, 3, 7]), lambda key: asked.append(key) or f"k{key}")

    assert (["k7", "k3", "k7"], [3, 7]) == (column.at(np.arange(3)), sorted(asked))
