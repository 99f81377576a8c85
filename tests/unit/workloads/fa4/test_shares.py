"""Every key and value is surveyed by exactly one share, whatever the shape, and by blocks that live long enough for it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate import discover

shares = discover.module("attention.fa4.shares")
SHAPES = st.tuples(
    st.integers(1, 5000), st.integers(1, 5000), st.sampled_from([1, 2, 3, 4, 8, 16]), st.sampled_from([128, 192])
)
WINDOWS = st.one_of(st.none(), st.integers(1, 5000))


@given(st.integers(1, 100_000), st.integers(1, 2000))
def test_shares_cover_every_row_once_in_order(kv_rows, count):
    found = [shares.share_rows(share, count, kv_rows) for share in range(count)]
    rows = [row for first, end in found for row in range(first, end)]

    assert list(range(kv_rows)) == rows


@given(SHAPES, st.booleans(), WINDOWS)
def test_shares_are_as_many_as_blocks_at_most_and_one_at_least(shape, causal, window):
    rows, kv_rows, group, tile = shape
    found = shares.shares(rows, kv_rows, group, tile, causal or window is not None, window)

    assert 1 <= found <= shares.blocks(rows, group, tile)


def keys_of_block(block, rows, kv_rows, group, tile, causal, window):
    """How many keys the last row of a block sees."""
    last = min((block + 1) * tile, rows * group) - 1
    seen = last // group + kv_rows - rows + 1 if causal else kv_rows
    return max(min(seen, kv_rows, kv_rows if window is None else window), 0)


@given(SHAPES, st.booleans(), WINDOWS)
def test_blocks_that_survey_are_those_that_see_at_least_half_of_what_the_last_one_sees(shape, causal, window):
    rows, kv_rows, group, tile = shape
    causal = causal or window is not None
    count, every = shares.shares(rows, kv_rows, group, tile, causal, window), shares.blocks(rows, group, tile)
    seen = [keys_of_block(block, rows, kv_rows, group, tile, causal, window) for block in range(every)]

    assert [2 * one >= seen[-1] for one in seen] == [block >= every - count for block in range(every)]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4096, 4096, 1, 128, True, None), 17),
        ((4096, 4096, 1, 128, False, None), 32),
        ((4096, 4096, 4, 128, True, None), 65),
        ((4096, 4096, 1, 128, True, 100), 32),
        ((1, 4096, 1, 128, True, None), 1),
        ((128, 4096, 1, 128, True, None), 1),
        ((4096, 128, 1, 128, True, None), 1),
        ((4096, 512, 1, 128, True, None), 3),
        ((512, 512, 1, 128, True, None), 3),
        ((129, 129, 1, 128, True, None), 2),
    ],
)
def test_shares_of_typical_shapes(shape, expected):
    assert expected == shares.shares(*shape)


@pytest.mark.parametrize(("dim", "tile"), [(64, 192), (128, 128)])
def test_each_warp_of_a_share_has_a_part_of_its_own(dim, tile):
    assert 3 * shares.shares(1000, 700, 2, tile, True, None) == shares.parts(1000, 700, 2, dim, True, None)
