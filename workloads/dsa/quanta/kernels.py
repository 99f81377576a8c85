"""The quantum of every kv row, and the proof that it was coarse enough, without waiting for the host.

A row's quantum q must be so coarse that all partial sums of its contributions stay within 2²⁴·q (``blocks/exact``): then no f32
addition rounds and atomics in any order give the same bits. It must be as fine as that allows, or rounding to it is seen.

* Chosen: a row that n contributions hit gets the smallest q with (n + 64)·reach ≤ 4·2²⁴·q. ``reach`` is one scalar that the
  step before left: four times what a contribution's largest element may measure in the mean over a row. n is counted here, in
  this step; the 64 leave room for the few large ones of a row that is hit a few times.
* Certified: each contribution books ⌈its largest element / q⌉ beside what it adds (2²⁵ where that exceeds 2²², beyond which
  rounding is not exact): integers, in any order. At most 2²⁴ of them proves every partial sum.
* Mended: rows whose certificate fails are cleared and added again with the quantum of ``blocks/exact``, from count and largest
  element: that one needs no certificate. So are rows whose largest element is below 2⁹ quanta where that quantum is at least
  four times finer: a ``reach`` from a step with a spike costs time, not accuracy. A row that receives anything not finite
  becomes NaN, always.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ...blocks import checks
from ...blocks.configs import config_for
from ...blocks.exact.kernels import _exponent, _power_of_two

FEW = tl.constexpr(64)  # hits that every row is taken to have beyond those it has
MARGIN = tl.constexpr(8.0)  # reach is 4 means; contributions may double until the next step


@triton.jit
def _count(topk, lengths, counts, keys, chosen, LENGTHS: tl.constexpr, BLOCK: tl.constexpr):
    """Counts how often each kv row is chosen: integer atomics, order-free."""
    query = tl.program_id(0).to(tl.int64)
    entry = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    last = chosen
    if LENGTHS:
        last = tl.minimum(tl.load(lengths + query), chosen)
    row = tl.load(topk + query * chosen + entry, mask=entry < last, other=-1)
    tl.atomic_add(counts + row, 1, mask=(row >= 0) & (row < keys), sem="relaxed")


@triton.jit
def _choose(counts, reach, exponents, keys, tiles, BLOCK: tl.constexpr):
    """The biased exponent of each row's quantum: the smallest with (count · tiles + FEW) · reach below 2^26 quanta."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    count = tl.load(counts + row, mask=row < keys, other=0) * tiles + FEW
    total = count.to(tl.float32) * tl.load(reach)
    exponent = (total.to(tl.int32, bitcast=True) >> 23) - 25
    exponent = tl.where((total > 0) & (total < float("inf")), exponent, 1)
    tl.store(exponents + row, tl.maximum(exponent, 1), mask=row < keys)


