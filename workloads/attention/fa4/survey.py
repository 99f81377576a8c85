"""The forward kernel of flash-attn-4, with a survey of K and V. Imported only after the probe has passed.

The backward's bound needs max_j‖V_j‖ and max|K_jd| of every head. In the forward K and V pass anyway, and three of the four
warps that fetch them have nothing to do: here they read a share of the rows once more (:mod:`.shares`), from the L2 cache, and
store what is largest. What fetches and what computes is not changed, but takes turns with them: what counts is how few
instructions the survey is. Where a share holds NaN or Inf, it is read again without them.
"""

from __future__ import annotations

import inspect
from typing import Any

import cutlass  # type: ignore[import-not-found,unused-ignore]
import cutlass.cute as cute  # type: ignore[import-not-found,unused-ignore]
from cutlass import Float32, Int32, Int64, Uint32  # type: ignore[import-not-found,unused-ignore]
from cutlass._mlir.ir import DictAttr  # type: ignore[import-not-found,unused-ignore]
from cutlass._mlir_helpers.arith import bitcast  # type: ignore[import-not-found,unused-ignore]
from cutlass.cutlass_dsl import T  # type: ignore[import-not-found,unused-ignore]
from flash_attn.cute.flash_fwd_sm90 import FlashAttentionForwardSm90  # type: ignore[import-not-found,unused-ignore]
from flash_attn.cute.utils import AuxData  # type: ignore[import-not-found,unused-ignore]

from . import bound, shares
from .shares import WARPS

ROOM = 8192  # bytes that a warp has in flight at most, a power of two
LANE = 16  # of these a lane's, at once
LANES = {64: 2, 128: 4}  # that read one row together, by head dimension
PIECES = 4  # of a row that a lane reads
STEP = 32 * LANE  # bytes of one instruction
INFINITE = 0x7F800000  # f32 bits: Inf; those of NaN are above


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


def _copies(dim: int, condition: str) -> str:
    """PTX: starts the copies of a lane's part of a row to shared memory if ``condition``, where a warp's parts lie together."""
    copy = "@ok cp.async.cg.shared.global [{{$r0}} + {}], [{{$r1}} + {}], 16;"
    copies = " ".join(copy.format(i * STEP, i * LANES[dim] * LANE) for i in range(PIECES))
    return f"{{ .reg .pred ok; {condition} {copies} }}"


@cute.jit
def fetch(shared: Int32, source: Int64, left: Int32, dim: cutlass.Constexpr[int]):
    """Starts copies of a lane's part of a row if more than 0 rows are ``left``."""
    cute.arch.inline_ptx(_copies(dim, "setp.gt.s32 ok, {$r2}, 0;"), read_only_args=[shared, source, left])


@cute.jit
def words(shared: Int32):
    """16 bytes of shared memory."""
    return cute.arch.inline_ptx(
        "ld.shared.v4.b32 { {$w0}, {$w1}, {$w2}, {$w3} }, [{$r0}];", write_only_types=[Int32] * 4, read_only_args=[shared]
    )


@cute.jit
def finite(word: Int32) -> Int32:
    """Two bf16, 0 where one is Inf or NaN."""
    signs = cute.arch.inline_ptx(
        "prmt.b32 {$w0}, {$r0}, {$r0}, 0xbb99;", write_only_types=[Int32], read_only_args=[bound.in_order(word)]
    )
    return word & ~signs


@cute.jit
def larger(one: Int32, other: Int32) -> Int32:
    """Of two pairs of bf16 the larger magnitudes, with any sign. NaN is smaller than any other."""
    return cute.arch.inline_ptx(
        "max.xorsign.abs.bf16x2 {$w0}, {$r0}, {$r1};", write_only_types=[Int32], read_only_args=[one, other]
    )


@cute.jit
def as_float(bits: Int32) -> Float32:
    return Float32(bitcast(bits.ir_value(), T.f32()))


@cute.jit
def squares(word: Int32, total: Float32) -> Float32:
    """``total`` plus the squares of two bf16, in f32."""
    low, high = as_float(word << Int32(16)), as_float(word & Int32(-65536))
    return high * high + (low * low + total)


