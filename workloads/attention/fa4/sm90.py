"""The backward kernel of flash-attn-4 with its float reductions made exact. Imported only after the probe has passed.

The kernel adds with bulk reductions in arrival order: dQ from every kv tile, dK and dV from every query head of a group. Here
each contribution is rounded in registers, just before the kernel hands it on; nothing else of the kernel changes.

dQ of a row is rounded to the row's quantum, ``(x + C) − C``; C is the row's norm times the head's extent, up to a power of two,
whose exponent comes in the last bits of the row's δ, which the kernel reads anyway (:mod:`.kernels`). dK and dV of a
tile are rounded to the tile's quantum if the tile's own largest element proves that a whole group of such tiles fits 24 bits,
and is large enough for the quantum to be fine; else the tile is kept aside in float32, to be added later in the order of the
heads.
"""

from __future__ import annotations

import inspect
from typing import Any

import cutlass  # type: ignore[import-not-found,unused-ignore]
import cutlass.cute as cute  # type: ignore[import-not-found,unused-ignore]
from cutlass import Boolean, Float32, Int32  # type: ignore[import-not-found,unused-ignore]
from cutlass._mlir_helpers.arith import bitcast  # type: ignore[import-not-found,unused-ignore]
from cutlass.cutlass_dsl import T  # type: ignore[import-not-found,unused-ignore]
from flash_attn.cute.flash_bwd_sm90 import FlashAttentionBackwardSm90  # type: ignore[import-not-found,unused-ignore]
from flash_attn.cute.named_barrier import NamedBarrierBwd  # type: ignore[import-not-found,unused-ignore]
from quack import layout_utils  # type: ignore[import-not-found,unused-ignore]

from . import bound

TILES, ASIDE_K, ASIDE_V, FLAGS = range(4)  # places in the kernel's auxiliary tensors


def _places(method: Any) -> dict[str, int]:
    """Position of each argument of a method of flash-attn-4, self left out."""
    names = list(inspect.signature(inspect.unwrap(method)).parameters)[1:]
    return {name: place for place, name in enumerate(names)}


MMA = _places(FlashAttentionBackwardSm90.mma)
EPILOGUE = _places(FlashAttentionBackwardSm90.epilogue_dKV)


@cute.jit
def row_constant(delta: Float32) -> Float32:
    """C of a row of dQ from its δ, whose last bits carry the exponent of U: one integer instruction."""
    exponent = Int32(bitcast(delta.ir_value(), T.i32())) & bound.ROW_MASK
    return Float32(bitcast(bound.constant_bits(exponent).ir_value(), T.f32()))


@cute.jit
def any_thread(condition: Boolean, barrier: cutlass.Constexpr[int], threads: cutlass.Constexpr[int]) -> Boolean:
    """Whether ``condition`` holds in any of the ``threads`` that meet at this barrier."""
    found = cute.arch.inline_ptx(
        "{{ .reg .pred p; setp.ne.s32 p, {$r0}, 0; bar.red.or.pred p, "
        + f"{barrier}, {threads}"
        + ", p; selp.s32 {$w0}, 1, 0, p; }}",
        write_only_types=[Int32],
        read_only_args=[Int32(condition)],
    )
    return found != 0


@cute.jit
def settle(
    acc: cute.Tensor,
    constant: Float32,
    tile: cute.Tensor,
    flag: cute.Tensor,
    tidx: Int32,
    group: cutlass.Constexpr[int],
    threads: cutlass.Constexpr[int],
):
    """Rounds one head's tile in registers, or keeps it aside in float32 (flag 1) and leaves zeros to be added."""
    values = cute.make_tensor(acc.iterator, cute.make_layout(cute.size(acc)))
    tops = [Float32(0.0)] * 4  # side by side, as each waits for the one before
    for i in cutlass.range_constexpr(cute.size(acc)):
        tops[i % 4] = cute.arch.fmax(tops[i % 4], cute.arch.fmax(values[i], -values[i], nan=True), nan=True)
    top = cute.arch.fmax(cute.arch.fmax(tops[0], tops[1], nan=True), cute.arch.fmax(tops[2], tops[3], nan=True), nan=True)
    fits = top <= constant * Float32(bound.most(group))
    fine = top >= constant * Float32(bound.least())
    barrier: cutlass.Constexpr[int] = int(NamedBarrierBwd.Epilogue)
    too_large = any_thread(not fits, barrier, threads)
    fine_enough = any_thread(fine, barrier, threads)
    something = any_thread(top > Float32(0.0), barrier, threads)
    aside = too_large or (something and not fine_enough)
    if aside:
        for i in cutlass.range_constexpr(cute.size(acc)):
            tile[i] = values[i]
            values[i] = Float32(0.0)
    else:
        for i in cutlass.range_constexpr(cute.size(acc)):
            values[i] = (values[i] + constant) - constant
    if tidx == 0:
        flag[0] = Int32(aside)


