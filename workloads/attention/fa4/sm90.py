"""The backward kernel of flash-attn-4 with its float reductions made exact. Imported only after the probe has passed.

The kernel adds with bulk reductions in arrival order: dQ from every kv tile, dK and dV from every query head of a group. Here
each contribution is rounded in registers, just before the kernel hands it on; nothing else of the kernel changes.

dQ of a row is rounded to the row's quantum, ``(x + C) − C`` with C from :mod:`.kernels`. dK and dV of a tile are rounded to
the tile's quantum if the tile's own largest element proves that a whole group of such tiles fits 24 bits, and is large enough
for the quantum to be fine; else the tile is kept aside in float32, to be added later in the order of the heads.
"""

from __future__ import annotations

import inspect
from typing import Any

import cutlass  # type: ignore[import-not-found,unused-ignore]
import cutlass.cute as cute  # type: ignore[import-not-found,unused-ignore]
from cutlass import Boolean, Float32, Int32  # type: ignore[import-not-found,unused-ignore]
from flash_attn.cute.cute_dsl_utils import assume_tensor_aligned  # type: ignore[import-not-found,unused-ignore]
from flash_attn.cute.flash_bwd_sm90 import FlashAttentionBackwardSm90  # type: ignore[import-not-found,unused-ignore]
from flash_attn.cute.named_barrier import NamedBarrierBwd  # type: ignore[import-not-found,unused-ignore]
from quack import layout_utils  # type: ignore[import-not-found,unused-ignore]

from . import bound

ROWS, TILES, ASIDE_K, ASIDE_V, FLAGS = range(5)  # places in the kernel's auxiliary tensors


def _places(method: Any) -> dict[str, int]:
    """Position of each argument of a method of flash-attn-4, self left out."""
    names = list(inspect.signature(inspect.unwrap(method)).parameters)[1:]
    return {name: place for place, name in enumerate(names)}


MMA = _places(FlashAttentionBackwardSm90.mma)
EPILOGUE = _places(FlashAttentionBackwardSm90.epilogue_dKV)


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
    top = Float32(0.0)
    for i in cutlass.range_constexpr(cute.size(acc)):
        top = cute.arch.fmax(top, cute.arch.fmax(values[i], -values[i], nan=True), nan=True)
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

    The auxiliary tensors carry what the rounding needs: C of every query row [B, Hq, S], and with grouped heads C of every kv
    tile [B, Hkv, 2·tiles] (dK, dV), room for tiles kept aside [B, Hq, S·D] twice and their flags [B, Hq, 2·tiles].
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.dQ_swapAB:
            raise ValueError("a transposed dQ holds 20 rows per thread: no registers are left for their constants")

    def mma(self, *args: Any, **options: Any) -> None:
        self._tensors = args[MMA["aux_data"]].tensors
        super().mma(*args, **options)

    def mma_one_m_block(self, m_block: Any, *states: Any, **parts: Any) -> Any:
        """The same block of rows; C is loaded at its start, dQ rounded once its product is complete, while dK's still runs."""
        scores, dq_product, dk_product = parts["mma_qk_fn"], parts["mma_dsk_fn"], parts["mma_dsq_fn"]
        head = parts["score_mod_fn"].keywords
        noted: dict[str, Any] = {}

        def scores_then_load(**how: Any) -> Any:
            noted["scores"] = scores(**how)  # runs on; its rows are here, so the grid before has finished
            noted["constants"] = self._row_constants(dq_product.args[0], head["batch_idx"], head["head_idx"], m_block)
            return noted["scores"]

        def dq_then_note(**how: Any) -> Any:
            noted["dq"] = dq_product(**how)
            return noted["dq"]

        def dk_then_round(**how: Any) -> None:
            dk_product(**how)  # waits for dQ
            by_row = layout_utils.reshape_acc_to_mn(noted["dq"])
            for row in range(cute.size(by_row, mode=[0])):
                constant = noted["constants"][row]
                for column in range(cute.size(by_row, mode=[1])):
                    by_row[row, column] = (by_row[row, column] + constant) - constant

        parts |= {"mma_qk_fn": scores_then_load, "mma_dsk_fn": dq_then_note, "mma_dsq_fn": dk_then_round}
        return super().mma_one_m_block(m_block, *states, **parts)

    def _row_constants(self, tiled_mma: Any, batch: Any, head: Any, m_block: Any) -> Any:
        """C of the rows that this thread's dQ accumulators belong to, loaded into registers."""
        rows = assume_tensor_aligned(self._tensors[ROWS])[batch, head, None]
        tile = cute.local_tile(rows, (self.tile_m,), (m_block,))
        column = cute.make_tensor(tile.iterator, cute.make_layout((self.tile_m, 1), stride=(1, self.tile_m)))
        thread = tiled_mma.get_slice(cute.arch.thread_idx()[0] - 128)
        mine = layout_utils.mma_partition_C_vec(column, thread, expand_shape=self.tile_hdim, is_colvec=True)[None, 0]
        constants = cute.make_rmem_tensor(mine.shape, Float32)
        cute.autovec_copy(mine, constants)
        return constants

    def epilogue_dKV(self, *args: Any) -> None:  # noqa: N802
        """One head's dK and dV before they are added into their group's."""
        if self.qhead_per_kvhead > 1:
            tidx, n_block, head, batch = (args[EPILOGUE[name]] for name in ("tidx", "n_block", "head_idx", "batch_idx"))
            kv_head = head // args[EPILOGUE["qhead_per_kvhead_divmod"]]
            accumulators = ((args[EPILOGUE["acc_dK"]], ASIDE_K), (args[EPILOGUE["acc_dV"]], ASIDE_V))
            for which, (acc, aside) in enumerate(accumulators):
                settle(
                    acc,
                    self._tensors[TILES][batch, kv_head, 2 * n_block + which],
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
