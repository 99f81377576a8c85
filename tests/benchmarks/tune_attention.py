"""Times the launch configurations of attention's kernels and checks every one against float64.

    python -m tests.benchmarks.tune_attention    # both head dimensions, every kernel; prints, writes nothing
    python -m tests.benchmarks.tune_attention --dim 128 --kernel attention.backward_keys

Choosing stays by hand: a faster row goes into ``workloads/blocks/configs.json`` and is reviewed, because it may mean new bits
of dK and dV. Medians of triton.testing.do_bench at B2 H16 S4096, causal, bf16; errors at two small shapes with odd edges.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from triton.testing import do_bench

from perfgate import discover

FORWARD, BACKWARD = discover.module("attention.forward.kernels"), discover.module("attention.backward.kernels")
PLAIN = discover.module("attention.plain")
TABLE: Callable[..., dict[str, int]] = BACKWARD.config_for
TILES = {"M": (32, 64, 128), "N": (64, 128), "STAGES": (2, 3), "num_warps": (4, 8)}
SWEEPS: dict[str, tuple[tuple[str, ...], dict[str, tuple[int, ...]]]] = {
    "attention.forward": (("forward",), TILES),
    "attention.backward_keys": (("exact", "atomic"), TILES | {"BULK": (1,), "LATE": (0, 1), "TOGETHER": (4, 8, 32)}),
    "attention.backward_keys_alone": (("two_pass",), TILES | {"TOGETHER": (4, 16)}),
    "attention.backward_queries": (("two_pass",), TILES),
}
SMALL = (dict(q_len=257, kv_len=300, heads=4, kv_heads=1), dict(q_len=512, kv_len=512, heads=2, kv_heads=2))
TYPICAL = dict(q_len=4096, kv_len=4096, heads=16, kv_heads=16, batch=2)


def force(kernel: str, options: dict[str, int]) -> None:
    """Makes the launches use ``options`` for ``kernel`` and the table for the others."""

    def config_for(name: str, size: int, tensor: Any) -> dict[str, int]:
        return dict(options) if name == kernel else TABLE(name, size, tensor)

    vars(FORWARD)["config_for"] = vars(BACKWARD)["config_for"] = config_for


def inputs(dim: int, q_len: int, kv_len: int, heads: int, kv_heads: int, batch: int = 1) -> list[torch.Tensor]:
    """q, k, v and the output's gradient, bf16."""
    g = torch.Generator("cuda").manual_seed(0)
    shapes = [(batch, h, s, dim) for h, s in ((heads, q_len), (kv_heads, kv_len), (kv_heads, kv_len), (heads, q_len))]
    return [torch.randn(shape, device="cuda", generator=g).bfloat16() for shape in shapes]


def call(what: str, tensors: list[torch.Tensor]) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Forward, or a backward by rule ``what`` whose forward has been run."""
    q, k, v, grad_out = tensors
    rule: dict[str, Any] = dict(causal=True, scale=q.shape[3] ** -0.5)
    if what == "forward":
        return lambda: FORWARD.forward(q, k, v, **rule, survey=False)[:1]
    out, lse, survey = FORWARD.forward(q, k, v, **rule)
    return lambda: BACKWARD.backward(q, k, v, out, lse, grad_out, **rule, rule=what, survey=survey)


def error(what: str, dim: int) -> float:
    """The largest relative L2 error of any output over the small shapes."""
    worst = 0.0
    for shape in SMALL:
        tensors = inputs(dim, **shape)
        q, k, v, grad_out = (one.double() for one in tensors)
        rule: dict[str, Any] = dict(causal=True, scale=dim**-0.5)
        exact = PLAIN.forward(q, k, v, **rule)[:1] if what == "forward" else PLAIN.backward(q, k, v, grad_out, **rule)
        for one, other in zip(call(what, tensors)(), exact, strict=True):
            worst = max(worst, float((one.double() - other).norm() / other.norm()))
    return worst


def candidates(options: dict[str, tuple[int, ...]]) -> Iterator[dict[str, int]]:
    """Every combination whose accumulators can fit the registers."""
    for values in product(*options.values()):
        chosen = dict(zip(options, values, strict=True))
        if chosen["M"] * chosen["N"] <= 64 * 32 * chosen["num_warps"]:
            yield chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, action="append", choices=(64, 128))
    parser.add_argument("--kernel", action="append", choices=SWEEPS)
    chosen = parser.parse_args()
    for dim, kernel in product(chosen.dim or (128, 64), chosen.kernel or SWEEPS):
        rules, options = SWEEPS[kernel]
        tensors = inputs(dim, **TYPICAL)
        for candidate in candidates(options):
            force(kernel, candidate)
            try:
                times = [f"{what} {1000 * do_bench(call(what, tensors), return_mode='median'):.1f} us" for what in rules]
                said = f"{', '.join(times)}, error {max(error(what, dim) for what in rules):.2e}"
            except Exception as problem:  # does not fit: shared memory, registers, or the compiler
                said = f"{type(problem).__name__}: {str(problem).splitlines()[0][:80]}"
            sys.stdout.write(f"{kernel} D{dim} {candidate}: {said}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
