"""The arithmetic of exact accumulation, in plain Python: what the hooked and the Triton kernels compute, to test them by.

A contribution is one element that one CTA (one query, one tile of heads) adds to one kv row. It is rounded to a multiple of the
row's quantum q = 2^(e − 127) by ``(x + C) − C`` with C = 1.5·2²³·q, exact for |x| ≤ 2²²·q.

* The quantum is a guess (:func:`exponent_for`): how often the row is hit, estimated from every n-th query, times a typical
  contribution (``reach``, a scalar that the step before left). It decides accuracy, never correctness.
* The certificate is the proof (:func:`units`): each CTA adds, as an integer, ⌈its largest |x| of that row / q⌉. If the sum is
  at most 2²⁴, then in every column Σ|x rounded| ≤ 2²⁴·q: every partial sum in every order is an f32, and no addition rounds.
* A row that fails is cleared and summed again, with a quantum that a survey of those very contributions proves
  (:func:`exponent_again`): their sum in units of the first quantum, or their count and maximum, which always suffice. So is a
  row whose contributions measure fewer than FEW_QUANTA in the mean although there was room: a ``reach`` far too large costs
  time, not accuracy. The decision is taken on the device, from sums of integers.
"""

from __future__ import annotations

import math
import struct

MOST_UNITS = 2**24  # the certificate holds up to here
MOST_EXPONENT = 230  # C = 1.5·2^(e − 104) and x + C stay finite
PRIOR = 4  # hits that an uncounted row is taken to have among the counted queries
LEAST_HITS = 256  # no row's quantum is finer than for so many: bits to spare, and few contributions may be far above the mean
MARGIN = (
    4  # ``reach`` is four times a mean of bounds that lie 2.6 times above the maxima counted here: the guess takes a quarter
)
FAILS = 2**25  # what a contribution beyond 2^22 quanta adds: the certificate fails for sure
MOST_COUNTED = 2.0**40
MOST_SURVEYED = 2**32  # what one contribution adds at most to a survey: 2^31 of them stay within 63 bits
MOST_SUMMED = 2**23  # contributions that the rule from their sum is made for
FEW_QUANTA = 64  # a mean of fewer per expected hit leaves errors of more than a hundredth of the row's own size ...
LITTLE_USED = 2**18  # ... and where the certificate is below this, a quantum 32 times finer has room: summed again


def f32(value: float) -> float:
    """Rounded to the nearest f32; infinite beyond."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def bits(value: float) -> int:
    """The bit pattern of an f32."""
    return int(struct.unpack("I", struct.pack("f", value))[0])


def exponent_for(sampled: int, every: int, reach: float, tiles: int) -> int:
    """The biased exponent e of the quantum for a row hit by ``sampled`` of the counted queries, one in ``every``.

    max((sampled + PRIOR) · every, LEAST_HITS) · tiles · reach / MARGIN ≤ 2²⁴·q, with q a power of two. 1, the finest, where
    ``reach`` says nothing (0, negative, NaN, infinite): then the certificate decides.
    """
    expected = f32(f32(float(max((sampled + PRIOR) * every, LEAST_HITS) * tiles)) * f32(reach / MARGIN))
    if not 0 < expected < math.inf:
        return 1
    return min(max((bits(expected) >> 23) + 1 - 24, 1), MOST_EXPONENT)


def bias(exponent: int) -> float:
    """C = 1.5·2²³·q."""
    return math.ldexp(1.5, 23 + exponent - 127)


def quantum(exponent: int) -> float:
    """The quantum, 2^(e − 127)."""
    return math.ldexp(1.0, exponent - 127)


def rounded(x: float, exponent: int) -> float:
    """``(x + C) − C`` in f32."""
    return f32(f32(x + bias(exponent)) - bias(exponent))


def units(largest: float, exponent: int) -> int:
    """What one CTA adds to a row's certificate; ``largest`` is the largest |x| of the row in it, NaN left out."""
    scaled = f32(largest / quantum(exponent))
    counted = math.ceil(min(scaled, MOST_COUNTED))
    return counted + (FAILS if scaled > 2**22 else 0)


def surveyed(largest: float, exponent: int) -> int:
    """What one contribution adds to its row's survey: at least its largest finite |x| / q, if below MOST_SURVEYED.

    At least 1 where anything differs from 0, so that a quotient that underflows is not lost.
    """
    scaled = f32(largest / quantum(exponent))
    return 0 if largest == 0 else max(1, math.ceil(min(scaled, float(MOST_SURVEYED))))


def exponent_of_largest(count: int, largest: float) -> int:
    """The biased exponent that ``count`` contributions of at most twice ``largest``, an f32, prove.

    With count < 2^c, largest < 2^m and q = 2^(c + m − 22): Σ|x rounded| ≤ 2^(c + m + 1) + count·q/2 ≤ (2²³ + 2^(c − 1))·q,
    which is at most 2²⁴·q for c ≤ 24.
    """
    return max(int(count).bit_length() + max(log2_above(largest), -125) - 22 + 127, 1)


def log2_above(largest: float) -> int:
    """The m with ``largest`` < 2^m, the least one for a normal f32."""
    return (bits(largest) >> 23) - 126


def exponent_of_sum(total: int, count: int, largest: float, first: int) -> int:
    """The biased exponent that a survey proves; ``total``: Σ of :func:`surveyed` of ``count`` contributions with ``first``.

    The least first + k with total ≤ 2^k·(2²⁴ − count) and |x| ≤ 2²²·q. An |x| of u units, rounded to multiples of q, which is
    2^k units, has at most ⌈u / 2^k⌉ < u / 2^k + 1 of them, so that Σ|x rounded| < (total / 2^k + count)·q ≤ 2²⁴·q.
    MOST_EXPONENT + 1, no proof, where ``total`` reaches MOST_SURVEYED, as it does wherever a single contribution was cut to
    that, or ``count`` exceeds MOST_SUMMED.
    """
    if total >= MOST_SURVEYED or count > MOST_SUMMED:
        return MOST_EXPONENT + 1
    k = max(total, 1).bit_length() - 24
    if total << max(-k, 0) > (MOST_UNITS - count) << max(k, 0):
        k += 1
    return max(first + k, max(log2_above(largest), -125) - 22 + 127, 1)


def exponent_again(count: int, largest: float, total: int, first: int) -> int:
    """The second run's biased exponent, the finer of two that are proven; beyond MOST_EXPONENT: no f32 sum could be exact."""
    if count >= MOST_UNITS:
        return MOST_EXPONENT + 1
    return min(exponent_of_largest(count, largest), exponent_of_sum(total, count, largest, first))
