"""Compiles the backward's kernels for a Hopper GPU where there is none and prints what their PTX holds, as JSON."""

import json
import sys

from perfgate import discover
from tests.unit.workloads.compile_kernels import instructions

TYPES = {
    "q": "*bf16", "kv": "*bf16", "topk": "*i32", "lengths": "*i32", "out": "*bf16", "dout": "*bf16", "lse": "*fp32",
    "dq": "*bf16", "into": "*fp32", "staged": "*bf16", "exponents": "*i32", "units": "*i64", "largest": "*i32",
    "first": "i32", "tiles": "i32", "keys": "i32", "heads": "i32", "chosen": "i32", "scale": "fp32",
}  # fmt: skip
CUTS = {"LENGTHS": False, "PARTS": 1, "V_PARTS": 1, "WIDTH": 64, "HEADS": 64, "BLOCK": 64}
AGAIN = {
    **TYPES, "constants": "*i32", "failed": "*i32", "counts": "*i32", "sums": "*fp32", "queries": "i32", "programs": "i32",
    "survey": "i32",
}  # fmt: skip
SHAPE = {"LENGTHS": False, "DIM": 512, "DIM_V": 512, "WIDTH": 64, "HEADS": 64, "BLOCK": 16, "SCAN": 1024}

if __name__ == "__main__":
    found = {
        "racy": instructions("dsa.backward.kernels", "_scatter", TYPES, {**CUTS, "EXACT": False}),
        "exact": instructions("dsa.backward.kernels", "_scatter", TYPES, {**CUTS, "EXACT": True}),
        "staged": instructions("dsa.backward.kernels", "_stage", TYPES, CUTS),
        "again": instructions("dsa.cudnn.kernels", "_again", AGAIN, SHAPE),
        "unspecialised": {one.name: 1 for one in discover.module("dsa.cudnn.kernels")._again.params if one.do_not_specialize},
    }
    json.dump(found, sys.stdout)
