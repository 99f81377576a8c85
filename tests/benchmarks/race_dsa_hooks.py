"""Races cuDNN's sparse-attention backward, its exact hook and the hook's variants, launch by launch in shuffled order.

    python -m tests.benchmarks.race_dsa_hooks [--case typical] [--rounds 20] [--whole]

Needs a Hopper card and ``perfgate[cudnn]``; a kernel takes 5 to 10 s to compile. Launches take turns, so that a clock that
sinks while the card warms up hits all alike; ratios are medians of pairs of one round. ``--whole`` races whole implementations,
quanta, judgement and fold included, instead of main kernels.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from perfgate import discover

from .dsa_hook_variants import VARIANTS, variant

forms, hook, kernels, launch, shape = (
    discover.module(f"dsa.cudnn.{name}") for name in ("forms", "hook", "kernels", "launch", "shape")
)


def main_kernels(x: dict[str, Any]) -> dict[str, Callable[[], None]]:
    """The main kernel alone of stock, the hook and each variant, all on one accumulator."""
    keys, dim = x["kv"].shape
    memory = torch.zeros((shape.sums_bytes(keys, dim) + shape.tables_bytes(keys)) // 4, device="cuda")
    into = kernels.tables(memory, keys, dim)
    kernels.choose_quanta(into, x["topk"], x["topk_length"], x["reach"], keys, x["q"].shape[1])
    stats, dq = launch.before(x), torch.empty_like(x["q"])
    classes: dict[str, Callable[[], Any]] = {
        "stock": lambda: hook.stock().FlashAttentionDSABackwardSm90,
        "exact": hook.exact,
        **{name: lambda options=options: variant(**options) for name, options in VARIANTS.items()},
    }
    return {
        name: lambda name=name, one=one: launch.scatter((name,), one, x, stats, dq, memory) for name, one in classes.items()
    }


def whole(x: dict[str, Any]) -> dict[str, Callable[[], None]]:
    """The three implementations."""
    return {
        "stock": lambda: forms.run_cudnn(x),
        "exact": lambda: forms.run_exact(x),
        "split_slice": lambda: forms.run_split_slice(x),
    }


def race(runs: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each launch."""
    order, events = random.Random(0), []
    for run in runs.values():
        run()
    for _ in range(rounds):
        names = list(runs)
        order.shuffle(names)
        for name in names:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            runs[name]()
            end.record()
            events.append((name, start, end))
    torch.cuda.synchronize()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for name, start, end in events:
        times[name].append(start.elapsed_time(end))
    return times


def main() -> None:
    """Writes a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="typical")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--whole", action="store_true")
    options = parser.parse_args()
    op = discover.load().op("dsa/backward")
    case = op.case(options.case)
    reason = forms.supports_exact(case, "cuda:0") if torch.cuda.is_available() else "needs an NVIDIA GPU"
    if reason:
        raise SystemExit(f"unsupported: {reason}")
    x = op.make_inputs(case, "cuda", torch.Generator(device="cuda").manual_seed(1))
    times = race(whole(x) if options.whole else main_kernels(x), options.rounds)
    sys.stdout.write(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.case}, {options.rounds} rounds\n")
    for name, own in times.items():
        ratio = median(one / stock for one, stock in zip(own, times["stock"], strict=True))
        sys.stdout.write(f"{name:32} median {median(own):8.3f} ms  least {min(own):8.3f}  to stock {ratio:.4f}\n")


if __name__ == "__main__":
    main()
