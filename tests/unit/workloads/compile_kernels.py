"""Compiles kernels for a Hopper GPU where there is none, and prints what their PTX holds, as JSON; run in a fresh process.

The interpreter can't tell whether the compiler contracts, folds or vectorises: these counts can.
"""

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

VALUES = {"values": "*fp32", "ids": "*i64", "bins": "i32", "width": "i32", "stride": "i32"}
ROWS = {"rows": "*bf16", "probs": "*fp32", "slots": "*i32", "hidden": "i32", "stride": "i32"}
FOLD = {
    "order": "*i32", "keys": "*i32", "tails": "*fp32", "out": "*fp32", "heads": "*fp32", "next_tails": "*fp32",
    "head_keys": "*i32", "entries": "i32",
}  # fmt: skip
SORT = dict.fromkeys(("entries", "bins", "first", "padding", "shift", "mask", "tiles"), "i32")

KERNELS: list[tuple[str, str, dict[str, str], dict[str, Any]]] = [
    ("moe.combine.kernels", "_gather_forward", {**ROWS, "out": "*bf16"}, {"K": 8, "WEIGHTED": True, "BLOCK": 1024}),
    (
        "moe.combine.kernels",
        "_gather_backward",
        {**ROWS, "grad_out": "*bf16", "grad_rows": "*bf16", "grad_probs": "*fp32", "grad_stride": "i32"},
        {"K": 8, "K_PADDED": 8, "BLOCK": 512},
    ),
    (
        "moe.combine.kernels",
        "_scatter_atomic",
        {**ROWS, "token_of_row": "*i64", "out": "*bf16"},
        {"WEIGHTED": False, "BLOCK": 1024},
    ),
    (
        "moe.routing.kernels",
        "_topk",
        {"scores": "*fp32", "values": "*fp32", "ids": "*i64", "tokens": "i32", "experts": "i32", "stride": "i32"},
        {"K": 8, "PADDED": 8, "WIDTH": 256, "STABLE": True, "ROWS": 4},
    ),
    ("blocks.segment.kernels", "_fold", {**VALUES, **FOLD}, {"CHUNK": 64, "BLOCK": 512, "LEAF": True}),
    ("blocks.segment.kernels", "_add_atomically", {**VALUES, "out": "*fp32"}, {"BLOCK": 512}),
    (
        "blocks.sort.kernels",
        "_rank",
        {**SORT, "ids": "*i64", "ranks": "*i32", "counts": "*i32"},
        {"TILE": 256, "PART": 32, "RAW": True},
    ),
    ("blocks.exact.kernels", "_add_rounded", {**VALUES, "counts": "*i32", "largest": "*i32", "out": "*fp32"}, {"BLOCK": 512}),
]


def instructions(module: str, name: str, types: dict[str, str], constants: dict[str, Any]) -> dict[str, int]:
    """How often the kernel's PTX holds each load, store, reduction, float addition and mma; all arguments divisible by 16."""
    kernel = getattr(discover.module(module), name)
    names = kernel.arg_names
    source = ASTSource(
        fn=kernel,
        signature={one: types.get(one, "constexpr") for one in names},
        constexprs={(names.index(one),): value for one, value in constants.items()},
        attrs={(index,): [["tt.divisibility", 16]] for index, one in enumerate(names) if one in types},
    )
    options = {"num_warps": 4, "enable_fp_fusion": False}
    ptx = compile_kernel(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
    found = re.findall(
        r"^\s*(?:@\S+\s+)?((?:ld\.global|st\.global|red|atom|fma|mma|add|sub|redux)\.\S*)", ptx, flags=re.MULTILINE
    )
    return dict(Counter(found))


if __name__ == "__main__":
    json.dump({kernel[1]: instructions(*kernel) for kernel in KERNELS}, sys.stdout)
