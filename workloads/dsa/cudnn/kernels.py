"""Triton kernels around the hooked one: quanta before it, judgement and second run after it, the fold of slices.

Tables lie behind the accumulator (``shape.tables_bytes``): per row C, certificate, count and largest magnitude; then one flag.
Until the judgement the largest magnitudes' place holds what the main kernel looks up: the exponents of all C, a byte each. From
then on the certificates' place holds what the second run's survey adds up.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from . import shape
from .quantum import (
    FEW_QUANTA,
    LEAST_HITS,
    LITTLE_USED,
    MARGIN,
    MOST_EXPONENT,
    MOST_SUMMED,
    MOST_SURVEYED,
    MOST_UNITS,
    PRIOR,
)

LOG2_E = tl.constexpr(1.4426950408889634)
HIGHEST = tl.constexpr(MOST_EXPONENT)
PROVEN = tl.constexpr(MOST_UNITS)
MARKED = tl.constexpr(MOST_UNITS + 1)  # in place of the certificate of a row to be summed again; its survey is added to it
CUT = tl.constexpr(MOST_SURVEYED)
SUMMED = tl.constexpr(MOST_SUMMED)
FEW = tl.constexpr(FEW_QUANTA)
ROOM = tl.constexpr(LITTLE_USED)
SECOND_RUN_PROGRAMS = 264  # two per SM of an H200; most often they have nothing to do
LINE = 1024  # elements that one program of the fold takes


@triton.jit
def _bias(exponent):
    """C = 1.5·2²³·q for the biased exponent of q."""
    return (((exponent + 23) << 23) | 0x400000).to(tl.float32, bitcast=True)


@triton.jit
def _sample(topk, lengths, sampled, keys, chosen, every, LENGTHS: tl.constexpr, BLOCK: tl.constexpr):
    """Counts, per row, the entries of one query in ``every``."""
    query = tl.cast(tl.program_id(0), tl.int64) * every
    last = chosen
    if LENGTHS:
        last = tl.minimum(tl.load(lengths + query), chosen)
    for start in range(0, last, BLOCK):
        entry = start + tl.arange(0, BLOCK)
        row = tl.load(topk + query * chosen + entry, mask=entry < last, other=-1)
        tl.atomic_add(sampled + row, 1, mask=(row >= 0) & (row < keys), sem="relaxed")


@triton.jit
def _choose(
    sampled, exponents, hits, reach, every, tiles, rows,
    SHARE: tl.constexpr, GUESS: tl.constexpr, LEAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Turns each row's count into its constant C, in place (``quantum.exponent_for``), and leaves the ``hits`` expected.

    ``exponents`` gets the biased exponent of each C, a byte per row.
    """
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    count = tl.load(sampled + row, mask=row < rows, other=0)
    expected = (tl.maximum((count + GUESS) * every, LEAST) * tiles).to(tl.float32) * (tl.load(reach) / SHARE)
    known = (expected > 0) & (expected < float("inf"))
    exponent = ((expected.to(tl.int32, bitcast=True) >> 23) & 0xFF) - 23
    exponent = tl.where(known, tl.minimum(tl.maximum(exponent, 1), HIGHEST), 1)
    tl.store(sampled + row, _bias(exponent).to(tl.int32, bitcast=True), mask=row < rows)
    tl.store(exponents + row, (exponent + 23).to(tl.uint8), mask=row < rows)
    tl.store(hits + row, tl.maximum(count * every, 1) * tiles, mask=row < rows)


