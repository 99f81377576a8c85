"""Every implementation of dsa/backward over its cases: time, memory, error of dq and of dkv, replays that differ, digests.

    python -m tests.benchmarks.table_dsa CASE... [--implementation NAME]... [--replays 10] [--seconds 120] [--json table.jsonl]
    python -m tests.benchmarks.table_dsa CASE... --warm          # each once: kernels compiled and kept, digests
    python -m tests.benchmarks.table_dsa --join table.jsonl...   # one table in markdown; digests of several processes compared

Not the gate: one process a card, CUDA events, no interval. ``CASE=300`` asks for that many replays of a case. Times are medians
of launches that take turns, L2 warm. What the seconds no longer suffice for is told as not measured. Lines are written as they
come; digests cover dq and dkv of the first call, so that two files of two processes show whether bits survive a process.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from perfgate import discover
from perfgate.determinism.bits import digest
from perfgate.determinism.replay import contention, poisoned_allocations
from perfgate.model import MODE_OF_ROLE, Variant
from perfgate.registry import Case, Implementation, Op
from perfgate.worker.bits import relative_l2
from perfgate.worker.job import Job

SEED = 0
ROUNDS = 7
AHEAD = 4_000_000  # cycles that the card is kept waiting, so that all launches of a call are queued when its first one starts


def main() -> None:
    """Measures, or joins what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE[=REPLAYS]")
    parser.add_argument("--implementation", action="append")
    parser.add_argument("--replays", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--join", nargs="+", type=Path)
    options = parser.parse_args()
    if options.join:
        sys.stdout.write(joined([json.loads(line) for path in options.join for line in path.read_text().splitlines()]))
        return
    op = discover.load().op("dsa/backward")
    until = time.monotonic() + options.seconds
    for said in options.cases or [case.name for case in op.case_list]:
        name, _, replays = said.partition("=")
        chosen = [one for one in op.implementations if not options.implementation or one.name in options.implementation]
        rows = case_rows(op, op.case(name), chosen, 0 if options.warm else int(replays or options.replays), until)
        for row in rows:
            line = json.dumps(row)
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
            if options.json:
                with options.json.open("a") as file:
                    file.write(line + "\n")


def case_rows(op: Op, case: Case, chosen: list[Implementation], replays: int, until: float) -> list[dict[str, Any]]:
    """One row per implementation; with 0 replays each runs once and nothing is measured."""
    rows: list[dict[str, Any]] = []
    calls: dict[str, Callable[[], Any]] = {}
    x, exact = None, None
    for one in chosen:
        row: dict[str, Any] = {"case": case.name, "implementation": one.name, "role": one.role}
        row |= {"torch": torch.__version__, "card": torch.cuda.get_device_name()}
        rows.append(row)
        job = Job(Variant(op.name, case.name, "fwd", one.name, one.role), op, case, one, "cuda:0", SEED)
        if job.unsupported():
            row["unsupported"] = job.unsupported()
        elif time.monotonic() > until:
            row["unsupported"] = "not measured: no time was left"
        else:
            try:
                if x is None:
                    x = job.make_inputs()
                    exact = op.compute_reference(in_float64(x)) if replays and op.compute_reference else None
                calls[one.name] = mode_of(one, job.ready(x))
                row |= shown(one, case, calls[one.name], exact, replays, until)
            except Exception as error:
                calls.pop(one.name, None)
                row["unsupported"] = f"failed: {type(error).__name__}: {str(error)[:200]}"
        torch.cuda.empty_cache()
    if replays:
        times = in_turns(calls, until)
        for row in rows:
            if times.get(row["implementation"]):
                row["ms"] = median(times[row["implementation"]])
                row["launches"] = len(times[row["implementation"]])
    return rows


def mode_of(one: Implementation, call: Callable[[], Any]) -> Callable[[], Any]:
    """``call`` with torch's deterministic switch as the gate has it for that role."""

    def run() -> Any:
        torch.use_deterministic_algorithms(MODE_OF_ROLE[one.role] == "deterministic")
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        try:
            return call()
        finally:
            torch.use_deterministic_algorithms(False)

    return run


def shown(one: Implementation, case: Case, call: Callable[[], Any], exact: Any, replays: int, until: float) -> dict[str, Any]:
    """Digest, errors, memory and replays of one implementation."""
    began = time.monotonic()
    first = [tensor.detach() for tensor in call()]
    torch.cuda.synchronize()
    if not replays:
        return {"first_call_s": round(time.monotonic() - began, 2), "digest": digest(first)[:16]}
    row: dict[str, Any] = {"digest": digest(first)[:16]}
    if exact is not None:
        row |= {f"error_{name}": relative_l2(*pair) for name, *pair in zip(("dq", "dkv"), first, exact, strict=True)}
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = call()
    torch.cuda.synchronize()
    outputs = sum(tensor.nbytes for tensor in found)
    row["workspace_measured"] = torch.cuda.max_memory_allocated() - before - outputs
    row["workspace_declared"] = one.workspace(case) if one.workspace else None
    del found
    row |= {"replays": 0, "differ": 0, "differ_dq": 0, "differ_dkv": 0}
    with contention("cuda:0"):
        while row["replays"] < replays and time.monotonic() < until:
            with poisoned_allocations("cuda:0"):
                again = call()
            same = [torch.equal(a.view(torch.int16), b.view(torch.int16)) for a, b in zip(first, again, strict=True)]
            row["replays"] += 1
            row["differ"] += not all(same)
            row["differ_dq"] += not same[0]
            row["differ_dkv"] += not same[1]
    return row


def in_float64(x: dict[str, Any]) -> dict[str, Any]:
    """``x`` with floats in float64."""
    return {name: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for name, v in x.items()}


def in_turns(calls: dict[str, Callable[[], Any]], until: float) -> dict[str, list[float]]:
    """Milliseconds of each launch, in shuffled turns."""
    order, times = random.Random(SEED), defaultdict(list)
    for _ in range(ROUNDS):
        names = list(calls)
        order.shuffle(names)
        for name in names:
            if time.monotonic() < until:
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.cuda._sleep(AHEAD)
                start.record()
                calls[name]()
                end.record()
                end.synchronize()
                times[name].append(start.elapsed_time(end))
    return times


def joined(rows: list[dict[str, Any]]) -> str:
    """One markdown table; lines of one case and implementation from several files are one row, their digests compared."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["case"], row["implementation"]].append(row)
    stock = {
        case: row["ms"] for (case, _), found in groups.items() for row in found if row["role"] == "default" and "ms" in row
    }
    lines = [
        "| case | implementation | ms | ratio | MiB declared / measured | error dq / dkv | replays differ | processes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (case, name), found in groups.items():
        one = max(found, key=lambda row: row.get("replays", -1))
        if "replays" not in one:
            lines.append(f"| {case} | {name} | {one.get('unsupported', 'not measured')} | | | | | |")
            continue
        base, ms = stock.get(case), next((row["ms"] for row in found if "ms" in row), None)
        digests = [row["digest"] for row in found if "digest" in row]
        equal = "one" if len(digests) == 1 else f"{len(digests)}, {'equal' if len(set(digests)) == 1 else 'DIFFER'}"
        declared = "–" if one["workspace_declared"] is None else f"{one['workspace_declared'] / 2**20:.1f}"
        errors = f"{one['error_dq']:.2e} / {one['error_dkv']:.2e}" if "error_dq" in one else "not measured"
        took, ratio = f"{ms:.3f}" if ms else "not measured", f"{ms / base:.3f}" if ms and base else "–"
        memory = f"{declared} / {one['workspace_measured'] / 2**20:.1f}"
        lines.append(
            f"| {case} | {name} | {took} | {ratio} | {memory} | {errors} | {one['differ']} of {one['replays']} | {equal} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