class ExactBackward(FlashAttentionBackwardSm90):  # type: ignore[misc,unused-ignore]
    """flash-attn-4's backward whose sums do not depend on their order.

    δ of a row carries the exponent of its U in its last bits (:func:`.bound.exponent`). With grouped heads the auxiliary
    tensors carry C of every kv tile [B, Hkv, 2·tiles] (dK, dV), room for tiles kept aside [B, Hq, S·D] twice and their flags
    [B, Hq, 2·tiles].
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.dQ_swapAB:
            raise ValueError("a transposed dQ holds 20 rows per thread: no registers are left for their constants")

    def mma(self, *args: Any, **options: Any) -> None:
        self._tensors = args[MMA["aux_data"]].tensors
        thread = args[MMA["tiled_mma_dQ"]].get_slice(args[MMA["tidx"]])
        deltas = args[MMA["sdPsum"]]  # [rows of a block, stage], in shared memory
        self._deltas = layout_utils.mma_partition_C_vec(deltas, thread, expand_shape=self.tile_hdim, is_colvec=True)
        super().mma(*args, **options)

    def mma_one_m_block(self, m_block: Any, *states: Any, **parts: Any) -> Any:
        """The same block of rows; dQ is rounded once it is complete, while dK's product runs."""
        dp_product, dq_product, dk_product = parts["mma_dov_fn"], parts["mma_dsk_fn"], parts["mma_dsq_fn"]
        noted: dict[str, Any] = {}
        state = states[0] if self.Q_stage == self.dO_stage else states[1]
        stage = state.index if self.dO_stage > 1 else 0  # of this block's dO, and with it of its δ

        def dp_then_deltas(**how: Any) -> Any:
            product = dp_product(**how)  # runs on; dO is there
            mine = self._deltas[None, stage]
            noted["deltas"] = [mine[row] for row in range(cute.size(mine))]
            return product

        def dq_then_constants(**how: Any) -> Any:
            noted["dq"] = dq_product(**how)  # runs on
            noted["constants"] = [row_constant(delta) for delta in noted["deltas"]]
            return noted["dq"]

        def dk_then_round(**how: Any) -> None:
            dk_product(**how)  # waits for dQ
            by_row = layout_utils.reshape_acc_to_mn(noted["dq"])
            for row, constant in enumerate(noted["constants"]):
                for column in range(cute.size(by_row, mode=[1])):
                    by_row[row, column] = (by_row[row, column] + constant) - constant

        parts |= {"mma_dov_fn": dp_then_deltas, "mma_dsk_fn": dq_then_constants, "mma_dsq_fn": dk_then_round}
        return super().mma_one_m_block(m_block, *states, **parts)

    def epilogue_dKV(self, *args: Any) -> None:  # noqa: N802
        """One head's dK and dV before they are added into their group's."""
        if self.qhead_per_kvhead > 1:
            cute.arch.griddepcontrol_wait()  # what comes before the kernel has written the tiles' C
            tidx, n_block, head, batch = (args[EPILOGUE[name]] for name in ("tidx", "n_block", "head_idx", "batch_idx"))
            kv_head = head // args[EPILOGUE["qhead_per_kvhead_divmod"]]
            accumulators = ((args[EPILOGUE["acc_dK"]], ASIDE_K), (args[EPILOGUE["acc_dV"]], ASIDE_V))
            constants = [self._tensors[TILES][batch, kv_head, 2 * n_block + which] for which in range(2)]  # both on their way
            for which, (acc, aside) in enumerate(accumulators):
                settle(
                    acc,
                    constants[which],
                    self._thread_tile(self._tensors[aside][batch, head, None], n_block, tidx, cute.size(acc)),
                    cute.local_tile(self._tensors[FLAGS][batch, head, None], (1,), (2 * n_block + which,)),
                    tidx,
                    self.qhead_per_kvhead,
                    self.num_mma_threads,
                )
        super().epilogue_dKV(*args)

    def _thread_tile(self, heads_rows: Any, n_block: Any, tidx: Any, size: int) -> Any:
        """Where this thread's accumulators lie in a tile: per warp group, four at a time, thread after thread."""
        threads = self.num_threads_per_warp_group
        tile = cute.local_tile(heads_rows, (size * self.num_mma_threads,), (n_block,))
        start = (tidx // threads) * (size * threads) + (tidx % threads) * 4
        layout = cute.make_layout((4, size // 4), stride=(1, 4 * threads))
        return cute.make_tensor(tile.iterator + start, layout)
