"""A quick look at workloads on this card: GPU time, error to float64 and bits of every implementation.

    python -m tests.benchmarks.measure_workloads moe/combine:typical,dsv3 segment/index_add:typical --replays 20 --json out.json

Not the gate: one process, no blocks, no interval. ``perfgate run`` judges.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from perfgate import discover
from perfgate.determinism.bits import first_difference
from perfgate.determinism.replay import clone_inputs, contention, poisoned_allocations
from perfgate.model import MODE_OF_ROLE, Variant
from perfgate.registry import Implementation, Op
from perfgate.worker.bits import accuracy
from perfgate.worker.job import Job
from tests.benchmarks.gpu_busy import busy_us

COPY_BYTES_PER_US = 4.2e6  # of an H200, bytes read + written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+", metavar="OP:CASE[,CASE]")
    parser.add_argument("--replays", type=int, default=3, help="of each implementation, from the second on under contention")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    registry = discover.load()
    rows = []
    for target in options.targets:
        name, _, cases = target.partition(":")
        op = registry.op(name)
        for case in cases.split(","):
            for phase in op.phases:
                rows += measure_case(op, case, phase, options.replays)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


def measure_case(op: Op, case: str, phase: str, replays: int) -> list[dict[str, Any]]:
    """One row per implementation, printed as they come; ratios are to the default's GPU time."""
    rows: list[dict[str, Any]] = []
    for implementation in sorted(op.implementations, key=lambda one: one.role != "default"):
        row: dict[str, Any] = {"range": f"{op.name}:{case}:{phase}", "implementation": implementation.name}
        row |= {"role": implementation.role, "torch": torch.__version__, "card": torch.cuda.get_device_name()}
        try:
            row |= measure(op, case, phase, implementation, replays)
        except Exception as error:
            row["failed"] = f"{type(error).__name__}: {str(error).splitlines()[0][:150] if str(error) else ''}"
        torch.cuda.empty_cache()
        rows.append(row)
        report(row, rows[0].get("us"))
    return rows


def measure(op: Op, case: str, phase: str, implementation: Implementation, replays: int) -> dict[str, Any]:
    deterministic = MODE_OF_ROLE[implementation.role] == "deterministic"
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    variant = Variant(op.name, case, phase, implementation.name, implementation.role)
    job = Job(variant, op, op.case(case), implementation, "cuda:0", seed=0)
    if job.unsupported():
        return {"unsupported": job.unsupported()}
    x = job.make_inputs()
    call = job.ready(clone_inputs(x))
    reference = tuple(one.detach() for one in call())
    row: dict[str, Any] = {"error": accuracy(job, x, reference)["error"]}
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    row["peak_bytes"] = torch.cuda.max_memory_allocated() - before
    row["declared_bytes"] = implementation.workspace(job.case) if implementation.workspace else None
    row["differing"] = 0
    with contention("cuda:0"):
        for _ in range(replays - 1):
            with poisoned_allocations("cuda:0"):
                row["differing"] += bool(first_difference(reference, tuple(one.detach() for one in call())))
    row["replays"] = replays - 1
    torch.cuda.synchronize()
    row["us"] = busy_us(call)
    row["of_copy"] = op.bytes_moved(job.case, phase) / row["us"] / COPY_BYTES_PER_US if op.bytes_moved else None
    return row


def report(row: dict[str, Any], default_us: float | None) -> None:
    figures = row.get("failed") or row.get("unsupported")
    if not figures:
        ratio = f"{row['us'] / default_us:.3f}" if default_us else "-"
        error = "-" if row["error"] is None else f"{row['error']:.1e}"
        figures = (
            f"{row['us']:10.1f} us  x{ratio}  {row['of_copy'] or 0:4.0%} of copy  error {error}  "
            f"differ {row['differing']}/{row['replays']}  peak {row['peak_bytes'] / 2**20:.0f} MiB"
        )
    sys.stdout.write(f"{row['range']:36} {row['implementation']:34} {figures}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
