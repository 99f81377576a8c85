"""Races cuDNN's sparse-attention backward, its exact hook and the hook's variants, launch by launch in shuffled order.

    python -m tests.benchmarks.race_dsa_hooks [--case typical] [--rounds 20] [--whole] [--json race.json]
    python -m tests.benchmarks.race_dsa_hooks --compile NAME

Needs a Hopper card and ``perfgate[cudnn]``; a kernel takes 5 to 10 s to compile, once (``dsa/cudnn/store.py``). Launches take
turns, so that a clock that sinks while the card warms up hits all alike; ratios are medians of pairs of one round. Before the
race each form's sums are compared bit by bit with those of ``exact``, and with its own of a second launch, and the parts of
``exact`` around its main kernel are timed. ``--whole`` races whole implementations, all parts included, instead.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from perfgate import Case, discover

from . import dsa_hook_variants
from .dsa_hook_variants import VARIANTS, variant

forms, hook, kernels, launch, shape = (
    discover.module(f"dsa.cudnn.{name}") for name in ("forms", "hook", "kernels", "launch", "shape")
)


THRESHOLDS = {"all booked": -1.0, "few booked": 0.25, "none booked": float("inf")}  # of ``reach``


def classes() -> dict[str, Callable[[], Any]]:
    """Every kernel class by name."""
    return {
        "stock": lambda: hook.stock().FlashAttentionDSABackwardSm90,
        "exact": hook.exact,
        **{name: lambda options=options: variant(**options) for name, options in VARIANTS.items()},
    }


class Field:
    """One accumulator with its tables, on which all take their turns."""

    def __init__(self, x: dict[str, Any]) -> None:
        keys, dim = x["kv"].shape
        self.x, self.dq = x, torch.empty_like(x["q"])
        self.memory = torch.zeros((shape.sums_bytes(keys, dim) + shape.tables_bytes(keys)) // 4, device="cuda")
        self.into = kernels.tables(self.memory, keys, dim)
        kernels.choose_quanta(self.into, x["topk"], x["topk_length"], x["reach"], keys, x["q"].shape[1])
        rows = shape.rows(keys)
        self.threshold = self.memory[rows * dim + 5 * rows + 1 :][:1]
        self.stats = launch.before(x)
        self.places = torch.arange(1, rows * dim + 1, device="cuda")

    def launch_of(self, name: str) -> Callable[[], None]:
        """Launches the main kernel of the class ``name``, compiled now."""
        source = hashlib.sha256(Path(dsa_hook_variants.__file__).read_bytes()).hexdigest()[:16]
        form = ("exact",) if name == "exact" else (name, source)
        kernel, arguments = launch.compiled_scatter(form, classes()[name], self.x, self.stats, self.dq, self.memory)
        return lambda: kernel(*arguments)

    def bits(self, run: Callable[[], None]) -> tuple[int, int, int]:
        """A checksum of the sums of one launch on an empty accumulator, all units of certificates, and the largest."""
        self.into.sums.zero_()
        self.into.units.zero_()
        run()
        words = self.into.sums.view(torch.int32).long()
        return int((words * self.places).sum()), int(self.into.units.sum()), int(self.into.units.max())


def parts(field: Field) -> None:
    """Writes what each part around the main kernel takes on the card: ten launches that all wait for one that sleeps."""
    x, into, (keys, dim) = field.x, field.into, field.x["kv"].shape
    dkv = torch.empty_like(x["kv"])
    tensors = (x[name] for name in ("q", "kv", "topk", "topk_length", "out", "lse", "dout"))
    given = (*tensors, float(x["scale"]))
    into.failed.zero_()
    timed: dict[str, Callable[[], object]] = {
        "zeros": field.memory.zero_,
        "quanta": lambda: kernels.choose_quanta(into, x["topk"], x["topk_length"], x["reach"], keys, x["q"].shape[1]),
        "preprocess": lambda: launch.before(x),
        "zeros again": field.memory.zero_,
        "judgement": lambda: kernels.judge(into, dim),
        "second run with nothing to do": lambda: kernels.add_again(into, *given),
        "postprocess": lambda: launch.after(into.sums, dkv),
    }
    for name, part in timed.items():
        part()
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(20_000_000)
        start.record()
        for _ in range(10):
            part()
        end.record()
        torch.cuda.synchronize()
        sys.stdout.write(f"{name}: {start.elapsed_time(end) / 10 * 1e3:.1f} us\n")
    kernels.choose_quanta(into, x["topk"], x["topk_length"], x["reach"], keys, x["q"].shape[1])


def main_kernels(x: dict[str, Any], names: list[str]) -> dict[str, Callable[[], None]]:
    """The main kernel alone of stock, the hook and each variant, all on one accumulator; thresholds apart."""
    field = Field(x)
    parts(field)
    runs: dict[str, Callable[[], None]] = {}
    reach = float(x["reach"])
    reference = 0
    for name in names:
        run = field.launch_of(name)
        thresholds = THRESHOLDS if VARIANTS.get(name, {}).get("above") else {"": -1.0}
        for said, factor in thresholds.items():
            field.threshold.fill_(factor * reach)
            found = [field.bits(run) for _ in range(2)]
            reference = found[0][0] if name == "exact" else reference
            same = "as exact" if found[0][0] == reference else "other sums"
            again = "repeats" if found[0] == found[1] else "DIFFERS"
            sys.stdout.write(f"{name + ' ' + said:44} {again}, {same}, units {found[0][1]}, most {found[0][2]}\n")
            sys.stdout.flush()

            def timed(run: Callable[[], None] = run) -> None:
                run()

            timed.prepare = lambda value=factor * reach: field.threshold.fill_(value)  # type: ignore[attr-defined]
            runs[f"{name} {said}".strip()] = timed
    return runs


def whole(x: dict[str, Any], names: list[str]) -> dict[str, Callable[[], None]]:
    """The three implementations, or those named."""
    runs: dict[str, Callable[[], None]] = {
        "stock": lambda: forms.run_cudnn(x),
        "exact": lambda: forms.run_exact(x),
        "split_slice": lambda: forms.run_split_slice(x),
    }
    return {name: run for name, run in runs.items() if not names or name in names}


def race(runs: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each launch."""
    order, events = random.Random(0), []
    for run in runs.values():
        run()
    for _ in range(rounds):
        names = list(runs)
        order.shuffle(names)
        for name in names:
            getattr(runs[name], "prepare", lambda: None)()
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
    parser.add_argument("--json", type=Path)
    named = ["stock", "exact", *VARIANTS]
    parser.add_argument("--compile", choices=["wrapper", *named], help="only compile that")
    parser.add_argument("--only", nargs="+", choices=["split_slice", *named], help="race these; stock must be one")
    parser.add_argument("--list", action="store_true", help="names for --compile, a line each")
    options = parser.parse_args()
    if options.list:
        sys.stdout.write("".join(f"{name}\n" for name in classes()))
        return
    op = discover.load().op("dsa/backward")
    case = op.case(options.case)
    reason = forms.supports_exact(case, "cuda:0") if torch.cuda.is_available() else "needs an NVIDIA GPU"
    if reason:
        raise SystemExit(f"unsupported: {reason}")
    if options.compile:
        few = {"queries": shape.BLOCK, "keys": max(2048, case.topk)}
        case = Case(case.name, {**case.parameters, **few})
    x = op.make_inputs(case, "cuda", torch.Generator(device="cuda").manual_seed(1))
    if options.compile == "wrapper":
        forms.run_cudnn(x)
        return
    if options.compile:
        Field(x).launch_of(options.compile)()
        torch.cuda.synchronize()
        return
    times = race(
        whole(x, options.only or []) if options.whole else main_kernels(x, options.only or list(classes())), options.rounds
    )
    sys.stdout.write(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.case}, {options.rounds} rounds\n")
    if options.json:
        options.json.write_text(json.dumps(times))
    for name, own in times.items():
        ratio = median(one / stock for one, stock in zip(own, times["stock"], strict=True))
        sys.stdout.write(f"{name:44} median {median(own):8.3f} ms  least {min(own):8.3f}  to stock {ratio:.4f}\n")


if __name__ == "__main__":
    main()
