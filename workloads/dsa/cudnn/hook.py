"""The two hooks: subclasses of the stock kernel that wrap its one non-deterministic method, ``scatter_dkv_atomic``.

The method gets one 64 × 64 chunk of contributions in registers and adds it to the accumulator, 8 or 9 chunks per 64 kv rows. A
hook changes what is added (:func:`exact`: rounds the registers, keeps the certificate) or where (:func:`split`: a slice of the
CTA, in its turn) and then calls the stock method. Nothing of the stock kernel is copied; ``probe`` holds its version and hashes
of what is relied upon. Of a chunk a thread holds 2 rows × 16 columns, and the four lanes of a quad share a row. In the stock
method neighbouring quads exchange halves: each thread adds to the rows of both, and asks for them in the order even, odd quad.

Values that outlive one chunk are kept on the instance while the kernel is traced: its chunks follow one another in one block.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from . import shape

ROWS = 2  # of a chunk that one thread holds
COLUMNS = 16
TIED = 8  # after how many columns the running maximum must be up to date, see `tied`


@cache
def stock() -> Any:
    """The module of the stock kernel."""
    from cudnn.deepseek_sparse_attention.sparse_attention_backward import dsa_bwd_sm90

    return dsa_bwd_sm90


@cache
def instructions() -> Any:
    """The few PTX sequences that the hooks need, as functions of CuTe DSL values."""
    from types import SimpleNamespace

    from cutlass import Boolean, Float32, Int32
    from cutlass._mlir.dialects import llvm
    from cutlass.cutlass_dsl import T, dsl_user_op

    def emit(result: Any, operands: list[Any], code: str, constraints: str, effect: bool, loc: Any, ip: Any) -> Any:
        return llvm.inline_asm(
            result, operands, code, constraints, has_side_effects=effect, is_align_stack=False,
            asm_dialect=llvm.AsmDialect.AD_ATT, loc=loc, ip=ip,
        )  # fmt: skip

    @dsl_user_op
    def larger(top: Any, x: Any, y: Any, *, loc: Any = None, ip: Any = None) -> Any:
        """max(top, |x| + |y|), which bounds both; a NaN stays.

        The rounded sum is never below either. As bit patterns of what is not negative compare, two maxima are one instruction.
        """
        operands = [Float32(one).ir_value(loc=loc, ip=ip) for one in (top, x, y)]
        code = (
            "{ .reg .f32 a, b; .reg .b32 i, j; abs.f32 a, $2; abs.f32 b, $3; add.rn.f32 a, a, b; "
            "mov.b32 i, a; mov.b32 j, $1; max.s32 i, i, j; mov.b32 $0, i; }"
        )
        return Float32(emit(T.f32(), operands, code, "=f,f,f,f", False, loc, ip))

    @dsl_user_op
    def largest_of(one: Any, other: Any, *, loc: Any = None, ip: Any = None) -> Any:
        """The larger of two that are not negative; a NaN is larger than all."""
        operands = [Float32(one).ir_value(loc=loc, ip=ip), Float32(other).ir_value(loc=loc, ip=ip)]
        code = "{ .reg .b32 x, y; mov.b32 x, $1; mov.b32 y, $2; max.s32 x, x, y; mov.b32 $0, x; }"
        return Float32(emit(T.f32(), operands, code, "=f,f,f", False, loc, ip))

    @dsl_user_op
    def tied(c: Any, top: Any, *, loc: Any = None, ip: Any = None) -> Any:
        """``c``, but not before ``top`` is known: c & ~(top & 1), and C's lowest bit is 0.

        Without it the assembler puts the maxima off to the end of the block and spills what it still needs for them.
        """
        operands = [Float32(c).ir_value(loc=loc, ip=ip), Float32(top).ir_value(loc=loc, ip=ip)]
        code = "{ .reg .b32 x, y; mov.b32 x, $1; mov.b32 y, $2; lop3.b32 x, x, y, 1, 0x70; mov.b32 $0, x; }"
        return Float32(emit(T.f32(), operands, code, "=f,f,f", True, loc, ip))

    @dsl_user_op
    def certify(top: Any, c: Any, address: Any, valid: Any, *, loc: Any = None, ip: Any = None) -> None:
        """Adds ``quantum.units(top, e)`` to the 64-bit integer at ``address``: 1/q from the exponent of C = 1.5·2²³·q."""
        operands = [Float32(top).ir_value(loc=loc, ip=ip), Float32(c).ir_value(loc=loc, ip=ip)]
        operands += [address.toint().ir_value(loc=loc, ip=ip), Boolean(valid).ir_value(loc=loc, ip=ip)]
        code = (
            "{ .reg .pred over; .reg .b32 e; .reg .f32 t; .reg .b64 n, f; "
            "mov.b32 e, $1; and.b32 e, e, 0x7F800000; sub.s32 e, 0x8A800000, e; mov.b32 t, e; mul.rn.f32 t, $0, t; "
            "setp.gt.f32 over, t, 0f4A800000; min.f32 t, t, 0f53800000; cvt.rpi.u64.f32 n, t; "  # 2^22 and 2^40
            "selp.b64 f, 33554432, 0, over; add.u64 n, n, f; @$3 red.relaxed.gpu.global.add.u64 [$2], n; }"
        )
        emit(None, operands, code, "f,f,l,b", True, loc, ip)

    @dsl_user_op
    def constant_of(exponent: Any, *, loc: Any = None, ip: Any = None) -> Any:
        """C = 1.5·2²³·q from its biased exponent, a byte: the mantissa is always the same."""
        operands = [Int32(exponent).ir_value(loc=loc, ip=ip)]
        code = "{ .reg .b32 e; shl.b32 e, $1, 23; lop3.b32 e, e, 0x7F800000, 0x400000, 0xEA; mov.b32 $0, e; }"  # (e & m) | n
        return Float32(emit(T.f32(), operands, code, "=f,r", False, loc, ip))

    @dsl_user_op
    def wait_for(address: Any, count: Any, needed: Any, *, loc: Any = None, ip: Any = None) -> None:
        """Waits until the integer at ``address`` is ``count``, and sees all that was written before it became so."""
        operands = [address.toint().ir_value(loc=loc, ip=ip), Int32(count).ir_value(loc=loc, ip=ip)]
        operands += [Boolean(needed).ir_value(loc=loc, ip=ip)]
        code = (
            "{ .reg .pred more; .reg .b32 v; @!$2 bra DONE; "
            "AGAIN: ld.acquire.gpu.global.b32 v, [$0]; setp.ne.s32 more, v, $1; @more bra AGAIN; DONE: }"
        )
        emit(None, operands, code, "l,r,b", True, loc, ip)

    @dsl_user_op
    def leave(address: Any, *, loc: Any = None, ip: Any = None) -> None:
        """One thread more is done: its additions before this are visible to whoever sees the new count."""
        operands = [address.toint().ir_value(loc=loc, ip=ip)]
        emit(None, operands, "fence.acq_rel.gpu; red.release.gpu.global.add.s32 [$0], 1;", "l", True, loc, ip)

    return SimpleNamespace(
        larger=larger, largest_of=largest_of, tied=tied, certify=certify, constant_of=constant_of,
        wait_for=wait_for, leave=leave,
    )  # fmt: skip


class KnownRows:
    """Stands for a query's row of indices: gives the rows looked up before, in the order in which the stock method asks."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = list(rows)

    def __getitem__(self, _entry: Any) -> Any:
        return self.rows.pop(0)


