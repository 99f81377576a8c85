"""The forward kernel of flash-attn-4, with a survey of K and V. Imported only after the probe has passed.

The backward's bound needs max_j‖V_j‖ and max|K_jd| of every head. In the forward K and V pass anyway, and three of the four
warps that fetch them have nothing to do: here they read a share of the rows once more (:mod:`.shares`), from the L2 cache, and
store what is largest. What fetches and what computes is not changed.
"""

from __future__ import annotations

import inspect
from typing import Any

import cutlass  # type: ignore[import-not-found,unused-ignore]
import cutlass.cute as cute  # type: ignore[import-not-found,unused-ignore]
from cutlass import Float32, Int32, Int64  # type: ignore[import-not-found,unused-ignore]
from cutlass._mlir.ir import DictAttr  # type: ignore[import-not-found,unused-ignore]
from cutlass._mlir_helpers.arith import bitcast  # type: ignore[import-not-found,unused-ignore]
from cutlass.cutlass_dsl import T  # type: ignore[import-not-found,unused-ignore]
from flash_attn.cute.flash_fwd_sm90 import FlashAttentionForwardSm90  # type: ignore[import-not-found,unused-ignore]
from flash_attn.cute.utils import AuxData  # type: ignore[import-not-found,unused-ignore]

from . import bound, shares
from .shares import WARPS

AHEAD = 8  # loads in flight of one warp, a power of two
STEP = 512  # bytes that a warp loads at once
LANE = 16  # of these a lane's


def _places(method: Any) -> dict[str, int]:
    """Position of each argument of a method of flash-attn-4, self left out."""
    names = list(inspect.signature(inspect.unwrap(method)).parameters)[1:]
    return {name: place for place, name in enumerate(names)}


KERNEL = _places(FlashAttentionForwardSm90.kernel)
LOAD = _places(FlashAttentionForwardSm90.load)


class Carrying(cute.TiledCopy):  # type: ignore[misc,unused-ignore]
    """Tensors on their way into the kernel, in the place of a copy that it has no use for where Q comes by TMA."""

    def __init__(self, copy: Any, tensors: Any) -> None:
        super().__init__(copy._op, copy._trait)
        self.tensors = list(tensors)

    def __extract_mlir_values__(self) -> list[Any]:
        return [value for tensor in self.tensors for value in cutlass.extract_mlir_values(tensor)]

    def __extract_mlir_attributes__(self) -> list[Any]:
        return [DictAttr.get({}) for _ in self.__extract_mlir_values__()]

    def __new_from_mlir_values__(self, values: list[Any]) -> Carrying:
        made, rest = [], list(values)
        for tensor in self.tensors:
            count = len(cutlass.extract_mlir_values(tensor))
            made.append(cutlass.new_from_mlir_values(tensor, rest[:count]))
            rest = rest[count:]
        return Carrying(self, made)


@cute.jit
def fetch(shared: Int32, source: Int64):
    """Starts a copy of 16 bytes to shared memory."""
    cute.arch.inline_ptx("cp.async.cg.shared.global [{$r0}], [{$r1}], 16;", read_only_args=[shared, source])


@cute.jit
def words(shared: Int32):
    """16 bytes of shared memory."""
    return cute.arch.inline_ptx(
        "ld.shared.v4.b32 { {$w0}, {$w1}, {$w2}, {$w3} }, [{$r0}];", write_only_types=[Int32] * 4, read_only_args=[shared]
    )


@cute.jit
def larger_of_both(one: Int32, other: Int32) -> Int32:
    return cute.arch.inline_ptx("max.s16x2 {$w0}, {$r0}, {$r1};", write_only_types=[Int32], read_only_args=[one, other])


@cute.jit
def finite(word: Int32) -> Int32:
    """Two bf16, 0 where one is Inf or NaN."""
    signs = cute.arch.inline_ptx(
        "prmt.b32 {$w0}, {$r0}, {$r0}, 0xbb99;", write_only_types=[Int32], read_only_args=[bound.in_order(word)]
    )
    return word & ~signs


@cute.jit
def as_float(bits: Int32) -> Float32:
    return Float32(bitcast(bits.ir_value(), T.f32()))


@cute.jit
def squares(word: Int32, total: Float32) -> Float32:
    """``total`` plus the squares of two bf16."""
    kept = finite(word)
    low, high = as_float(kept << Int32(16)), as_float(kept & Int32(-65536))
    return high * high + (low * low + total)


