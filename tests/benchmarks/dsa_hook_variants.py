"""Other ways to write the exact hook of ``workloads/dsa/cudnn``, to be raced against it; same accumulator, same tables.

What may cost: the constant of each row (a chain of two loads per 64 rows), two additions per element, the certificate (a
maximum per element, which runs at half the rate), and its booking: one more reduction per row beside the 16 lines of its sums,
where reductions are what binds. So each can be taken apart:

* constant: "one" (row 0's for all: what rounding itself costs), "own" (looked up per lane), "byte" (own, from a table of
  exponents, a byte each: 16384 of them stay in L1), "once" (own, and stock's method is handed rows instead of indices),
  "once byte" (both), "ahead" and "ahead byte" (looked up during the chunks before, passed on through shared memory),
  "touched" (own, and prefetched into L1 during the last chunk of the rows before).
* certificate: "none"; "largest" (the largest |x|); "squares" (the largest √Σx² over 16 columns: a fused multiply-add per
  element in place of a maximum, up to twice as loose, and wrong for quanta below 2⁻⁶⁰, where x² underflows); "pairs" (the
  largest |x| + |y| of two columns: half the maxima, up to twice as loose; a NaN fails its row) and "pairs of bits" (the same,
  compared as integers).
* above: a contribution is booked only if it exceeds a threshold, a scalar T behind the tables. With T = −1 all are booked. A
  proof with T > 0 needs exact counts: count·⌈T/q⌉ + units ≤ 2²⁴. With T = ∞ the race shows what the booking costs.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

from perfgate import discover

hook = discover.module("dsa.cudnn.hook")
shape = discover.module("dsa.cudnn.shape")

VARIANTS: dict[str, dict[str, Any]] = {
    "one, none": {"constant": "one", "certificate": "none"},
    "own, none": {"constant": "own", "certificate": "none"},
    "byte, none": {"constant": "byte", "certificate": "none"},
    "once byte, none": {"constant": "once byte", "certificate": "none"},
    "ahead byte, none": {"constant": "ahead byte", "certificate": "none"},
    "touched, none": {"constant": "touched", "certificate": "none"},
    "own, squares": {"constant": "own", "certificate": "squares"},
    "once, squares": {"constant": "once", "certificate": "squares"},
    "one, squares, above": {"constant": "one", "certificate": "squares", "above": True},
    "byte, largest, above": {"constant": "byte", "certificate": "largest", "above": True},
    "touched, largest, above": {"constant": "touched", "certificate": "largest", "above": True},
    "byte, squares, above": {"constant": "byte", "certificate": "squares", "above": True},
    "ahead, squares, above": {"constant": "ahead", "certificate": "squares", "above": True},
    "ahead byte, largest, above": {"constant": "ahead byte", "certificate": "largest", "above": True},
    "ahead byte, squares, above": {"constant": "ahead byte", "certificate": "squares", "above": True},
    "once byte, largest, above": {"constant": "once byte", "certificate": "largest", "above": True},
    "once byte, squares, above": {"constant": "once byte", "certificate": "squares", "above": True},
    "once byte, pairs": {"constant": "once byte", "certificate": "pairs"},
    "once byte, pairs of bits": {"constant": "once byte", "certificate": "pairs of bits"},
    "once byte, pairs, above": {"constant": "once byte", "certificate": "pairs", "above": True},
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
    from cutlass import Boolean, Float32, Int32
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
    def larger_pair(top: Any, x: Any, y: Any, *, loc: Any = None, ip: Any = None) -> Any:
        """max(top, |x| + |y|); a NaN stays. The sum, rounded, is never below either."""
        code = "{ .reg .f32 a, b; abs.f32 a, $2; abs.f32 b, $3; add.rn.f32 a, a, b; max.NaN.f32 $0, $1, a; }"
        return emit([top, x, y], code, "=f,f,f,f", loc, ip)

    @dsl_user_op
    def larger_pair_bits(top: Any, x: Any, y: Any, *, loc: Any = None, ip: Any = None) -> Any:
        """The same, of bit patterns."""
        code = (
            "{ .reg .f32 a, b; .reg .b32 i, j; abs.f32 a, $2; abs.f32 b, $3; add.rn.f32 a, a, b; "
            "mov.b32 i, a; mov.b32 j, $1; max.s32 i, i, j; mov.b32 $0, i; }"
        )
        return emit([top, x, y], code, "=f,f,f,f", loc, ip)

    @dsl_user_op
    def root(square: Any, *, loc: Any = None, ip: Any = None) -> Any:
        """√square · (1 + 2⁻¹⁰): above the norm whatever the roundings of its squares were."""
        return emit([square], "{ .reg .f32 t; sqrt.rn.f32 t, $1; mul.rn.f32 $0, t, 0f3F802000; }", "=f,f", loc, ip)

    @dsl_user_op
    def constant_of(exponent: Any, *, loc: Any = None, ip: Any = None) -> Any:
        """C from its biased exponent, a byte: its mantissa is always 1.5."""
        operands = [Int32(exponent).ir_value(loc=loc, ip=ip)]
        code = "{ .reg .b32 e; shl.b32 e, $1, 23; lop3.b32 e, e, 0x7F800000, 0x400000, 0xEA; mov.b32 $0, e; }"  # (e & m) | n
        return Float32(
            llvm.inline_asm(
                T.f32(), operands, code, "=f,r", has_side_effects=False, is_align_stack=False,
                asm_dialect=llvm.AsmDialect.AD_ATT, loc=loc, ip=ip,
            )
        )  # fmt: skip

    @dsl_user_op
    def touch(address: Any, valid: Any, *, loc: Any = None, ip: Any = None) -> None:
        """Brings the line at ``address`` into L1."""
        operands = [address.toint().ir_value(loc=loc, ip=ip), Boolean(valid).ir_value(loc=loc, ip=ip)]
        llvm.inline_asm(
            None, operands, "@$1 prefetch.global.L1 [$0];", "l,b", has_side_effects=True, is_align_stack=False,
            asm_dialect=llvm.AsmDialect.AD_ATT, loc=loc, ip=ip,
        )  # fmt: skip

    return SimpleNamespace(
        touch=touch, constant_of=constant_of, square_added=square_added, larger_bits=larger_bits, root=root,
        larger_pair=larger_pair, larger_pair_bits=larger_pair_bits,
    )  # fmt: skip


@cache
def variant(constant: str, certificate: str, above: bool = False) -> Any:
    """A kernel class. Its tables are those of ``kernels.tables``; exponents lie in ``largest``, T behind the flag."""
    import cutlass
    import cutlass.cute as cute
    from cutlass import Float32, Int32, Uint8, const_expr

    base, ptx, more = hook.stock().FlashAttentionDSABackwardSm90, hook.instructions(), instructions()
    view = hook.stock().make_acc_tensor_mn_view

    class Variant(base):  # type: ignore[misc, valid-type]
        @cute.jit
        def looked_up(self, topk, entry, length, keys):
            row = Int32(-1)
            if entry < length:
                row = topk[entry]
            if row >= keys:
                row = Int32(-1)
            return row

        @cute.jit
        def constant(self, constants, rows, row):
            first = Int32(0) if const_expr(constant == "one") else cutlass.max(row, 0)
            if const_expr("byte" in constant):
                exponents = cute.make_ptr(Uint8, (constants + rows * 4).toint(), cute.AddressSpace.gmem, assumed_align=1)
                return more.constant_of(cute.make_tensor(exponents + first, cute.make_layout(1))[0])
            return cute.make_tensor(constants + first, cute.make_layout(1))[0]

        @cute.jit
        def scatter_dkv_atomic(self, acc, chunk_idx, topk, memory, n_block, length, keys, thr_mma, tidx):
            values = view(acc)
            place = view(thr_mma.partition_C(cute.make_identity_tensor((self.tile_n, self.hdim_chunk))))
            odd = tidx // 4 % 2
            rows = (keys + (shape.BLOCK - 1)) // shape.BLOCK * shape.BLOCK
            constants = memory.iterator + rows * self.tile_hdim
            line = tidx % shape.THREADS // 32 * 16 + tidx % 16  # of the rows that this warp holds
            if const_expr(chunk_idx == 0):
                if const_expr("ahead" in constant and not hasattr(self, "ahead")):
                    self.ahead = cute.make_tensor(cute.arch.alloc_smem(Float32, shape.BLOCK, 16), cute.make_layout(shape.BLOCK))
                self.pairs = []
                self.kept = []
                for r in cutlass.range_constexpr(hook.ROWS):
                    pair = []
                    for i in cutlass.range_constexpr(2):
                        row = Int32(-1)
                        if const_expr("once" in constant or i == 0):
                            entry = n_block * self.tile_n + place[r, 0][0]
                            if const_expr("once" in constant):
                                entry = entry - odd + i
                            row = self.looked_up(topk, entry, length, keys)
                        pair.append(row)
                    own = pair[0]
                    if const_expr("once" in constant):
                        own = pair[1] if odd == 1 else pair[0]
                    self.pairs.append(pair)
                    if const_expr("ahead" in constant):
                        c = self.ahead[place[r, 0][0]]
                        if n_block == (length + (self.tile_n - 1)) // self.tile_n - 1:
                            c = self.constant(constants, rows, own)
                    else:
                        c = self.constant(constants, rows, own)
                    self.kept.append([c, Float32(0.0)])
            for r in cutlass.range_constexpr(hook.ROWS):
                c = self.kept[r][0]
                top = before = Float32(0.0)
                if const_expr(certificate != "squares"):
                    top = self.kept[r][1]
                for column in cutlass.range_constexpr(hook.COLUMNS):
                    x = values[r, column]
                    if const_expr(certificate == "largest"):
                        top = ptx.larger(top, x)
                    if const_expr(certificate == "pairs" and column % 2 == 1):
                        top = more.larger_pair(top, before, x)
                    if const_expr(certificate == "pairs of bits" and column % 2 == 1):
                        top = more.larger_pair_bits(top, before, x)
                    before = x
                    if const_expr(certificate == "squares"):
                        top = more.square_added(x, top)
                    if const_expr(certificate != "none" and column % hook.TIED == hook.TIED - 1):
                        c = ptx.tied(c, top)
                    values[r, column] = (x + c) - c
                if const_expr(certificate == "squares"):
                    top = more.larger_bits(self.kept[r][1], top)
                self.kept[r] = [c, top]
            if const_expr("ahead" in constant and chunk_idx == self.N_hdim_chunks - 3):
                entry = (n_block - 1) * self.tile_n + line
                row = Int32(-1)
                if entry >= 0:
                    row = self.looked_up(topk, entry, length, keys)
                self.next = row
            if const_expr("ahead" in constant and chunk_idx == self.N_hdim_chunks - 2):
                self.next = self.constant(constants, rows, self.next)
            handed = KnownRows(self.pairs[0] + self.pairs[1]) if const_expr("once" in constant) else topk
            base.scatter_dkv_atomic(self, acc, chunk_idx, handed, memory, n_block, length, keys, thr_mma, tidx)
            if const_expr(constant == "touched" and chunk_idx == self.N_hdim_chunks - 1):
                entry = (n_block - 1) * self.tile_n + line
                row = Int32(-1)
                if entry >= 0:
                    row = self.looked_up(topk, entry, length, keys)
                more.touch(constants + cutlass.max(row, 0), row >= 0)
            if const_expr("ahead" in constant and chunk_idx == self.N_hdim_chunks - 1):
                cute.arch.sync_warp()
                self.ahead[line] = self.next
                cute.arch.sync_warp()
            if const_expr(certificate != "none" and chunk_idx == self.N_hdim_chunks - 1):
                for r in cutlass.range_constexpr(hook.ROWS):
                    top = self.kept[r][1]
                    top = more.larger_bits(top, cute.arch.shuffle_sync_bfly(top, offset=1))
                    top = more.larger_bits(top, cute.arch.shuffle_sync_bfly(top, offset=2))
                    if const_expr(certificate == "squares"):
                        top = more.root(top)
                    own = Int32(-1)
                    if const_expr("once" in constant):
                        own = self.pairs[r][1] if odd == 1 else self.pairs[r][0]
                    else:  # looked up again: kept, it would be spilled
                        own = self.looked_up(topk, n_block * self.tile_n + place[r, 0][0], length, keys)
                    mine = own >= 0 and tidx % 4 == r
                    if const_expr(above):
                        mine = mine and top > cute.make_tensor(constants + (rows * 5 + 1), cute.make_layout(1))[0]
                    ptx.certify(top, self.kept[r][0], constants + rows + own * 2, mine)

    return Variant
