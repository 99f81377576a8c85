"""The arithmetic that makes a sum exact: which constant rounds to which quantum, and why nothing overflows 24 bits.

One number, C = 1.5·U with U a power of two, stands for everything: the quantum is q = U·2⁻²³, and adding and subtracting C
rounds to it. In f32, x + C lies in [U, 2U] for |x| ≤ U/2, where numbers are spaced by q; for U/2 < |x| ≤ U it lies in [U/2, U]
or [2U, 2.5U], spaced by q/2 or 2q. Either way the rounded x is a multiple of q/2, off by at most q. Multiples of q/2 up to
2²⁴·(q/2) = U in magnitude are f32 numbers: while every partial sum stays within U, no addition rounds, and any order gives the
same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

ROUNDER = 1.5  # C / U
SMALLEST, LARGEST = 2.0**-100, 2.0**127  # of U: no quantum is subnormal; above, C is NaN
LOST = 2.0**-62  # at most this much of a norm is lost where squares underflow
ROW_MASK = 255  # the bits of a row's δ that carry the exponent of its U
LEAST_EXTENT = 2.0**-126
FINE_BITS = 11  # a tile in the shared sum has its largest element at 2^11 quanta or more, of 2^23


def extent(largest_value_norm: Any, largest_key: Any, larger: Callable[..., Any] = max) -> Any:
    """What ‖dO_i‖ is multiplied by: twice max_j‖V_j‖·max_jd|K_jd|, never 0. Floats, or the kernel's own numbers."""
    return larger(LEAST_EXTENT, (largest_value_norm + LOST) * largest_key * 2.0)


def row_limit(grad_norm: float, largest_value_norm: float, largest_key: float) -> float:
    """What U of a row of dQ must reach: twice ‖dO_i‖·max_j‖V_j‖·max_jd|K_jd| (unscaled dQ, as the kernel adds it).

    Half of it bounds Σ_j |dS_ij||K_jd| (README); the other half is for rounding: the contributions' own, bf16 dS and out, and
    probabilities that do not sum to 1 because the logits were rounded.
    """
    return (grad_norm + LOST) * float(extent(largest_value_norm, largest_key))


def exponent(limit_bits: Any) -> Any:
    """What δ of a row carries, from the f32 bits of its :func:`row_limit`: the exponent of U, as f32 holds it, cut to 2⁻¹⁰⁰.

    Above 2¹²⁷, and for Inf, that of Inf. Integers, or tensors of them.
    """
    power = (limit_bits + 0x7FFFFF) >> 23
    return power + (27 - power) * (power < 27)


def constant_bits(exponent: Any) -> Any:
    """C as f32 bits from the exponent of U: 1.5 times U is one bit more. Of Inf's exponent that makes NaN."""
    return (exponent << 23) + 0x400000


def constant(limit: float) -> float:
    """C for the smallest power of two U that reaches ``limit``, at least 2⁻¹⁰⁰; NaN above 2¹²⁷ and for NaN."""
    if not limit <= LARGEST:
        return math.nan
    mantissa, exponent = math.frexp(max(limit, SMALLEST))
    return ROUNDER * 2.0 ** (exponent - (mantissa == 0.5))


def in_order(word: Any) -> Any:
    """|x| of the two bf16 in a word, plus 0x80 each: as 16-bit numbers in the order of |x|, but Inf and NaN negative."""
    return (word & 0x7FFF7FFF) + 0x00800080


def most(group: int) -> float:
    """Of C: the largest element of a tile that ``group`` such tiles can be summed with, each rounded, within 24 bits."""
    return 1.0 / (ROUNDER * group)


def least() -> float:
    """Of C: what a tile's largest element must reach, else the quantum is too coarse for it and the tile is kept aside."""
    return 2.0 ** (FINE_BITS - 23) / ROUNDER