@cute.jit
def survey_rows(
    rows: cute.Tensor,
    first: Int32,
    end: Int32,
    warp: Int32,
    lane: Int32,
    buffer: Int32,
    dim: cutlass.Constexpr[int],
    keys: cutlass.Constexpr[bool],
) -> Int32:
    """The largest |element| + 0x80 twice (``keys``) or ‖row‖² of this warp's rows of ``rows`` [S, dim] bf16, as bits.

    The end's last row is read in place of rows beyond it. A lane reads only what it copied to shared memory itself.
    """
    per_row: cutlass.Constexpr[int] = 2 * dim // LANE  # lanes
    at_once: cutlass.Constexpr[int] = WARPS * STEP // (2 * dim)  # rows
    steps = (end - first + at_once - 1) // at_once
    start = rows.iterator.toint() + Int64(lane % per_row * LANE)
    bytes_apart = Int32(rows.stride[0]) * 2
    row = first + (warp * (32 // per_row) + lane // per_row)
    slot = Int32(0)
    for i in cutlass.range_constexpr(AHEAD):
        if i < steps:
            place = cutlass.min(row, end - 1)
            fetch(buffer + i * STEP, start + Int64(place) * Int64(bytes_apart))
        cute.arch.cp_async_commit_group()
        row += at_once
    best = bound.in_order(Int32(0)) if cutlass.const_expr(keys) else Int32(0)
    for i in cutlass.range(steps, unroll=1):
        cute.arch.cp_async_wait_group(AHEAD - 1)
        a, b, c, d = words(buffer + slot)
        if cutlass.const_expr(keys):
            best = larger_of_both(best, bound.in_order(a))
            best = larger_of_both(best, bound.in_order(b))
            best = larger_of_both(best, bound.in_order(c))
            best = larger_of_both(best, bound.in_order(d))
        else:
            total = squares(d, squares(c, squares(b, squares(a, Float32(0.0)))))
            total = cute.arch.warp_reduction_sum(total, threads_in_group=per_row)
            best = cutlass.max(best, Int32(bitcast(total.ir_value(), T.i32())))
        if i + AHEAD < steps:
            place = cutlass.min(row, end - 1)
            fetch(buffer + slot, start + Int64(place) * Int64(bytes_apart))
        cute.arch.cp_async_commit_group()
        row += at_once
        slot = (slot + STEP) & (AHEAD * STEP - 1)
    return best


class SurveyingForward(FlashAttentionForwardSm90):  # type: ignore[misc,unused-ignore]
    """flash-attn-4's forward; its auxiliary tensors are K and V [B, S, Hkv, D] and the extents [B, Hkv, 2, 3·shares] i32.

    The extents are f32 bits: of the rows that a warp surveys the largest ‖V_j‖² and |K_jd|. NaN and Inf are left out.
    """

    def kernel(self, *args: Any) -> Any:
        given = list(args)
        copy = KERNEL["gmem_tiled_copy_Q"]
        given[copy] = Carrying(given[copy], given[KERNEL["aux_data"]].tensors)
        given[KERNEL["aux_data"]], given[KERNEL["fastdiv_mods"]] = AuxData(), None
        return super().kernel(*given)

    def load(self, *args: Any) -> None:
        super().load(*args)
        copy, scheduler = args[LOAD["gmem_tiled_copy_Q"]], args[LOAD["TileSchedulerCls"]]
        self.survey(*copy.tensors, cute.size(args[LOAD["mQ"]].shape[0]), scheduler)

    @cute.jit
    def survey(self, k: cute.Tensor, v: cute.Tensor, extents: cute.Tensor, q_rows: Int32, scheduler: Any):
        """What the warps that fetch nothing do."""
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx()) % 4 - 1
        buffers = cutlass.utils.SmemAllocator().allocate(WARPS * AHEAD * STEP, 128)
        block, head, batch, _ = scheduler().initial_work_tile_info().tile_idx
        count = cute.size(extents, mode=[3]) // WARPS
        share = block - (cute.ceil_div(q_rows, self.tile_m) - count)
        if warp >= 0 and share >= 0:
            lane = cute.arch.lane_idx()
            first, end = shares.share_rows(share, count, cute.size(k, mode=[1]), cutlass.min)
            buffer = buffers.toint() + warp * (AHEAD * STEP) + lane * LANE
            mine = share * WARPS + warp
            key = survey_rows(k[batch, None, head, None], first, end, warp, lane, buffer, self.tile_hdim, True)
            key = cutlass.max((key << 16) >> 16, key >> 16) - 0x80
            key = cute.arch.warp_redux_sync(key, "max")
            value = survey_rows(v[batch, None, head, None], first, end, warp, lane, buffer, self.tile_hdim, False)
            value = cute.arch.warp_redux_sync(value, "max")
            if lane == 0:
                extents[batch, head, 0, mine] = value
                extents[batch, head, 1, mine] = key << 16
