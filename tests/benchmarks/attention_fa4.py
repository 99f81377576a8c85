"""Measures flash-attn-4's backward as shipped, ordered and with exact sums, on Hopper, and how far each is from float64.

    python tests/benchmarks/attention_fa4.py [--replays 20] [--shape 2 16 16 4096 128 causal] [--after FILE]

Needs what `pip install 'perfgate[peers]'` brings. Forward + backward of each shape, kernel by kernel under the profiler:
medians and their sum, which is how long the GPU was busy. cuDNN's through SDPA beside. The contenders run in turn (ABCD DCBA),
so a card that slows down slows all of them. Of the first shape also do_bench medians, relative L2 error of dq, dk, dv, replays
whose bits differ from the first. Shapes are compiled side by side, each in its own process, and measured one after another.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from multiprocessing.context import SpawnContext
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from triton.testing import do_bench

from perfgate import discover

SHAPES = [[2, 16, 16, 4096, 128, "causal"], [2, 16, 4, 4096, 128, "causal"], [2, 16, 16, 4096, 128, "full"]]
NAMES = {"fa4": "atomic", "fa4_exact": "exact", "fa4_ordered": "ordered"}
PARTS = {  # of a kernel's name: what it does
    "_guess": "guess", "_prepare": "before", "_finish": "before",
    "preprocess": "before", "postprocess": "after", "_convert": "after",
    "ExactBackward": "main", "flash_bwd_sm90": "main", "flash_fwd": "forward", "SurveyingForward": "forward",
}  # fmt: skip
probe = discover.module("attention.fa4.probe")
Run = Callable[[], Any]


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


def part_of(kernel: str) -> str:
    return next((part for piece, part in PARTS.items() if piece in kernel), kernel.removeprefix("void ")[:32])


def kernel_medians(runs: dict[str, Run], rounds: int = 5, calls: int = 8) -> dict[str, dict[str, float]]:
    """Of each contender: us of each part of a call, the sum of its launches' medians."""
    for run in [*runs.values()] * 10:
        run()
    times: dict[str, dict[tuple[str, int], list[float]]] = {name: defaultdict(list) for name in runs}
    for name in [*runs, *reversed(runs)] * rounds:
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            for _ in range(calls):
                runs[name]()
            torch.cuda.synchronize()
        launches: dict[str, list[Any]] = defaultdict(list)
        for event in profiled.events():
            if "CUDA" in str(event.device_type):
                launches[event.name].append(event)
        for kernel, events in launches.items():
            each = max(len(events) // calls, 1)  # launches of this kernel in one call
            for place, event in enumerate(sorted(events, key=lambda event: event.time_range.start)):
                times[name][kernel, place % each].append(event.device_time)
    found: dict[str, dict[str, float]] = {name: defaultdict(float) for name in runs}
    for name, kernels in times.items():
        for (kernel, _), took in kernels.items():
            found[name][part_of(kernel)] += statistics.median(took)
    return found


def cudnn(q: Any, k: Any, v: Any, grad: Any, causal: bool) -> Run:
    leaves = q, k, v = [tensor.detach().requires_grad_() for tensor in (q, k, v)]

    def run() -> Any:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])
        return torch.autograd.grad(out, leaves, grad)

    return run


def contenders(tensors: list[Any], causal: bool, names: list[str]) -> dict[str, Run]:
    """Forward + backward of each, compiled."""
    hooks = discover.module("attention.fa4.hooks")
    q, k, v, grad = tensors
    options = {"causal": causal, "scale": q.shape[3] ** -0.5}

    def both(rule: str) -> Run:
        return lambda: hooks.backward(q, k, v, *hooks.forward(q, k, v, **options), grad, rule=rule, **options)

    def surveyed() -> Any:
        out, lse, extents = hooks.surveyed_forward(q, k, v, **options)
        return hooks.backward(q, k, v, out, lse, grad, extents=extents, **options)

    runs = {name: surveyed if NAMES[name] == "exact" else both(NAMES[name]) for name in names}
    runs["cudnn"] = cudnn(q, k, v, grad, causal)
    for run in runs.values():
        run()
    return runs


