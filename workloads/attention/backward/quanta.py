"""Rows' quanta in the exact backward: which they are, how Δ carries them, and how a contribution to dQ is counted in them."""

from __future__ import annotations

import triton
import triton.language as tl

from ..forward.kernels import _log2_above

ANCHOR = tl.constexpr(12582912.0)  # 1.5·2²³: up to 2²² to either side, f32 numbers lie 1 apart and their bits count up by 1
ANCHOR_BITS = tl.constexpr(0x4B400000)
CARRIED = tl.constexpr(255)  # the bits of a row's Δ that hold half the exponent of 1/quantum in f32 and bf16; 0: there is none
LEAST_KEY = tl.constexpr(-104.0)  # log2 of the smallest max|K_jd| that quanta are made for: 2^22 / 2^-104 is a bf16


@triton.jit
def _larger(a, b, c, other_a, other_b, other_c):
    return tl.maximum(a, other_a), tl.maximum(b, other_b), tl.maximum(c, other_c)


@triton.jit
def _greatest(a, b, c):
    """The largest of each of three vectors of f32, none below 0; NaN if any is: as integers its bits are the largest."""
    a, b, c = (
        a.to(tl.int32, bitcast=True) & 0x7FFFFFFF, b.to(tl.int32, bitcast=True) & 0x7FFFFFFF,
        c.to(tl.int32, bitcast=True) & 0x7FFFFFFF,
    )  # fmt: skip
    a, b, c = tl.reduce((a, b, c), 0, _larger)
    return a.to(tl.float32, bitcast=True), b.to(tl.float32, bitcast=True), c.to(tl.float32, bitcast=True)


@triton.jit
def _exponents(size, delta, key_largest, heaviest, excess):
    """The exponent of each row's quantum, from log2(‖dO_i‖·max‖V_j‖) and so on; and whether there is one at all."""
    key_size = tl.log2(key_largest)
    key_size = tl.where(key_size < LEAST_KEY, LEAST_KEY, key_size)  # NaN stays
    bound = size + key_size + 0.17 + excess  # of the sum of all magnitudes; 2^0.17 = 1.125
    off_mean = tl.abs(delta) * tl.exp2(-size)
    off_mean = tl.where(off_mean < 1.0, off_mean, 1.0)  # NaN: a row of zeros
    part = tl.minimum(_log2_above(heaviest * (1.0 + off_mean)), 0.0)  # bound + part: of one contribution
    finite = bound < 128.0  # false for NaN
    exponent = tl.where(finite, bound + tl.maximum(part - 22.0, -30.0), 0.0)
    return tl.ceil(tl.maximum(exponent, -126.0)).to(tl.int32) | 1, finite  # odd: 1/quantum's in f32 is even, a byte of a bf16


@triton.jit
def _carrying(delta, carried):
    """The number nearest to ``delta`` whose last eight bits are ``carried``: off by 2^-16 of it at most. NaN and Inf stay."""
    bits = delta.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    near = tl.minimum(tl.maximum(size - carried + (CARRIED + 1) // 2, 0), 0x7F7FFFFF)
    near = (near & ~CARRIED) | carried | (bits & -0x80000000)
    return tl.where(size > 0x7F7FFFFF, bits, near).to(tl.float32, bitcast=True)


@triton.jit
def _inverse(delta):
    """1/quantum of rows whose ``delta`` carries it."""
    return ((delta.to(tl.int32, bitcast=True) & CARRIED) << 24).to(tl.float32, bitcast=True)


@triton.jit
def _counted(part, inverse):
    """ANCHOR_BITS more than a contribution's number of quanta, rounded to nearest, in the bits of an f32.

    One fused multiply-add: a conversion would queue for the unit that exp2 needs.
    """
    return part * inverse[None, :] + ANCHOR


@triton.jit
def _anchored(part):
    """The same of a contribution in quanta. Triton would start the product from ``ANCHOR``; matrix units cut off, not round."""
    return tl.inline_asm_elementwise("add.rn.f32 $0, $1, 0f4B400000;", "=f,f", [part], tl.float32, True, 1)


@triton.jit
def _in_quanta(slopes, delta):
    """bf16 ``slopes`` [N, M] over the quanta that ``delta`` [M] carries: packed in pairs, where Triton would go by f32."""
    # a bf16's upper byte is what a row's last byte holds, its lower one zeros: the sign of that byte, eight times
    pairs: tl.constexpr = "prmt.b32 $0, $1, $2, 0x4C08;"
    inverse = tl.inline_asm_elementwise(pairs, "=r,r,r", [delta], tl.int16, True, 2)
    product: tl.constexpr = "mul.rn.bf16x2 $0, $1, $2;"
    return tl.inline_asm_elementwise(product, "=r,r,r", [slopes, inverse[None, :]], slopes.dtype, True, 2)
