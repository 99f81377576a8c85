"""Sums that do not depend on order: every contribution is a multiple of a quantum, every partial sum fits 24 bits of it.

Floating-point addition depends on order only because it rounds. Let q be a power of two, each contribution x be replaced by
the nearest multiple of q, and the sum of all |x| of one output stay below 2²⁴·q. Then every partial sum, in whatever order, is
a multiple of q below 2²⁴·q, hence an f32: no addition rounds, and atomics in any order give the same bits.

* Rounding: ``(x + C) − C`` with C = 1.5·2²³·q: for |x| ≤ 2²²·q, x + C lies where f32 are spaced by exactly q.
* The quantum (:func:`_exponent`): with n contributions below M = 2^m and n < 2^c, q = 2^(c + m − 23). Then Σ|x| < 2²³·q, the
  rounding adds at most n·q/2 ≤ 2²³·q for n ≤ 2²⁴, and |x| < 2^m ≤ 2²²·q since c ≥ 1.
* Error: at most q/2 per contribution, that is n·M·2⁻²² per contribution at worst; about 20 bits for a handful of addends.
* q is at least 2⁻¹²⁶, so that no multiple is subnormal (f32 atomics flush those); smaller values may round to 0. Above 2¹⁰⁴
  there is no C: the output is then NaN, always. NaN and Inf are left out of M and carry through the addition. −0 adds as +0.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .. import checks
from ..configs import config_for

FLOATS = ("float32", "bfloat16", "float16")
REDO_PROGRAMS = 1024  # of the second run, which most often has nothing to do


@triton.jit
def _exponent(count, largest):
    """The biased exponent of q for ``count`` contributions whose largest finite magnitude has the f32 bits ``largest``."""
    c = (count.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 126
    m = tl.maximum(largest >> 23, 1)
    return tl.maximum(c + m - 22, 1)


@triton.jit
def _power_of_two(exponent):
    """2^(exponent − 127), NaN where the constant C would overflow."""
    bits = tl.where(exponent > 231, 0x7FC00000, exponent << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _rounded(value, quantum):
    c = quantum * 12582912.0  # 1.5 · 2^23
    return (value + c) - c


@triton.jit
def _finite_bits(value):
    """|value| as integer bits, which order as the magnitudes do; 0 for NaN and Inf."""
    bits = value.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return tl.where(bits < 0x7F800000, bits, 0)


@triton.jit
def _survey(values, ids, counts, largest, bins, width, stride, BLOCK: tl.constexpr):
    """Counts the rows of each id and takes the largest magnitude: integer atomics, order-free."""
    row = tl.program_id(0).to(tl.int64)
    key = tl.load(ids + row).to(tl.int64)
    valid = (key >= 0) & (key < bins)
    limit = tl.where(valid, width, 0)
    top = tl.zeros((BLOCK,), dtype=tl.int32)
    for start in range(0, limit, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        value = tl.load(values + row * stride + columns, mask=columns < limit, other=0.0).to(tl.float32)
        top = tl.maximum(top, _finite_bits(value))
    tl.atomic_add(counts + key, 1, mask=valid, sem="relaxed")
    tl.atomic_max(largest + key, tl.max(top, axis=0), mask=valid, sem="relaxed")


@triton.jit
def _add_rounded(values, ids, counts, largest, out, bins, width, stride, BLOCK: tl.constexpr):
    """Adds each row, rounded to its id's quantum, with atomics."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(ids + row).to(tl.int64)
    valid = (key >= 0) & (key < bins)
    limit = tl.where(valid, width, 0)
    count = tl.load(counts + key, mask=valid, other=1)
    quantum = _power_of_two(_exponent(count, tl.load(largest + key, mask=valid, other=0)))
    value = tl.load(values + row * stride + columns, mask=columns < limit, other=0.0).to(tl.float32)
    tl.atomic_add(out + key * width + columns, _rounded(value, quantum), mask=columns < limit, sem="relaxed")