def wait_for_all(ready: Any, after: Path | None) -> None:
    """Until every shape is compiled (or one of them failed), and ``after`` is there."""
    with contextlib.suppress(BrokenBarrierError):
        ready.wait(timeout=120)
    while after and not after.exists():
        time.sleep(0.2)


def measure(shape: list[Any], first: bool, replays: int, after: Path | None, ready: Any, turn: Any) -> None:
    batch, heads, kv_heads, length, dim = map(int, shape[:5])
    causal = shape[5] == "causal"
    generator = torch.Generator(device="cuda").manual_seed(7)
    shapes = [(batch, count, length, dim) for count in (heads, kv_heads, kv_heads, heads)]
    tensors = [torch.randn(one, device="cuda", generator=generator).bfloat16() for one in shapes]
    try:
        runs = contenders(tensors, causal, list(NAMES) if first else list(NAMES)[:2])
    except BaseException:
        ready.abort()
        raise
    wait_for_all(ready, after)
    with turn:
        say(f"== B{batch} H{heads}/{kv_heads} S{length} D{dim} {shape[5]}: forward + backward, us")
        show_kernels(kernel_medians(runs))
        if first:
            wall: dict[str, list[float]] = {name: [] for name in runs}
            for name in [*runs, *reversed(runs)]:
                wall[name].append(round(do_bench(runs[name], warmup=10, rep=60, return_mode="median") * 1e3, 1))
            say("do_bench", wall)
            correctness(tensors, causal, {name: run for name, run in runs.items() if name != "cudnn"}, replays)


def show_kernels(medians: dict[str, dict[str, float]]) -> None:
    busy = {name: sum(parts.values()) for name, parts in medians.items()}
    for name, parts in medians.items():
        shown = " ".join(f"{part} {took:.1f}" for part, took in sorted(parts.items(), key=lambda one: -one[1]))
        ratios = f"{busy[name] / busy['fa4']:.4f} of fa4  {busy[name] / busy['cudnn']:.4f} of cudnn"
        say(f"{name:12} {busy[name]:8.1f}  {ratios} | {shown}")


def correctness(tensors: list[Any], causal: bool, runs: dict[str, Run], replays: int) -> None:
    q, k, v, grad = tensors
    expected = reference(q, k, v, grad, causal)
    for name, run in runs.items():
        first = run()
        errors = [float((got.double() - right).norm() / right.norm()) for got, right in zip(first, expected, strict=True)]
        again = [run() for _ in range(replays)]
        differing = [sum(not torch.equal(a, b[place]) for b in again) for place, a in enumerate(first)]
        shown = " ".join(f"{error:.3e}" for error in errors)
        say(f"{name:12} error of dq, dk, dv {shown}; replays that differ of {replays}: {differing}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replays", type=int, default=20)
    parser.add_argument("--shape", nargs=6, metavar=("BATCH", "HEADS", "KV_HEADS", "LENGTH", "DIM", "MASK"), action="append")
    parser.add_argument("--after", type=Path, metavar="FILE", help="compile at once, measure when FILE is there")
    given = parser.parse_args()
    asked = {"dim": 128, "heads": 1, "kv_heads": 1, "q_len": 1, "kv_len": 1, "causal": True, "window": None, "rule": "exact"}
    if reason := probe.unsupported("cuda", **asked):
        sys.stderr.write(reason + "\n")
        return 1
    shapes = given.shape or SHAPES
    context: SpawnContext = multiprocessing.get_context("spawn")
    ready, turn = context.Barrier(len(shapes)), context.Lock()
    children = [
        context.Process(target=measure, args=(shape, place == 0, given.replays, given.after, ready, turn))
        for place, shape in enumerate(shapes)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
    return max(abs(child.exitcode or 0) for child in children)


if __name__ == "__main__":
    sys.exit(main())