@triton.jit
def _judge(units, hits, largest, sums, failed, rows, DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Clears the sums of rows whose certificate does not hold or whose quantum was far too coarse, and raises the flag.

    Their certificates become MARKED, from where the second run's survey counts on. A negative one has wrapped around. ``hits``
    are what was expected; they make room for the second run's counts, as the exponents do for its ``largest`` magnitudes.
    """
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    unit = tl.load(units + row, mask=row < rows, other=0)
    few = tl.minimum(tl.load(hits + row, mask=row < rows, other=0).to(tl.int64) * FEW, ROOM)
    coarse = (unit > 0) & (unit < few)
    bad = (unit > PROVEN) | (unit < 0) | coarse
    tl.store(units + row, tl.full((BLOCK,), MARKED, tl.int64), mask=bad)
    tl.store(hits + row, 0, mask=row < rows)
    tl.store(largest + row, 0, mask=row < rows)
    if tl.max(bad.to(tl.int32), axis=0) > 0:
        tl.store(failed, 1)
        for start in range(0, DIM, WIDTH):
            place = sums + row.to(tl.int64)[:, None] * DIM + start + tl.arange(0, WIDTH)[None, :]
            tl.store(place, tl.zeros((BLOCK, WIDTH), dtype=tl.float32), mask=bad[:, None])


@triton.jit
def _part(tensor, first, count, width, start, WIDTH: tl.constexpr, LENGTH: tl.constexpr):
    """[LENGTH, WIDTH] of consecutive rows of ``tensor`` from row ``first`` and column ``start`` on; 0 beyond ``count`` rows."""
    line = tl.arange(0, LENGTH)
    place = tensor + (first + line)[:, None] * width + start + tl.arange(0, WIDTH)[None, :]
    return tl.load(place, mask=(line < count)[:, None], other=0.0)


@triton.jit
def _probabilities(
    q, kv, dout, lse, delta, row, valid, first, count, scale,
    DIM: tl.constexpr, DIM_V: tl.constexpr, WIDTH: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """P and dS of [BLOCK kv rows, HEADS], in the inputs' 16 bits, as the stock kernel multiplies them."""
    scores = tl.zeros((BLOCK, HEADS), dtype=tl.float32)
    dp = tl.zeros((BLOCK, HEADS), dtype=tl.float32)
    for start in range(0, DIM, WIDTH):
        key = tl.load(kv + row[:, None] * DIM + start + tl.arange(0, WIDTH)[None, :], mask=valid[:, None], other=0.0)
        scores += tl.dot(key, tl.trans(_part(q, first, count, DIM, start, WIDTH, HEADS)))
        if start < DIM_V:
            dp += tl.dot(key, tl.trans(_part(dout, first, count, DIM_V, start, WIDTH, HEADS)))
    p = tl.exp2(scores * (scale * LOG2_E) - lse[None, :] * LOG2_E)
    p = tl.where(valid[:, None], p, 0.0)
    ds = p * (dp - delta[None, :]) * scale
    return p.to(kv.dtype.element_ty), ds.to(kv.dtype.element_ty)


@triton.jit
def _constant_again(counts, largest, units, constants, row, valid):
    """C of the second run (``quantum.exponent_again``), from its survey; NaN where no f32 sum could be exact."""
    count = tl.load(counts + row, mask=valid, other=1)
    c = (tl.maximum(count, 1).to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 126
    m = tl.maximum((tl.load(largest + row, mask=valid, other=0) >> 23) - 126, -125)
    of_largest = tl.maximum(c + m + 105, 1)
    total = tl.load(units + row, mask=valid, other=MARKED) - MARKED
    length = (tl.maximum(total, 1).to(tl.float64).to(tl.int64, bitcast=True) >> 52) - 1022
    finer, coarser = tl.maximum(24 - length, 0), tl.maximum(length - 24, 0)
    known = (total < CUT) & (count <= SUMMED)
    room = tl.where(known, PROVEN - count, 0).to(tl.int64)
    k = length - 24 + ((tl.where(known, total, 0) << finer) > (room << tl.where(known, coarser, 0))).to(tl.int64)
    first = (tl.load(constants + row, mask=valid, other=0) >> 23) - 23
    of_sum = tl.maximum(tl.maximum(first + tl.where(known, k, 0).to(tl.int32), m + 105), 1)
    exponent = tl.where(known, tl.minimum(of_sum, of_largest), of_largest)
    possible = (exponent <= HIGHEST) & (count < PROVEN)
    return tl.where(possible, _bias(tl.minimum(exponent, HIGHEST)), float("nan"))


@triton.jit
def _surveyed(top, constants, row, valid):
    """What contributions add to their rows' surveys (``quantum.surveyed``); ``top``: their largest magnitudes' bit patterns."""
    inverse = ((277 - (tl.load(constants + row, mask=valid, other=0) >> 23)) << 23).to(tl.float32, bitcast=True)
    scaled = tl.minimum(top.to(tl.float32, bitcast=True) * inverse, CUT * 1.0)
    return tl.where(top > 0, tl.maximum(tl.ceil(scaled).to(tl.int64), 1), 0)


@triton.jit
def _marked(topk, units, query, begin, last, keys, chosen, BLOCK: tl.constexpr):
    """The rows of BLOCK entries of a query, and which of them :func:`_judge` cleared."""
    entry = begin + tl.arange(0, BLOCK)
    row = tl.load(topk + query * chosen + entry, mask=entry < last, other=-1).to(tl.int64)
    valid = (row >= 0) & (row < keys)
    unit = tl.load(units + row, mask=valid, other=0)
    return row, valid & (unit > PROVEN)


@triton.jit(do_not_specialize=["survey"])
def _again(
    q, kv, topk, lengths, out, dout, lse, constants, units, failed, counts, largest, sums,
    queries, tiles, heads, keys, chosen, programs, survey, scale,
    LENGTHS: tl.constexpr, DIM: tl.constexpr, DIM_V: tl.constexpr,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr, SCAN: tl.constexpr,
):  # fmt: skip
    """The second run, only for rows that :func:`_judge` cleared; returns at once where there are none.

    ``survey`` = 1: counts each such row's contributions, takes their largest finite magnitude and adds up what each measures in
    units of the first quantum. 0: adds them, rounded to the quantum that follows from these. An argument, not a constant, and
    kept out of Triton's specialisation: what is proven of one launch's contributions holds for the other's because the same
    instructions compute both. A query without such a row costs one look at its indices. Columns go where the stock accumulator
    keeps them (``shape.place_of``).
    """
    todo = tl.where(tl.load(failed) > 0, queries * tiles, 0)
    inside = tl.arange(0, WIDTH)
    permuted = inside // 16 * 16 + inside % 8 // 2 * 4 + inside % 16 // 8 * 2 + inside % 2
    for item in range(tl.program_id(0), todo, programs):
        query = tl.cast(item // tiles, tl.int64)
        last = chosen
        if LENGTHS:
            last = tl.minimum(tl.load(lengths + query), chosen)
        found = 0
        for begin in range(0, last, SCAN):
            _, scanned = _marked(topk, units, query, begin, last, keys, chosen, SCAN)
            found += tl.max(scanned.to(tl.int32), axis=0)
        if found > 0:
            first = query * heads + item % tiles * HEADS
            count = tl.minimum(heads - item % tiles * HEADS, HEADS)
            level = tl.load(lse + first + tl.arange(0, HEADS), mask=tl.arange(0, HEADS) < count, other=float("inf"))
            delta = tl.zeros((HEADS,), dtype=tl.float32)
            for start in range(0, DIM_V, WIDTH):
                product = _part(out, first, count, DIM_V, start, WIDTH, HEADS).to(tl.float32)
                delta += tl.sum(product * _part(dout, first, count, DIM_V, start, WIDTH, HEADS).to(tl.float32), axis=1)
            for begin in range(0, last, BLOCK):
                row, valid = _marked(topk, units, query, begin, last, keys, chosen, BLOCK)
                if tl.max(valid.to(tl.int32), axis=0) > 0:
                    p, ds = _probabilities(
                        q, kv, dout, level, delta, row, valid, first, count, scale, DIM, DIM_V, WIDTH, HEADS, BLOCK
                    )
                    c = _constant_again(counts, largest, units, constants, row, valid)[:, None]
                    top = tl.zeros((BLOCK,), dtype=tl.int32)
                    for start in range(0, DIM, WIDTH):
                        x = tl.dot(ds, _part(q, first, count, DIM, start, WIDTH, HEADS))
                        if start < DIM_V:
                            x += tl.dot(p, _part(dout, first, count, DIM_V, start, WIDTH, HEADS))
                        if survey > 0:
                            magnitude = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
                            top = tl.maximum(top, tl.max(tl.where(magnitude < 0x7F800000, magnitude, 0), axis=1))
                        else:
                            place = sums + row[:, None] * DIM + start + permuted[None, :]
                            tl.atomic_add(place, (x + c) - c, mask=valid[:, None], sem="relaxed")
                    if survey > 0:
                        tl.atomic_add(counts + row, 1, mask=valid, sem="relaxed")
                        tl.atomic_add(units + row, _surveyed(top, constants, row, valid), mask=valid, sem="relaxed")
                        tl.atomic_max(largest + row, top, mask=valid, sem="relaxed")


@triton.jit
def _fold(slices, size, count, BLOCK: tl.constexpr):
    """Adds slices 1 .. count − 1 to slice 0, element by element, in ascending order."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(slices + place, mask=place < size, other=0.0)
    for index in range(1, count):
        total += tl.load(slices + tl.cast(index, tl.int64) * size + place, mask=place < size, other=0.0)
    tl.store(slices + place, total, mask=place < size)


class Tables(NamedTuple):
    """Views into one allocation of f32: the accumulator and what the exact form keeps behind it."""

    sums: torch.Tensor  # [rows · dim] f32
    constants: torch.Tensor  # [rows] int32: counts of the sample, then the bits of C
    units: torch.Tensor  # [rows] int64: certificates, then MARKED + the second run's sums, where it has to run
    counts: torch.Tensor  # [rows] int32: hits expected, then those of the second run
    largest: torch.Tensor  # [rows] int32: first a byte per row, C's exponent, then bits of an f32
    failed: torch.Tensor  # [1] int32


def tables(memory: torch.Tensor, keys: int, dim: int) -> Tables:
    """Cuts ``memory`` (f32, (sums_bytes + tables_bytes) / 4 elements, zeros) into its parts."""
    rows = shape.rows(keys)
    whole = memory.view(torch.int32)
    at = rows * dim
    cut = [whole[at + begin * rows : at + end * rows] for begin, end in ((0, 1), (1, 3), (3, 4), (4, 5))]
    return Tables(memory[:at], cut[0], cut[1].view(torch.int64), cut[2], cut[3], whole[at + 5 * rows : at + 5 * rows + 1])


def choose_quanta(
    into: Tables, topk: torch.Tensor, topk_length: torch.Tensor | None, reach: torch.Tensor, keys: int, heads: int
) -> None:
    """Writes each row's constant C, and its exponent: hits estimated from every n-th query, times ``reach`` [1] f32."""
    queries, chosen = topk.shape
    every = shape.sampled_every(queries)
    if topk.numel():
        _sample[(-(-queries // every),)](
            topk, topk if topk_length is None else topk_length, into.constants, keys, chosen, every,
            LENGTHS=topk_length is not None, BLOCK=min(1024, triton.next_power_of_2(chosen)),
        )  # fmt: skip
    rows = into.constants.shape[0]
    _choose[(triton.cdiv(rows, 256),)](
        into.constants, into.largest.view(torch.uint8), into.counts, reach, every, shape.tiles_of(heads), rows,
        SHARE=MARGIN, GUESS=PRIOR, LEAST=LEAST_HITS, BLOCK=256,
    )  # fmt: skip


def judge(done: Tables, dim: int) -> None:
    """Clears rows that need a second run and raises the flag for :func:`add_again`."""
    rows = done.units.shape[0]
    _judge[(triton.cdiv(rows, 64),)](
        done.units, done.counts, done.largest, done.sums, done.failed, rows, DIM=dim, WIDTH=64, BLOCK=64
    )  # fmt: skip


def add_again(
    done: Tables, q: torch.Tensor, kv: torch.Tensor, topk: torch.Tensor, topk_length: torch.Tensor | None,
    out: torch.Tensor, lse: torch.Tensor, dout: torch.Tensor, scale: float,
) -> None:  # fmt: skip
    """The second run of failed rows: surveyed, then added with quanta that the survey proves; nothing waits."""
    queries, heads, dim = q.shape
    if not topk.numel():
        return
    tiles = shape.tiles_of(heads)
    programs = min(queries * tiles, SECOND_RUN_PROGRAMS)
    for survey in (1, 0):
        _again[(programs,)](
            q, kv, topk, topk if topk_length is None else topk_length, out, dout, lse,
            done.constants, done.units, done.failed, done.counts, done.largest, done.sums,
            queries, tiles, heads, kv.shape[0], topk.shape[1], programs, survey, scale,
            LENGTHS=topk_length is not None, DIM=dim, DIM_V=out.shape[2],
            WIDTH=64, HEADS=shape.BLOCK, BLOCK=16, SCAN=1024,
        )  # fmt: skip


def fold(memory: torch.Tensor, size: int, slices: int) -> None:
    """Sums ``slices`` consecutive accumulators of ``size`` f32 each into the first, in ascending order."""
    _fold[(triton.cdiv(size, LINE),)](memory, size, slices, BLOCK=LINE)


def turns(topk_length: torch.Tensor | None, ctas: int, tiles: int, slices: int, device: torch.device) -> torch.Tensor:
    """Per CTA [ctas] int32, the CTA whose additions go before its own (``split.before``); CTAs without entries add nothing."""
    cta = torch.arange(ctas, dtype=torch.int32, device=device)
    if topk_length is None:
        return (cta - slices).clamp(min=-1)
    adds = (topk_length > 0).repeat_interleave(tiles)
    rounds = -(-ctas // slices)
    grid = torch.full((rounds + 1, slices), -1, dtype=torch.int32, device=device)
    grid[1:].view(-1)[:ctas] = torch.where(adds, cta, -1)
    return grid.cummax(dim=0).values[:-1].view(-1)[:ctas]
