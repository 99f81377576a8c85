"""Chooses the launch configurations in ``workloads/blocks/configs.json`` for the card it runs on.

    python -m tests.benchmarks.tune_workloads                 # sweep, print, write the table's section of this architecture
    python -m tests.benchmarks.tune_workloads --compile 3/12  # only compile a twelfth of the candidates: run all 12 at once

Tuning happens here, once, by hand; a run of perfgate reads the table and never times anything to choose. A new table may mean
new bits (its digest is part of a run's evidence), so it is a change that is reviewed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from perfgate import Case, discover
from perfgate.model import Variant
from perfgate.worker.job import Job
from tests.benchmarks.gpu_busy import busy_us

REGISTRY = discover.load()
CONFIGS = discover.module("blocks.configs")
TABLE_CONFIG: Callable[..., dict[str, int]] = CONFIGS.config


class Sweep(NamedTuple):
    """One row of the table: a kernel and a bucket, on the case that stands for the bucket."""

    kernel: str  # in the table
    function: str  # as the profiler names it
    limit: int | None  # the bucket's
    op: str
    phase: str
    implementation: str
    case: dict[str, Any]
    options: Mapping[str, tuple[int, ...]]


COLUMNS = {"BLOCK": (512, 1024, 2048), "num_warps": (2, 4, 8)}
MOE = {"tokens": 16384, "hidden": 2048, "topk": 8, "experts": 256}
DSV3 = {"tokens": 4096, "hidden": 7168, "topk": 8, "experts": 256}
ROUTER = {"tokens": 8192, "experts": 256, "topk": 8}
NARROW_ROUTER = {"tokens": 8192, "experts": 64, "topk": 8}
ADD = {"rows": 65536, "width": 1024, "segments": 4096}
EMBEDDING = {"vocab": 128256, "width": 4096, "count": 16384}
FOLD = {"BLOCK": (128, 256, 512, 1024), "num_warps": (1, 2, 4, 8)}
CLEAR = {"ROWS": (1, 2, 4, 8, 16), "BLOCK": (512, 1024, 2048, 4096), "num_warps": (4, 8)}
ROWS = {"ROWS": (1, 2, 4, 8, 16), "num_warps": (1, 2, 4)}

SWEEPS = [
    Sweep("moe.combine_forward", "_gather_forward", 4096, "moe/combine", "fwd", "triton.gather", MOE, COLUMNS),
    Sweep("moe.combine_forward", "_gather_forward", None, "moe/combine", "fwd", "triton.gather", DSV3, COLUMNS),
    Sweep(
        "moe.combine_backward", "_gather_backward", 4096, "moe/combine", "bwd", "triton.gather", MOE,
        {"BLOCK": (256, 512, 1024), "num_warps": (4, 8)},
    ),
    Sweep(
        "moe.combine_backward", "_gather_backward", None, "moe/combine", "bwd", "triton.gather", DSV3,
        {"BLOCK": (256, 512, 1024), "num_warps": (4, 8)},
    ),
    Sweep("moe.combine_atomic", "_scatter_atomic", None, "moe/permute", "bwd", "triton.atomic_backward", MOE, COLUMNS),
    Sweep("moe.copy_rows", "_copy_rows", None, "moe/permute", "fwd", "triton.counting_sort", MOE, COLUMNS),
    Sweep("moe.topk", "_topk", 64, "moe/router_topk", "fwd", "triton.argmax_rounds", NARROW_ROUTER, ROWS),
    Sweep("moe.topk", "_topk", None, "moe/router_topk", "fwd", "triton.argmax_rounds", ROUTER, ROWS),
    Sweep("moe.spread", "_spread", 64, "moe/routing_map", "fwd", "triton.comparison", NARROW_ROUTER, ROWS),
    Sweep("moe.spread", "_spread", None, "moe/routing_map", "fwd", "triton.comparison", ROUTER, ROWS),
    Sweep(
        "moe.pick", "_pick", None, "moe/routing_map", "bwd", "triton.comparison", ROUTER,
        {"BLOCK": (128, 256, 512), "num_warps": (1, 2, 4)},
    ),
    Sweep(
        "moe.count", "_count", None, "moe/tokens_per_expert", "fwd", "triton.histogram", {**MOE, "hidden": 1},
        {"BLOCK": (512, 1024, 2048, 4096), "num_warps": (4, 8)},
    ),
    Sweep("segment.fold", "_fold", 2048, "segment/index_add", "fwd", "triton.sorted_fold", ADD, FOLD),
    Sweep("segment.fold", "_fold", None, "embedding/backward", "bwd", "triton.sorted_fold", EMBEDDING, FOLD),
    Sweep(
        "sort.rank", "_rank", None, "segment/index_add", "fwd", "triton.sorted_fold", ADD,
        {"PART": (16, 32, 64), "num_warps": (4, 8, 16)},
    ),
    Sweep("sort.place", "_place", None, "segment/index_add", "fwd", "triton.sorted_fold", ADD, {"num_warps": (1, 2, 4, 8)}),
    Sweep("segment.clear", "_clear_absent", 2048, "segment/index_add", "fwd", "triton.sorted_fold", ADD, CLEAR),
    Sweep("segment.clear", "_clear_absent", None, "embedding/backward", "bwd", "triton.sorted_fold", EMBEDDING, CLEAR),
    Sweep("segment.atomic", "_add_atomically", None, "segment/index_add", "fwd", "triton.atomic", ADD, COLUMNS),
    Sweep(
        "exact.add", "_add_certified", None, "segment/index_add", "fwd", "triton.exact_certified", ADD,
        {"BLOCK": (512, 1024), "num_warps": (2, 4, 8)},
    ),
]  # fmt: skip


def candidates(sweep: Sweep) -> Iterator[dict[str, int]]:
    """Every combination; none with more elements than a kernel of that shape should hold."""
    for values in product(*sweep.options.values()):
        options = dict(zip(sweep.options, values, strict=True))
        if 64 * options["num_warps"] <= options.get("BLOCK", 1024) * options.get("ROWS", 1) <= 2**15:
            yield options


def ready(sweep: Sweep) -> Callable[[], Any]:
    """The sweep's call over its case's inputs."""
    op = REGISTRY.op(sweep.op)
    implementation = next(one for one in op.implementations if one.name == sweep.implementation)
    variant = Variant(op.name, "tuning", sweep.phase, implementation.name, implementation.role)
    job = Job(variant, op, Case("tuning", sweep.case), implementation, "cuda:0", seed=0)
    return job.ready(job.make_inputs())


def force(kernel: str, options: dict[str, int]) -> None:
    """Makes the workloads use ``options`` for ``kernel`` and the table for the others."""

    def config(name: str, size: int, architecture: str) -> dict[str, int]:
        return dict(options) if name == kernel else TABLE_CONFIG(name, size, architecture)

    vars(CONFIGS)["config"] = config


def compile_part(sweeps: list[Sweep], part: int, parts: int) -> None:
    """Compiles the candidates whose number is ``part`` modulo ``parts`` by calling each once."""
    number = 0
    for sweep in sweeps:
        call = None
        for options in candidates(sweep):
            number += 1
            if number % parts == part:
                force(sweep.kernel, options)
                call = call or ready(sweep)
                call()
    torch.cuda.synchronize()


def sweep_all(sweeps: list[Sweep]) -> dict[str, list[tuple[int | None, dict[str, int]]]]:
    """The fastest candidate of each row, all of them printed."""
    chosen: dict[str, list[tuple[int | None, dict[str, int]]]] = {}
    for sweep in sweeps:
        timed = []
        force(sweep.kernel, next(candidates(sweep)))
        call = ready(sweep)
        for options in candidates(sweep):
            force(sweep.kernel, options)
            timed.append((busy_us(call, 5, sweep.function), options))
        timed.sort(key=lambda pair: pair[0])
        chosen.setdefault(sweep.kernel, []).append((sweep.limit, timed[0][1]))
        best = "  ".join(f"{us:.1f} {tuple(options.values())}" for us, options in timed[:4])
        sys.stdout.write(f"{sweep.kernel} <= {sweep.limit} {tuple(sweep.options)}: {best}  worst {timed[-1][0]:.1f}\n")
        sys.stdout.flush()
        del call
        torch.cuda.empty_cache()
    return chosen


def render(table: dict[str, Any]) -> str:
    """The table as JSON, one kernel a line."""
    sections = []
    for architecture, kernels in table.items():
        lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(kernels[name])}" for name in sorted(kernels))
        sections.append(f"  {json.dumps(architecture)}: {{\n{lines}\n  }}")
    return "{\n" + ",\n".join(sections) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", metavar="PART/PARTS", help="only compile this part of the candidates")
    parser.add_argument("--table", type=Path, default=CONFIGS.TABLE, help="where to write the table")
    parser.add_argument("--kernel", action="append", help="only this kernel's rows (may be repeated); others stay as they are")
    options = parser.parse_args()
    sweeps = [sweep for sweep in SWEEPS if not options.kernel or sweep.kernel in options.kernel]
    if options.compile:
        part, parts = options.compile.split("/")
        compile_part(sweeps, int(part), int(parts))
        return
    table = json.loads(CONFIGS.TABLE.read_text())
    major, minor = torch.cuda.get_device_capability()
    table.setdefault(f"sm{major}{minor}", {}).update(sweep_all(sweeps))
    options.table.write_text(render(table))


if __name__ == "__main__":
    main()
