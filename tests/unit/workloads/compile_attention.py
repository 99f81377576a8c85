"""Compiles attention's backward for a Hopper GPU where there is none, and prints what its code holds, as JSON."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compile_kernel

from perfgate import discover

NUMBERS = dict.fromkeys(("heads", "kv_heads", "q_len", "kv_len", "q_padded", "window", "nowhere"), "i32") | {"scale": "fp32"}
SHAPE: dict[str, Any] = dict(GROUP=1, CAUSAL=True, WINDOWED=False, MASKED=True)
COUNTED = r"\b(wgmma\.mma_async|cp\.reduce\.async\.bulk\.tensor|red\.|atom\.|mul\.rn\.bf16x2|cvt\.r\w+\.s32\.f32)"


def compiled(name: str, config: str, dim: int, dtype: str = "bf16", **constants: Any) -> tuple[dict[str, Any], str]:
    """The stages of ``backward.kernels.name`` in the form that the table's row ``config`` gives it for Hopper; ptxas' words."""
    kernel = getattr(discover.module("attention.backward.kernels"), name)
    options = dict(discover.module("blocks.configs").config(config, dim, "sm90"))
    warps, rows, keys = options.pop("num_warps"), options["M"], options["N"]

    def tile(length: int) -> str:
        return f"tensordesc<{dtype}[1,1,{length},{dim}]>"

    types = {**NUMBERS, **{one: tile(rows) for one in ("q", "grad_out", "dq")}}
    types |= {one: tile(keys) for one in ("k", "v", "dk", "dv")}
    types |= dict.fromkeys(("lse2", "delta"), f"tensordesc<fp32[1,{rows}]>" if name == "_key_blocks" else "*fp32")
    types["total"] = {2: f"tensordesc<i32[{dim},{rows}]>", 1: f"tensordesc<fp32[{dim},{rows}]>", 0: "*fp32"}[
        constants.get("RULE", 0)
    ]
    names = kernel.arg_names
    constants = {key: value for key, value in {**SHAPE, "D": dim, **options, **constants}.items() if key in names}
    source = ASTSource(
        fn=kernel,
        signature={one: "constexpr" if one in constants else types[one] for one in names},
        constexprs={(names.index(one),): value for one, value in constants.items()},
        attrs={(names.index("q_padded"),): [["tt.divisibility", 16]]},
    )
    chosen = {"num_warps": warps, "enable_fp_fusion": True}
    with redirect_stdout(StringIO()) as said:
        made = compile_kernel(source, target=GPUTarget("cuda", 90, 32), options=chosen)
    return dict(made.asm), said.getvalue()


def counts(*args: Any, **constants: Any) -> dict[str, int]:
    """How often PTX holds matrix products, bulk reductions, atomics of other kinds, conversions; what the loop copies.

    *Copies in the loop's way* are waited for as soon as they are asked for: those have a barrier made in the loop.
    """
    made, said = compiled(*args, **constants)
    ptx = made["ptx"]
    loop = re.search(r"^( *)\S[^\n]*scf\.for.*?^\1\}", made["ttgir"], re.DOTALL | re.MULTILINE)
    assert loop, "no loop"
    adds = len(re.findall(r"cp\.reduce\.async\.bulk\.tensor\S*\.add", ptx))
    return {
        **Counter(re.findall(COUNTED, ptx)),
        "adds": adds,
        "copies": loop.group().count("async_tma_copy_global_to_local"),
        "copies in the loop's way": loop.group().count("init_barrier"),
        **assembled(said),
    }


def assembled(said: str) -> dict[str, int]:
    """Registers a thread, bytes spilled, and warnings that wgmma waits (C7515 and its like), from what ptxas says."""
    registers, spilled = re.search(r"Used (\d+) registers", said), re.search(r"(\d+) bytes spill stores", said)
    assert registers, said
    assert spilled, said
    return {
        "registers": int(registers.group(1)),
        "spilled": int(spilled.group(1)),
        "serialised": said.lower().count("serializ"),
    }


if __name__ == "__main__":
    knobs.compilation.always_compile = knobs.nvidia.dump_ptxas_log = True
    summed = "_key_blocks", "attention.backward_keys"
    exact: dict[str, Any] = dict(RULE=2)
    json.dump(
        {
            "exact": counts(*summed, 128, **exact),
            "exact 64": counts(*summed, 64, **exact),
            "exact f16": counts(*summed, 64, "fp16", **exact),
            "atomic": counts(*summed, 64, RULE=1),
            "keys alone": counts("_key_blocks", "attention.backward_keys_alone", 64, RULE=0, BULK=False, LATE=False),
            "queries alone": counts("_query_blocks", "attention.backward_queries", 64),
        },
        sys.stdout,
    )
