"""Slice ownership: every CTA of the whole grid has one slice, and one fixed place among the additions to it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from perfgate import discover

shape = discover.module("dsa.cudnn.shape")
split = discover.module("dsa.cudnn.split")


def kernels():
    return discover.module("dsa.cudnn.kernels")


@pytest.mark.parametrize("heads", [16, 64, 65, 128, 192])
@pytest.mark.parametrize("queries", [1, 64, 129, 257])
def test_no_two_ctas_that_can_run_at_once_share_a_slice_head_tiles_included(queries, heads):
    tiles = shape.tiles_of(heads)
    ctas = [query * tiles + tile for query in range(queries) for tile in range(tiles)]
    slices = split.slices_of(len(ctas), 132, 1024, 512, 2**40)

    assert list(range(queries * tiles)) == ctas
    for first in range(0, len(ctas), slices):
        together = [split.slice_of(cta, slices) for cta in ctas[first : first + slices]]
        assert len(together) == len(set(together))
        assert all(0 <= one < slices for one in together)


@given(st.integers(1, 300), st.integers(1, 140), st.sets(st.integers(0, 299)))
def test_the_ctas_of_a_slice_form_one_chain_in_ascending_order(ctas, slices, empty):
    empty = frozenset(empty)
    adding = [cta for cta in range(ctas) if cta not in empty]
    followers = [split.before(cta, slices, empty) for cta in adding]

    for cta, earlier in zip(adding, followers, strict=True):
        same = [other for other in adding if other < cta and split.slice_of(other, slices) == split.slice_of(cta, slices)]
        assert earlier == (same[-1] if same else -1)
    waited_for = [earlier for earlier in followers if earlier >= 0]
    assert len(waited_for) == len(set(waited_for))  # nobody has two that go next


def test_slices_follow_concurrent_ctas_and_not_kv_rows():
    assert 132 == split.slices_of(16384, 132, 16384, 512, 2**50)
    assert 132 == split.slices_of(16384, 132, 524288, 512, 2**50)
    assert 64 == split.slices_of(64, 132, 16384, 512, 2**50)


def test_a_limit_cuts_the_slices_and_one_that_holds_none_is_refused_with_the_formula():
    assert 80 == split.slices_of(16384, 132, 16384, 512, shape.SLICE_WORKSPACE)

    with pytest.raises(MemoryError, match=r"524288 rows x 576 columns x 4 bytes = 1207959552, max_workspace is 1000000000"):
        split.slices_of(16384, 132, 524288, 576, 10**9)


def test_the_declared_workspace_stays_within_the_limit_but_for_statistics_and_turns():
    slices = split.slices_of(16384, 132, 16384, 512, shape.SLICE_WORKSPACE)

    needed = split.split_bytes(16384, 16384, 64, 512, slices)

    assert slices * 16384 * 512 * 4 + 2 * 16384 * 64 * 4 + 64 * 4 + 16384 * 8 == needed


@pytest.mark.parametrize("lengths", [None, [3, 0, -1, 5, 0, 7, 1]])
@pytest.mark.parametrize(("tiles", "slices"), [(1, 2), (2, 3), (2, 5), (1, 9)])
def test_every_cta_waits_for_the_one_that_split_names(tiles, slices, lengths, device):
    ctas = 7 * tiles
    given = None if lengths is None else torch.tensor(lengths, dtype=torch.int32, device=device)

    actual = kernels().turns(given, ctas, tiles, slices, torch.device(device))

    empty = frozenset(cta for cta in range(ctas) if lengths is not None and lengths[cta // tiles] <= 0)
    assert [split.before(cta, slices, empty) for cta in range(ctas)] == actual.tolist()
    assert torch.int32 == actual.dtype


@pytest.mark.parametrize("slices", [1, 3, 7])
def test_slices_are_folded_in_ascending_order_bit_for_bit(slices, device):
    size = 5000
    memory = torch.randn(slices * size + 8, generator=torch.Generator().manual_seed(5)).to(device)
    parts = memory[: slices * size].view(slices, size).cpu().numpy().copy()
    behind = memory[size:].clone()

    kernels().fold(memory, size, slices)

    total = parts[0]
    for part in parts[1:]:
        total = np.add(total, part, dtype=np.float32)
    assert np.array_equal(total.view(np.int32), memory[:size].cpu().numpy().view(np.int32))
    assert torch.equal(behind, memory[size:])