@cache
def exact() -> Any:
    """The stock kernel class with rounded contributions and a certificate per kv row.

    Its accumulator tensor is longer than stock's: ``kernels.tables`` says what lies behind the sums. Rows and the exponents of
    their constants are looked up once per 64 rows, not once per chunk; exponents are bytes, so that those of 16384 rows fit L1.
    """
    import cutlass
    import cutlass.cute as cute
    from cutlass import Float32, Int32, Uint8, const_expr

    base, ptx = stock().FlashAttentionDSABackwardSm90, instructions()
    view = stock().make_acc_tensor_mn_view

    class RoundedBackward(base):  # type: ignore[misc, valid-type]
        @cute.jit
        def looked_up(self, topk, entry, length, keys):
            row = Int32(-1)
            if entry < length:
                row = topk[entry]
            if row >= keys:
                row = Int32(-1)
            return row

        @cute.jit
        def scatter_dkv_atomic(self, acc, chunk_idx, topk, memory, n_block, length, keys, thr_mma, tidx):
            values = view(acc)
            odd = tidx // 4 % 2
            rows = (keys + (shape.BLOCK - 1)) // shape.BLOCK * shape.BLOCK
            units = memory.iterator + (rows * self.tile_hdim + rows)
            if const_expr(chunk_idx == 0):
                place = view(thr_mma.partition_C(cute.make_identity_tensor((self.tile_n, self.hdim_chunk))))
                exponents = cute.make_ptr(Uint8, (units + rows * 3).toint(), cute.AddressSpace.gmem, assumed_align=1)
                self.pairs, self.kept = [], []
                for r in cutlass.range_constexpr(ROWS):
                    even = n_block * self.tile_n + place[r, 0][0] - odd
                    pair = [self.looked_up(topk, even, length, keys), self.looked_up(topk, even + 1, length, keys)]
                    own = pair[1] if odd == 1 else pair[0]
                    c = ptx.constant_of(cute.make_tensor(exponents + cutlass.max(own, 0), cute.make_layout(1))[0])
                    self.pairs.append(pair)
                    self.kept.append([c, Float32(0.0)])
            for r in cutlass.range_constexpr(ROWS):
                c = self.kept[r][0]
                top = self.kept[r][1]
                for column in cutlass.range_constexpr(0, COLUMNS, 2):
                    x, y = values[r, column], values[r, column + 1]
                    top = ptx.larger(top, x, y)
                    values[r, column] = (x + c) - c
                    if const_expr((column + 2) % TIED == 0):
                        c = ptx.tied(c, top)
                    values[r, column + 1] = (y + c) - c
                self.kept[r] = [c, top]
            known = KnownRows(self.pairs[0] + self.pairs[1])
            base.scatter_dkv_atomic(self, acc, chunk_idx, known, memory, n_block, length, keys, thr_mma, tidx)
            if const_expr(chunk_idx == self.N_hdim_chunks - 1):
                for r in cutlass.range_constexpr(ROWS):
                    top = self.kept[r][1]
                    top = ptx.largest_of(top, cute.arch.shuffle_sync_bfly(top, offset=1))
                    top = ptx.largest_of(top, cute.arch.shuffle_sync_bfly(top, offset=2))
                    own = self.pairs[r][1] if odd == 1 else self.pairs[r][0]
                    mine = own >= 0 and tidx % 4 == r
                    ptx.certify(top, self.kept[r][0], units + own * 2, mine)

    return RoundedBackward