@triton.jit
def _add_certified(
    values, ids, exponents, out, counts, largest, certificates, bins, width, stride, BLOCK: tl.constexpr
):  # fmt: skip
    """Adds each row rounded to the hinted quantum and, as an integer, its largest magnitude in quanta (rounded up)."""
    row = tl.program_id(0).to(tl.int64)
    key = tl.load(ids + row).to(tl.int64)
    valid = (key >= 0) & (key < bins)
    limit = tl.where(valid, width, 0)
    exponent = tl.maximum(tl.load(exponents + key, mask=valid, other=1), 1)
    quantum = _power_of_two(exponent)
    top = tl.zeros((BLOCK,), dtype=tl.int32)
    for start in range(0, limit, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        value = tl.load(values + row * stride + columns, mask=columns < limit, other=0.0).to(tl.float32)
        tl.atomic_add(out + key * width + columns, _rounded(value, quantum), mask=columns < limit, sem="relaxed")
        top = tl.maximum(top, _finite_bits(value))
    highest = tl.max(top, axis=0)
    inverse = tl.where(exponent > 231, 0, (254 - exponent) << 23).to(tl.float32, bitcast=True)
    units = tl.ceil(tl.minimum(highest.to(tl.float32, bitcast=True) * inverse, 33554432.0)).to(tl.int64)
    units = tl.where((units > 4194304) | (exponent > 231), 33554432, units)  # over 2^22 quanta: 2^25, which fails for sure
    tl.atomic_add(certificates + key, units, mask=valid, sem="relaxed")
    tl.atomic_add(counts + key, 1, mask=valid, sem="relaxed")
    tl.atomic_max(largest + key, highest, mask=valid, sem="relaxed")


@triton.jit
def _judge(
    exponents, counts, largest, certificates, out, again, following, any_failed, width, BLOCK: tl.constexpr
):  # fmt: skip
    """Of each id: is the certificate at most 2^24? If not, its sum is cleared, to be taken ``again`` with its own quantum."""
    key = tl.program_id(0).to(tl.int64)
    count = tl.load(counts + key)
    certificate = tl.load(certificates + key)
    failed = certificate > 16777216
    top = tl.load(largest + key)
    own = tl.where(count > 0, _exponent(tl.maximum(count, 1), top), 1)
    # 2^23 quanta hold the certificate, 2^20 the largest magnitude: a factor of two to grow until the next step
    log2 = (tl.maximum(certificate, 1).to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 126
    tight = tl.maximum(tl.maximum(tl.load(exponents + key), 1) + log2 - 23, tl.maximum((top >> 23) - 20, 1))
    tl.store(again + key, own)
    tl.store(following + key, tl.where(failed | (count == 0), own, tight))
    limit = tl.where(failed, width, 0)
    for start in range(0, limit, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        tl.store(out + key * width + columns, tl.zeros((BLOCK,), dtype=tl.float32), mask=columns < limit)
    tl.store(any_failed, 1, mask=failed)


@triton.jit
def _add_again(
    values, ids, exponents, certificates, any_failed, out, rows, programs, bins, width, stride, BLOCK: tl.constexpr
):  # fmt: skip
    """The second run, only for ids whose certificate failed; nothing at all where none did."""
    last = tl.where(tl.load(any_failed) > 0, rows, 0)
    for row in range(tl.program_id(0), last, programs):
        key = tl.load(ids + row).to(tl.int64)
        valid = (key >= 0) & (key < bins)
        again = tl.load(certificates + key, mask=valid, other=0) > 16777216
        limit = tl.where(again, width, 0)
        quantum = _power_of_two(tl.load(exponents + key, mask=valid, other=1))
        for start in range(0, limit, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            value = tl.load(values + tl.cast(row, tl.int64) * stride + columns, mask=columns < limit, other=0.0).to(tl.float32)
            tl.atomic_add(out + key * width + columns, _rounded(value, quantum), mask=columns < limit, sem="relaxed")


def check_inputs(values: torch.Tensor, ids: torch.Tensor, bins: int) -> None:
    """Raises ``ValueError``, ``TypeError`` or (under ``PERFGATE_CHECK_INPUTS``) ``IndexError`` for inputs that don't fit."""
    checks.require_shape("ids", ids, (None,))
    checks.require_shape("values", values, (ids.shape[0], None))
    checks.require_dtype("values", values, *FLOATS)
    checks.require_dtype("ids", ids, "int32", "int64")
    checks.require_same_device(values=values, ids=ids)
    checks.require_rows("values", values)
    checks.require_range("ids", ids, bins)
    if ids.shape[0] > 2**24:
        raise ValueError(f"{ids.shape[0]} rows: the proof of exact accumulation covers at most 2**24")


def exact_sum(values: torch.Tensor, ids: torch.Tensor, bins: int) -> torch.Tensor:
    """``out[b]`` = sum of the rows of ``values`` [N, W] whose id is b, as [bins, W] f32: bits independent of order.

    The quantum of each id comes from a first pass over the values (rows counted, largest magnitude). Ids outside
    0 .. bins − 1 are dropped. Workspace: 8 bytes per bin. Raises what :func:`check_inputs` says.
    """
    check_inputs(values, ids, bins)
    width = values.shape[1]
    out = torch.zeros((bins, width), dtype=torch.float32, device=values.device)
    counts, largest = torch.zeros((2, bins), dtype=torch.int32, device=values.device)
    if values.numel():
        options = config_for("exact.add", width, values)
        shape = (bins, width, values.stride(0))
        _survey[(values.shape[0],)](values, ids, counts, largest, *shape, **options)
        grid = (values.shape[0], triton.cdiv(width, options["BLOCK"]))
        _add_rounded[grid](values, ids, counts, largest, out, *shape, **options)
    return out


def certified_sum(
    values: torch.Tensor, ids: torch.Tensor, bins: int, exponents: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same sum in one pass over the values, and the quanta for the next step.

    ``exponents`` [bins] int32 are biased f32 exponents of the quanta to use, as the previous step returned them (zeros if
    there was none); those returned fit the certificate just taken, so they are finer than a count and a maximum could prove.
    Beside the sum each id collects a certificate, the sum of its rows' largest magnitudes in quanta, rounded up:
    at most 2²⁴ proves every partial sum exact. Ids whose certificate fails are cleared and summed again with the quantum
    that their own count and magnitude give. All decisions are made on the device from order-free integers: the bits
    depend on values, ids and ``exponents`` alone, and nothing waits for the host. Workspace: 20 bytes per bin.
    """
    check_inputs(values, ids, bins)
    checks.require_shape("exponents", exponents, (bins,))
    checks.require_dtype("exponents", exponents, "int32")
    rows, width = values.shape
    out = torch.zeros((bins, width), dtype=torch.float32, device=values.device)
    counts, largest = torch.zeros((2, bins), dtype=torch.int32, device=values.device)
    certificates = torch.zeros((bins,), dtype=torch.int64, device=values.device)
    any_failed = torch.zeros((1,), dtype=torch.int32, device=values.device)
    again, following = torch.empty((2, bins), dtype=torch.int32, device=values.device)
    options = config_for("exact.add", width, values)
    if values.numel():
        shape = (bins, width, values.stride(0))
        _add_certified[(rows,)](values, ids, exponents, out, counts, largest, certificates, *shape, **options)
    _judge[(bins,)](exponents, counts, largest, certificates, out, again, following, any_failed, width, **options)
    if values.numel():
        programs = min(rows, REDO_PROGRAMS)
        _add_again[(programs,)](
            values, ids, again, certificates, any_failed, out, rows, programs, *shape, **options
        )  # fmt: skip
    return out, following
