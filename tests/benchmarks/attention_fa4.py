"""Measures flash-attn-4's backward as shipped, ordered and with exact sums, on Hopper, and how far each is from float64.

    python tests/benchmarks/attention_fa4.py [--replays 20] [--shape 2 16 16 4096 128 causal]

Needs what `pip install 'perfgate[peers]'` brings. Of each shape: medians of every kernel under the profiler, the rules taken
in turn (ABC CBA); do_bench medians of forward + backward, cuDNN's through SDPA beside; relative L2 error of dq, dk, dv;
replays whose bits differ from the first; the share of dK's and dV's tiles kept aside.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from triton.testing import do_bench

from perfgate import discover

SHAPES = [
    [2, 16, 16, 4096, 128, "causal"],
    [2, 16, 16, 4096, 128, "full"],
    [2, 16, 4, 4096, 128, "causal"],
    [2, 16, 16, 4096, 64, "causal"],
    [1, 16, 16, 16384, 128, "causal"],
]
probe = discover.module("attention.fa4.probe")


def say(*parts: Any) -> None:
    sys.stdout.write(" ".join(map(str, parts)) + "\n")
    sys.stdout.flush()


def reference(q: Any, k: Any, v: Any, grad: Any, causal: bool) -> list[torch.Tensor]:
    """dq, dk, dv in float64, head by head."""
    group = q.shape[1] // k.shape[1]
    found = [torch.zeros(tensor.shape, dtype=torch.float64, device="cuda") for tensor in (q, k, v)]
    for batch in range(q.shape[0]):
        for head in range(q.shape[1]):
            kv_head = head // group
            one = [tensor.double() for tensor in (q[batch, head], k[batch, kv_head], v[batch, kv_head], grad[batch, head])]
            scores = one[0] @ one[1].T * q.shape[3] ** -0.5
            if causal:
                scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
            p = scores.softmax(dim=-1)
            dp = one[3] @ one[2].T
            ds = p * (dp - (p * dp).sum(dim=-1, keepdim=True)) * q.shape[3] ** -0.5
            found[0][batch, head] = ds @ one[1]
            found[1][batch, kv_head] += ds.T @ one[0]
            found[2][batch, kv_head] += p.T @ one[3]
    return found


def kernel_medians(rules: dict[str, Callable[[], Any]], rounds: int = 4, calls: int = 8) -> dict[str, dict[str, float]]:
    """Median us of each kernel times how often a call launches it; in alternating blocks: the same clocks for all."""
    for run in [*rules.values()] * 10:
        run()
    times: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name in [*rules, *reversed(rules)] * rounds:
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            for _ in range(calls):
                rules[name]()
            torch.cuda.synchronize()
        for event in profiled.events():
            if "CUDA" in str(event.device_type):
                short = event.name.removeprefix("kernel_cutlass_kernel_")[:44]
                times[name][short].append(event.device_time)
    blocks = 2 * rounds * calls
    return {
        name: {kernel: round(statistics.median(took) * len(took) / blocks, 1) for kernel, took in one.items()}
        for name, one in times.items()
    }


def cudnn(q: Any, k: Any, v: Any, grad: Any, causal: bool) -> Callable[[], Any]:
    leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]

    def run() -> Any:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            out = F.scaled_dot_product_attention(*leaves, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])
        return torch.autograd.grad(out, leaves, grad)

    return run


def measure(batch: int, heads: int, kv_heads: int, length: int, dim: int, mask: str, replays: int) -> None:
    hooks, kernels = discover.module("attention.fa4.hooks"), discover.module("attention.fa4.kernels")
    say(f"== B{batch} H{heads}/{kv_heads} S{length} D{dim} {mask}")
    generator = torch.Generator(device="cuda").manual_seed(7)
    shapes = [(batch, count, length, dim) for count in (heads, kv_heads, kv_heads, heads)]
    q, k, v, grad = (torch.randn(shape, device="cuda", generator=generator).bfloat16() for shape in shapes)
    options = {"causal": mask == "causal", "scale": dim**-0.5}
    out, lse = hooks.forward(q, k, v, **options)

    def backward(rule: str) -> Callable[[], Any]:
        return lambda: hooks.backward(q, k, v, out, lse, grad, rule=rule, **options)

    def both(rule: str) -> Callable[[], Any]:
        return lambda: hooks.backward(q, k, v, *hooks.forward(q, k, v, **options), grad, rule=rule, **options)

    rules = {rule: backward(rule) for rule in probe.RULES}
    for rule, medians in kernel_medians(rules).items():
        say(f"{rule:8} {sum(medians.values()):8.1f} us", medians)
    timed = [*((rule, both(rule)) for rule in probe.RULES), ("cudnn", cudnn(q, k, v, grad, options["causal"]))]
    taken = [(name, do_bench(run, rep=120, return_mode="median") * 1e3) for name, run in [*timed, *reversed(timed)]]
    say("forward + backward, us:", [f"{name} {took:.1f}" for name, took in taken])
    expected = reference(q, k, v, grad, options["causal"]) if length <= 4096 else []
    aside: list[float] = []
    plain = kernels.add_aside
    kernels.add_aside = lambda *given: (aside.append(float(given[4].float().mean())), plain(*given))
    for rule, run in rules.items():
        first = run()
        errors = [float((got.double() - right).norm() / right.norm()) for got, right in zip(first, expected, strict=False)]
        again = [run() for _ in range(replays)]
        differing = [sum(not torch.equal(a, b[place]) for b in again) for place, a in enumerate(first)]
        shown = [f"{error:.3e}" for error in errors]
        say(f"{rule:8} error {shown}, differ of {replays}: {differing}, aside {aside[:1]}")
    kernels.add_aside = plain


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replays", type=int, default=20)
    parser.add_argument("--shape", nargs=6, metavar=("BATCH", "HEADS", "KV_HEADS", "LENGTH", "DIM", "MASK"), action="append")
    given = parser.parse_args()
    asked = {"dim": 128, "heads": 1, "kv_heads": 1, "q_len": 1, "kv_len": 1, "causal": True, "window": None, "rule": "exact"}
    if reason := probe.unsupported("cuda", **asked):
        sys.stderr.write(reason + "\n")
        return 1
    for *numbers, mask in given.shape or SHAPES:
        measure(*map(int, numbers), mask, given.replays)
    return 0


if __name__ == "__main__":
    sys.exit(main())
