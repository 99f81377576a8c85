"""Every key and value is surveyed by exactly one share, whatever the shape."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate import discover

shares = discover.module("attention.fa4.shares")


@given(st.integers(1, 100_000), st.integers(1, 2000))
def test_shares_cover_every_row_once_in_order(kv_rows, count):
    found = [shares.share_rows(share, count, kv_rows) for share in range(count)]
    rows = [row for first, end in found for row in range(first, end)]

    assert list(range(kv_rows)) == rows


@given(st.integers(1, 100_000), st.sampled_from([1, 2, 3, 4, 8, 16]), st.sampled_from([128, 192]))
def test_shares_are_as_many_as_blocks_or_64(rows, group, tile):
    blocks = math.ceil(rows * group / tile)

    assert min(blocks, 64) == shares.shares(rows, group, tile)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4096, 1, 128), 32),
        ((4096, 4, 128), 64),
        ((4096, 1, 192), 22),
        ((1, 1, 128), 1),
        ((512, 1, 128), 4),
        ((129, 1, 128), 2),
    ],
)
def test_shares_of_typical_shapes(shape, expected):
    assert expected == shares.shares(*shape)


@pytest.mark.parametrize(("dim", "tile"), [(64, 192), (128, 128)])
def test_each_warp_of_a_share_has_a_part_of_its_own(dim, tile):
    assert 3 * shares.shares(1000, 2, tile) == shares.parts(1000, 2, dim)
