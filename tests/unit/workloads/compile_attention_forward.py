"""Compiles attention's forward for a Hopper GPU where there is none; prints shared memory and what the PTX holds, as JSON."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compile_kernel

from perfgate import discover

from .compile_attention import NUMBERS


def facts(name: str, dim: int, **constants: Any) -> dict[str, int]:
    """Bytes of shared memory, and how often the PTX holds matrix products and atomics."""
    kernel = getattr(discover.module("attention.forward.kernels"), name)
    options = dict(
        discover.module("blocks.configs").config("attention." + name.replace("_attend", "forward").lstrip("_"), dim, "sm90")
    )
    warps = options.pop("num_warps")
    constants |= options | {"D": dim, "GROUP": 4}
    tiles = {one: f"tensordesc<bf16[1,1,{constants[size]},{dim}]>" for one, size in zip("qkv", "MNN", strict=True)}
    counts = dict.fromkeys(("owners", "surveyors"), "i32")
    types = {**dict.fromkeys(kernel.arg_names, "*fp32"), **NUMBERS, **counts, **tiles, "out": tiles["q"]}
    source = ASTSource(
        fn=kernel,
        signature={one: "constexpr" if one in constants else types[one] for one in kernel.arg_names},
        constexprs={(kernel.arg_names.index(one),): value for one, value in constants.items()},
    )
    made = compile_kernel(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    ptx = made.asm["ptx"]
    return {
        "shared": made.metadata.shared,
        "products": len(re.findall(r"\bwgmma\.mma_async", ptx)),
        "atomics": len(re.findall(r"\b(?:red|atom)\.|cp\.reduce", ptx)),
    }


if __name__ == "__main__":
    causal = dict(CAUSAL=True, WINDOWED=False, EVEN=True)
    json.dump(
        {
            dim: {
                "plain": facts("_attend", dim, **causal, SURVEY=False),
                "surveyed": facts("_attend", dim, **causal, SURVEY=True),
                "survey alone": facts("_survey", dim),
            }
            for dim in (64, 128)
        },
        sys.stdout,
    )