@cute.jit
def row_square(shared: Int32, masked: cutlass.Constexpr[bool]) -> Float32:
    """Of a lane's part of a row the sum of squares in f32; ``masked`` without NaN and Inf."""
    total = Float32(0.0)
    for i in cutlass.range_constexpr(PIECES):
        for word in words(shared + i * STEP):
            total = squares(finite(word) if cutlass.const_expr(masked) else word, total)
    return total


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
    masked: cutlass.Constexpr[bool],
) -> Int32:
    """Of this warp's rows of ``rows`` [S, dim] bf16 the bits of the largest |element| (``keys``; bf16) or ‖row‖² (f32).

    ``masked`` leaves out NaN and Inf. In place of rows beyond the end a row before it is looked at once more. A lane reads only
    what it copied to shared memory itself.
    """
    lanes: cutlass.Constexpr[int] = LANES[dim]
    at_once: cutlass.Constexpr[int] = 32 // lanes  # rows that a warp reads together
    block: cutlass.Constexpr[int] = PIECES * STEP  # their bytes
    ahead: cutlass.Constexpr[int] = 1 if masked else ROOM // block
    apart: cutlass.Constexpr[int] = WARPS * at_once  # rows
    bytes_apart = Int32(rows.stride[0]) * 2
    start = rows.iterator.toint() + Int64(lane % lanes * LANE)
    row, slot, best = first + (warp * at_once + lane // lanes), Int32(0), Int32(0)
    for i in cutlass.range_constexpr(ahead):
        place = cutlass.min(row + i * apart, end - 1)
        fetch(buffer + i * block, start + Int64(place) * Int64(bytes_apart), Int32(1), dim)
        cute.arch.cp_async_commit_group()
    source, left = start + Int64(row + ahead * apart) * Int64(bytes_apart), end - row - ahead * apart
    for _ in cutlass.range((end - first - warp * at_once + (apart - 1)) // apart, unroll=1):
        cute.arch.cp_async_wait_group(ahead - 1)
        if cutlass.const_expr(keys):
            for j in cutlass.range_constexpr(PIECES):
                for word in words(buffer + slot + j * STEP):
                    best = larger(best, finite(word) if cutlass.const_expr(masked) else word)
        else:
            total = cute.arch.warp_reduction_sum(row_square(buffer + slot, masked), threads_in_group=lanes)
            best = cutlass.max(best, Int32(bitcast(total.ir_value(), T.i32())))
        fetch(buffer + slot, source, left, dim)
        cute.arch.cp_async_commit_group()
        source += Int64(Uint32(bytes_apart * apart))
        left -= apart
        slot = (slot + block) & (ahead * block - 1)
    cute.arch.cp_async_wait_group(0)
    if cutlass.const_expr(keys):
        best = cutlass.max(best & 0x7FFF, (best >> 16) & 0x7FFF) << 16
    return cute.arch.warp_redux_sync(best, "max")


class SurveyingForward(FlashAttentionForwardSm90):  # type: ignore[misc,unused-ignore]
    """flash-attn-4's forward; its auxiliary tensors are K and V [B, S, Hkv, D] and the extents [B, Hkv, 2, 3·shares] i32.

    The extents are f32 bits: of the rows that a warp surveys the largest ‖V_j‖² and |K_jd|. NaN and Inf are left
    out.
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
        buffers = cutlass.utils.SmemAllocator().allocate(WARPS * ROOM, 128)
        block, head, batch, _ = scheduler().initial_work_tile_info().tile_idx
        count = cute.size(extents, mode=[3]) // WARPS
        share = block - (cute.ceil_div(q_rows, self.tile_m) - count)
        if warp >= 0 and share >= 0:
            lane = cute.arch.lane_idx()
            first, end = shares.share_rows(share, count, cute.size(k, mode=[1]), cutlass.min)
            where = (first, end, warp, lane, buffers.toint() + warp * ROOM + lane * LANE, self.tile_hdim)
            key = survey_rows(k[batch, None, head, None], *where, True, False)
            if key >= INFINITE:
                key = survey_rows(k[batch, None, head, None], *where, True, True)
            value = survey_rows(v[batch, None, head, None], *where, False, False)
            if value >= INFINITE:
                value = survey_rows(v[batch, None, head, None], *where, False, True)
            if lane == 0:
                mine = share * WARPS + warp
                extents[batch, head, 0, mine] = value
                extents[batch, head, 1, mine] = key
