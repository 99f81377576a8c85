"""Columns without pandas: what goes in comes out, whole or in part."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest

from perfgate.traces.table import Framed, FramedOrNone, Table, Texts, distinct, is_steady, steady, table_in, taken

FRAME = pd.DataFrame(
    {"n": [3, 1, 3], "text": pd.Categorical(["b", "a", "b"]), "plain": ["y", "x", "y"], "yes": [True, False, True]}
)


@dataclass(frozen=True)
class Holder:
    rows: Framed = Framed()  # noqa: RUF009
    more: FramedOrNone = FramedOrNone()  # noqa: RUF009


def test_a_frame_and_back():
    back = Table.of(FRAME).frame

    assert FRAME.to_dict("list") == back.to_dict("list")
    assert isinstance(back["plain"].dtype, pd.CategoricalDtype)


def test_some_rows():
    some = Table.of(FRAME).take(np.array([1, 0]))

    assert (2, [1, 3], ["a", "b"]) == (len(some), some.ints("n").tolist(), some.texts("text").at(np.arange(2)))


def test_columns_added_and_replaced():
    changed = Table({"n": np.array([1, 2])}).with_columns(n=np.array([5, 6]), m=np.array([7, 8]))

    assert {"n": [5, 6], "m": [7, 8]} == changed.frame.to_dict("list")


def test_which_rows_hold_one_of_some_texts():
    column = Texts(np.array([0, 1, 0, 2]), ["a", "b", "c"])

    assert [True, False, True, True] == column.is_one_of(("c", "a", "z")).tolist()
    assert [False] * 4 == column.is_one_of(("z",)).tolist()


def test_a_field_takes_tables_and_frames_and_reads_as_a_frame():
    table = Table({"n": np.array([1, 2])})
    held = Holder(table, None)

    assert ([1, 2], None) == (held.rows["n"].tolist(), held.more)
    assert table is table_in(held, "rows")
    assert [3, 1, 3] == table_in(replace(held, more=FRAME), "more").ints("n").tolist()
    assert held.rows is held.rows


def test_a_field_has_to_be_given():
    with pytest.raises(TypeError, match="rows"):
        Holder()  # type: ignore[call-arg]


def test_equal_values_take_the_memory_of_one():
    values = steady(np.full(1000, 7))

    assert (True, 1000, [7]) == (is_steady(values), len(values), distinct(values))
    assert is_steady(taken(values, np.array([1, 2, 3])))
    assert 2 == len(taken(values, np.arange(1000) < 2))
    assert not is_steady(steady(np.array([7, 8, 7])))
    assert [7, 8] == distinct(np.array([8, 7, 8]))