@triton.jit
def _judge(
    counts, exponents, units, largest, sums, failed, again, any_failed, reach, keys, tiles, width,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of each row: does its certificate hold, was its quantum fine? If not, its sum is cleared, to be taken ``again``."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < keys
    count = tl.load(counts + row, mask=inside, other=0) * tiles
    booked = tl.load(units + row, mask=inside, other=0)
    top = tl.load(largest + row, mask=inside, other=0)
    exponent = tl.load(exponents + row, mask=inside, other=1)
    own = _exponent(tl.maximum(count, 1), top)
    own = tl.where(count > 16777216, 255, own)  # beyond the proof: NaN
    coarse = (top > 0) & ((top >> 23) - exponent < 9) & (own + 2 <= exponent)
    bad = (booked > 16777216) | coarse
    tl.store(failed + row, bad.to(tl.int8), mask=inside)
    tl.store(again + row, own, mask=inside)
    # what the row's sum of largest elements was, or at most; no single one may pass 2^21 quanta, so that it may double
    highest = tl.where(top < 0x7F800000, top, 0).to(tl.float32, bitcast=True)
    total = tl.where(bad, highest * count.to(tl.float32), booked.to(tl.float32) * _power_of_two(exponent))
    mean = tl.maximum(total, 4 * highest) / (count + FEW).to(tl.float32)
    mean = tl.max(tl.where(inside & (count > 0), mean, 0.0), axis=0) * MARGIN
    tl.atomic_max(reach, mean.to(tl.int32, bitcast=True), sem="relaxed")
    worst = tl.max(bad.to(tl.int32), axis=0)
    tl.store(any_failed, 1, mask=worst > 0)
    limit = tl.where(worst > 0, width, 0)
    for start in range(0, limit, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        place = sums + row.to(tl.int64)[:, None] * width + columns[None, :]
        tl.store(place, tl.zeros((ROWS, BLOCK), dtype=tl.float32), mask=bad[:, None] & (columns < width)[None, :])


@dataclass(frozen=True)
class Books:
    """What contributions book beside what they add, per kv row [S_k].

    ``counts`` int32 of hits, ``exponents`` int32 of the quanta (biased); ``units`` int64 and ``largest`` int32 (the largest
    element's f32 bits) start at 0 and are added to and raised by atomics.
    """

    counts: torch.Tensor
    exponents: torch.Tensor
    units: torch.Tensor
    largest: torch.Tensor
    tiles: int  # contributions per hit: a query adds to a row once per tile of heads


@dataclass(frozen=True)
class Verdict:
    """What the certificates said.

    ``failed`` [S_k] int8 (1: add again), ``again`` [S_k] int32: the quanta for that, ``any_failed`` [1] int32, and ``reach``
    [1] f32 for the next step.
    """

    failed: torch.Tensor
    again: torch.Tensor
    any_failed: torch.Tensor
    reach: torch.Tensor


def count_rows(topk: torch.Tensor, topk_length: torch.Tensor | None, keys: int) -> torch.Tensor:
    """How often each of ``keys`` rows is chosen by ``topk`` [S_q, K] int32, as [keys] int32.

    Only the first ``topk_length`` [S_q] int32 entries of a row count, and of those only 0 .. keys − 1.
    """
    checks.require_shape("topk", topk, (None, None))
    checks.require_dtype("topk", topk, "int32")
    counts = torch.zeros((keys,), dtype=torch.int32, device=topk.device)
    queries, chosen = topk.shape
    if topk.numel():
        options = config_for("dsa.count", chosen, topk)
        _count[(queries, triton.cdiv(chosen, options["BLOCK"]))](
            topk, topk if topk_length is None else topk_length, counts, keys, chosen,
            LENGTHS=topk_length is not None, **options,
        )  # fmt: skip
    return counts


def open_books(counts: torch.Tensor, reach: torch.Tensor, tiles: int) -> Books:
    """The quanta of rows hit ``counts`` [S_k] int32 times by ``tiles`` contributions of ``reach`` / 4 ([1] f32) in the mean.

    A ``reach`` of 0 is "no step before": every row then fails its certificate and is added twice.
    """
    checks.require_dtype("reach", reach, "float32")
    keys = counts.shape[0]
    units = torch.zeros((keys,), dtype=torch.int64, device=counts.device)
    largest = torch.zeros((keys,), dtype=torch.int32, device=counts.device)
    exponents = torch.empty_like(counts)
    options = config_for("dsa.choose", keys, counts)
    _choose[(triton.cdiv(keys, options["BLOCK"]),)](counts, reach, exponents, keys, tiles, **options)
    return Books(counts, exponents, units, largest, tiles)


def judge(books: Books, sums: torch.Tensor) -> Verdict:
    """Which rows of ``sums`` [S_k, D] f32 are proven; the others are cleared. Decided by order-free integers, on the device."""
    checks.require_dtype("sums", sums, "float32")
    checks.require_shape("sums", sums, (books.counts.shape[0], None))
    keys, width = sums.shape
    failed = torch.empty((keys,), dtype=torch.int8, device=sums.device)
    again = torch.empty((keys,), dtype=torch.int32, device=sums.device)
    any_failed = torch.zeros((1,), dtype=torch.int32, device=sums.device)
    reach = torch.zeros((1,), dtype=torch.int32, device=sums.device)
    options = config_for("dsa.judge", width, sums)
    _judge[(triton.cdiv(keys, options["ROWS"]),)](
        books.counts, books.exponents, books.units, books.largest, sums, failed, again, any_failed, reach,
        keys, books.tiles, width, **options,
    )  # fmt: skip
    return Verdict(failed, again, any_failed, reach.view(torch.float32))
