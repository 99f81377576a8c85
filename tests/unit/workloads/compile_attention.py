"""Compiles attention's backward for a Hopper GPU where there is none, and prints what its PTX holds, as JSON."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compile_kernel

from perfgate import discover

D, M, N = 64, 64, 64
NUMBERS = dict.fromkeys(("heads", "kv_heads", "q_len", "kv_len", "q_padded", "window", "nowhere"), "i32") | {"scale": "fp32"}
SHAPE: dict[str, Any] = dict(D=D, M=M, N=N, GROUP=1, CAUSAL=True, WINDOWED=False, MASKED=True, STAGES=2)


def tile(rows: int) -> str:
    return f"tensordesc<bf16[1,1,{rows},{D}]>"


def counts(name: str, **constants: Any) -> dict[str, int]:
    """How often the PTX holds matrix products, bulk reductions, atomics of other kinds, and conversions to integers.

    Beside it, how many copies the loop waits for as soon as it asks for them: those have a barrier made in the loop.
    """
    kernel = getattr(discover.module("attention.backward.kernels"), name)
    types = {**NUMBERS, **{one: tile(M) for one in ("q", "grad_out", "dq")}, **{one: tile(N) for one in ("k", "v", "dk", "dv")}}
    statistics = f"tensordesc<fp32[1,{M}]>" if name == "_key_blocks" else "*fp32"
    types |= dict.fromkeys(("lse2", "delta", "inverse"), statistics)
    types["total"] = {2: f"tensordesc<i32[{D},{M}]>", 1: f"tensordesc<fp32[{D},{M}]>", 0: "*fp32"}[constants.get("RULE", 0)]
    names = kernel.arg_names
    constants = {key: value for key, value in {**SHAPE, **constants}.items() if key in names}
    source = ASTSource(
        fn=kernel,
        signature={one: "constexpr" if one in constants else types[one] for one in names},
        constexprs={(names.index(one),): value for one, value in constants.items()},
    )
    made = compile_kernel(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm
    ptx = made["ptx"]
    loop = re.search(r"^( *)\S[^\n]*scf\.for.*?^\1\}", made["ttgir"], re.DOTALL | re.MULTILINE)
    assert loop, "no loop"
    found = Counter(re.findall(r"\b(wgmma\.mma_async|cp\.reduce\.async\.bulk\.tensor|red\.|atom\.|cvt\.r\w+\.s32\.f32)", ptx))
    adds = len(re.findall(r"cp\.reduce\.async\.bulk\.tensor\S*\.add", ptx))
    return {**found, "adds": adds, "copies in the loop's way": loop.group().count("init_barrier")}


if __name__ == "__main__":
    shared = dict(BULK=True, LATE=True, TOGETHER=8)
    json.dump(
        {
            "exact": counts("_key_blocks", RULE=2, **shared),
            "keys alone": counts("_key_blocks", RULE=0, BULK=False, LATE=False, TOGETHER=8),
            "queries alone": counts("_query_blocks"),
        },
        sys.stdout,
    )
