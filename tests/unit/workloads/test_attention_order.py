"""What finishing takes off dQ's sum is what the tiles put on it: which blocks meet, and the same bits in any order."""

import hypothesis.strategies as st
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings

from perfgate import discover

KERNELS = discover.module("attention.backward.kernels")
_add, _finish = KERNELS._add, KERNELS._finish
_counted = discover.module("attention.backward.quanta")._counted
_key_range, _query_range = KERNELS._key_range, KERNELS._query_range
MOST = 64  # blocks of queries or keys


@triton.jit
def _ranges(
    out,
    q_len,
    kv_len,
    window,
    MOST: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
):
    at = tl.arange(0, MOST)
    shift = kv_len - q_len
    first, last = _query_range(at * N, shift, q_len, window, M, N, CAUSAL, WINDOWED)
    tl.store(out + at, at * 0 + first)
    tl.store(out + MOST + at, at * 0 + last)
    first, last = _key_range(at * M, shift, kv_len, window, M, N, CAUSAL, WINDOWED)
    tl.store(out + 2 * MOST + at, at * 0 + first)
    tl.store(out + 3 * MOST + at, at * 0 + last)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.tuples(st.integers(1, 500), st.integers(1, 500)),
    window=st.none() | st.integers(1, 300),
    causal=st.booleans(),
    blocks=st.tuples(st.sampled_from([16, 32, 64]), st.sampled_from([16, 64, 128])),
)
def test_the_key_blocks_counted_for_a_query_block_are_those_that_add_to_it(lengths, window, causal, blocks):
    (q_len, kv_len), (rows, keys) = lengths, blocks
    device = "cuda" if torch.cuda.is_available() else "cpu"
    out = torch.empty((4, MOST), dtype=torch.int32, device=device)

    _ranges[(1,)](out, q_len, kv_len, window or 0, MOST, rows, keys, causal or window is not None, window is not None)

    first_query, last_query, first_key, last_key = out.cpu()[:, :, None]
    query_blocks, key_blocks = (torch.arange(-(-length // size)) for length, size in ((q_len, rows), (kv_len, keys)))
    added = ((query_blocks >= first_query) & (query_blocks < last_query))[: len(key_blocks)].T  # [query blocks, key blocks]
    counted = ((key_blocks >= first_key) & (key_blocks < last_key))[: len(query_blocks)]
    assert torch.equal(added, counted)


@triton.jit
def _add_in_order(parts, order, inverse, total, COUNT: tl.constexpr, D: tl.constexpr, M: tl.constexpr):
    cells = tl.arange(0, D)[:, None] * M + tl.arange(0, M)[None, :]
    for place in range(COUNT):
        part = tl.load(parts + tl.load(order + place) * D * M + cells)
        _add(total, _counted(part, tl.load(inverse + tl.arange(0, M))), 0, D, M, 2, False)


@pytest.mark.parametrize("magnitude", ["small", "at the limit", "beyond it", "not finite"])
def test_the_sums_bits_are_those_of_integers_added_in_any_order(magnitude, device):
    count, dim, rows = 9, 64, 32
    g = torch.Generator().manual_seed(3)
    exponents = torch.randint(-20, 20, (1, rows), generator=g)
    inverse = 2.0 ** -exponents.float()
    parts = torch.randn(count, dim, rows, generator=g) * 2.0 ** (exponents + 12.0)
    if magnitude == "at the limit":
        parts = torch.sign(parts) * 2.0 ** (exponents + 22.0)
    if magnitude == "beyond it":
        parts *= 2.0**20
    if magnitude == "not finite":
        parts[4, 3], parts[5, 4], parts[6, 5] = float("nan"), float("inf"), -float("inf")
    parts, inverse = parts.to(device), inverse.to(device)

    totals = []
    for seed in range(3):
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).to(device, torch.int32)
        total = torch.zeros(128 * dim, dtype=torch.int32, device=device)
        _add_in_order[(1,)](parts, order, inverse, total, count, dim, rows)
        totals.append(total)

    assert all(torch.equal(totals[0], other) for other in totals[1:])
    if magnitude in ("small", "at the limit"):
        sums = (parts.double() * 2.0 ** -exponents.to(device).double()).round().sum(dim=0)
        keys = torch.tensor([1.0], device=device)
        dq = torch.empty(1, 1, rows, dim, device=device)
        _finish[(1, 1)](
            totals[0], keys.expand(128).contiguous(), dq, *dq.stride()[:3], 1, rows, count * 16, 128, 0, 1.0,
            D=dim, M=rows, N=16, CAUSAL=False, WINDOWED=False, RULE=2
        )  # fmt: skip
        assert torch.equal(sums.T.float(), dq[0, 0])