@cache
def split(slices: int) -> Any:
    """The stock kernel class whose CTAs add to ``slices`` accumulators in the order of ``split.before``.

    Behind the slices lie, per CTA, the number of threads that have left and the CTA whose additions go before its own.
    """
    import cutlass
    import cutlass.cute as cute
    from cutlass import Int32, Int64, const_expr

    base, ptx = stock().FlashAttentionDSABackwardSm90, instructions()

    class SlicedBackward(base):  # type: ignore[misc, valid-type]
        @cute.jit
        def scatter_dkv_atomic(self, acc, chunk_idx, topk, memory, n_block, length, keys, thr_mma, tidx):
            cta = cute.arch.block_idx()[0]
            size = Int64((keys + (shape.BLOCK - 1)) // shape.BLOCK * shape.BLOCK) * self.tile_hdim
            left = cute.make_ptr(Int32, memory.iterator.toint() + size * (4 * slices), cute.AddressSpace.gmem, assumed_align=4)
            if const_expr(chunk_idx == 0):  # noqa: SIM102 - one decided while tracing, one on the device
                if n_block == (length + (self.tile_n - 1)) // self.tile_n - 1:
                    ctas = cute.arch.grid_dim()[0]
                    earlier = cute.make_tensor(left + (ctas + cta), cute.make_layout(1))[0]
                    ptx.wait_for(left + cutlass.max(earlier, 0), shape.THREADS, earlier >= 0)
            mine = cute.make_tensor(memory.iterator + Int64(cta % slices) * size, memory.layout)
            base.scatter_dkv_atomic(self, acc, chunk_idx, topk, mine, n_block, length, keys, thr_mma, tidx)
            if const_expr(chunk_idx == self.N_hdim_chunks - 1):  # noqa: SIM102
                if n_block == 0:
                    ptx.leave(left + cta)

    return SlicedBackward
