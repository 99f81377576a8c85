"""Other ways to write the exact hook of ``workloads/dsa/cudnn``, to be raced against it; same accumulator, same tables.

* rows looked up once: a lane keeps its own row and its partner's over the chunks of 64 kv rows, and stock's method is handed
  those instead of the indices. It looks up 4 indices a chunk otherwise, each of which waits behind the reductions under way.
* squares: the certificate takes the largest √Σx² over 16 columns instead of the largest |x|: one fused multiply-add per element
  in place of a maximum, which runs at half the rate; about twice as loose, and wrong for quanta below 2⁻⁶⁰ (x² underflows).
* one constant: every row has row 0's quantum, so no constant is looked up; what rounding itself costs.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

from perfgate import discover

hook = discover.module("dsa.cudnn.hook")
shape = discover.module("dsa.cudnn.shape")

VARIANTS: dict[str, dict[str, str]] = {
    "one constant, no certificate": {"constant": "one", "certificate": "none"},
    "no certificate": {"constant": "own", "certificate": "none"},
    "squares": {"constant": "own", "certificate": "squares"},
    "rows once, no certificate": {"constant": "once", "certificate": "none"},
    "rows once": {"constant": "once", "certificate": "largest"},
    "rows once, squares": {"constant": "once", "certificate": "squares"},
}


class KnownRows:
    """Stands for a query's row of indices: gives the rows looked up before, in the order in which the stock method asks."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = list(rows)

    def __getitem__(self, _entry: Any) -> Any:
        return self.rows.pop(0)


@cache
def instructions() -> Any:
    """What the variants need beside ``hook.instructions()``."""
    from cutlass import Float32
    from cutlass._mlir.dialects import llvm
    from cutlass.cutlass_dsl import T, dsl_user_op

    def emit(operands: list[Any], code: str, constraints: str, loc: Any, ip: Any) -> Any:
        values = [Float32(one).ir_value(loc=loc, ip=ip) for one in operands]
        return Float32(
            llvm.inline_asm(
                T.f32(), values, code, constraints, has_side_effects=False, is_align_stack=False,
                asm_dialect=llvm.AsmDialect.AD_ATT, loc=loc, ip=ip,
            )
        )  # fmt: skip

    @dsl_user_op
    def square_added(x: Any, total: Any, *, loc: Any = None, ip: Any = None) -> Any:
        """x·x + total, rounded once."""
        return emit([x, total], "fma.rn.f32 $0, $1, $1, $2;", "=f,f,f", loc, ip)

    @dsl_user_op
    def larger_bits(one: Any, other: Any, *, loc: Any = None, ip: Any = None) -> Any:
        """The larger of two f32 that are not negative; a NaN is larger than all."""
        code = "{ .reg .b32 x, y; mov.b32 x, $1; mov.b32 y, $2; max.s32 x, x, y; mov.b32 $0, x; }"
        return emit([one, other], code, "=f,f,f", loc, ip)

    @dsl_user_op
    def root(square: Any, *, loc: Any = None, ip: Any = None) -> Any:
        """√square · (1 + 2⁻¹⁰): above the norm whatever the roundings of its squares were."""
        return emit([square], "{ .reg .f32 t; sqrt.rn.f32 t, $1; mul.rn.f32 $0, t, 0f3F802000; }", "=f,f", loc, ip)

    return SimpleNamespace(square_added=square_added, larger_bits=larger_bits, root=root)


@cache
def variant(constant: str, certificate: str) -> Any:
    """A kernel class; ``constant``: "one", "own" (looked up for the lane's own rows) or "once" (with all rows of its pairs)."""
    import cutlass
    import cutlass.cute as cute
    from cutlass import Float32, Int32, const_expr

    base, ptx, more = hook.stock().FlashAttentionDSABackwardSm90, hook.instructions(), instructions()
    view = hook.stock().make_acc_tensor_mn_view

    class Variant(base):  # type: ignore[misc, valid-type]
        @cute.jit
        def scatter_dkv_atomic(self, acc, chunk_idx, topk, memory, n_block, length, keys, thr_mma, tidx):
            values = view(acc)
            place = view(thr_mma.partition_C(cute.make_identity_tensor((self.tile_n, self.hdim_chunk))))
            odd = tidx // 4 % 2
            rows = (keys + (shape.BLOCK - 1)) // shape.BLOCK * shape.BLOCK
            constants = memory.iterator + rows * self.tile_hdim
            if const_expr(chunk_idx == 0):
                self.pairs = []
                self.kept = []
                for r in cutlass.range_constexpr(hook.ROWS):
                    pair = []
                    for i in cutlass.range_constexpr(2):
                        entry = n_block * self.tile_n + place[r, 0][0] - odd + i
                        row = Int32(-1)
                        if entry < length:
                            row = topk[entry]
                        if row >= keys:
                            row = Int32(-1)
                        pair.append(row)
                    own = pair[1] if odd == 1 else pair[0]
                    self.pairs.append(pair)
                    where = constants if const_expr(constant == "one") else constants + cutlass.max(own, 0)
                    self.kept.append([cute.make_tensor(where, cute.make_layout(1))[0], Float32(0.0)])
            for r in cutlass.range_constexpr(hook.ROWS):
                c = self.kept[r][0]
                top = Float32(0.0)
                for column in cutlass.range_constexpr(hook.COLUMNS):
                    x = values[r, column]
                    if const_expr(certificate == "largest"):
                        top = ptx.larger(top, x)
                    if const_expr(certificate == "squares"):
                        top = more.square_added(x, top)
                    if const_expr(certificate != "none" and column % hook.TIED == hook.TIED - 1):
                        c = ptx.tied(c, top)
                    values[r, column] = (x + c) - c
                self.kept[r] = [c, more.larger_bits(self.kept[r][1], top)]
            handed = KnownRows(self.pairs[0] + self.pairs[1]) if const_expr(constant == "once") else topk
            base.scatter_dkv_atomic(self, acc, chunk_idx, handed, memory, n_block, length, keys, thr_mma, tidx)
            if const_expr(certificate != "none" and chunk_idx == self.N_hdim_chunks - 1):
                for r in cutlass.range_constexpr(hook.ROWS):
                    top = self.kept[r][1]
                    top = more.larger_bits(top, cute.arch.shuffle_sync_bfly(top, offset=1))
                    top = more.larger_bits(top, cute.arch.shuffle_sync_bfly(top, offset=2))
                    if const_expr(certificate == "squares"):
                        top = more.root(top)
                    own = self.pairs[r][1] if odd == 1 else self.pairs[r][0]
                    ptx.certify(top, self.kept[r][0], constants + rows + own * 2, own >= 0 and tidx % 4 == r)

    return Variant
