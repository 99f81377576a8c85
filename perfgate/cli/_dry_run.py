"""What ``perfgate run --dry-run`` says."""

from __future__ import annotations

import statistics
from contextlib import suppress
from pathlib import Path

from perfgate.errors import PerfgateError
from perfgate.session import Prepared
from perfgate.store import RunDirectory


def describe(prepared: Prepared, runs: Path = Path("runs")) -> str:
    """The children that would run and the variants in them; the time where earlier runs in ``runs`` tell it."""
    plan, blocks = prepared.plan, prepared.looks.at[0]
    bits = plan.bits()
    timed = [spec for number in range(blocks) for spec in plan.block(number)]
    confirmation = [spec for number in range(prepared.unprofiled_blocks()) for spec in plan.block(number, "confirm")]
    confirmation = confirmation or plan.confirmation()
    lines = [f"device {plan.device}, profiler {prepared.profiler.name}, mode {plan.config.mode}"]
    if plan.config.shard:
        mine = len({one.range for one in plan.variants})
        lines.append(f"shard {plan.config.shard}: {mine} of {len(plan.planned)} ranges")
    for mode in plan.modes:
        lines += [f"  {mode}: {one.name} ({one.role})" for one in plan.of_mode(mode)]
    lines += [f"  exempt: {one.op}: {one.reason}" for one in plan.exempt]
    children = len(bits) + len(timed) + len(confirmation)
    more = f", up to {prepared.looks.at[-1]} blocks while a range is undecided" if prepared.looks.at[-1] > blocks else ""
    lines.append(
        f"{children} children: {len(bits)} for bits, memory and accuracy, {len(timed)} timed ({blocks} blocks{more}), "
        f"{len(confirmation)} unprofiled"
    )
    seconds = _seconds_per_child(runs, plan.device)
    if seconds is None:
        lines.append("how long: unknown, no earlier run on this device lies in runs/")
    else:
        lines.append(f"about {seconds * children / 60:.1f} min: earlier runs' children took {seconds:.1f} s (median)")
    return "\n".join(lines)


def _seconds_per_child(runs: Path, device: str) -> float | None:
    taken = []
    for file in sorted(runs.glob("*/run.json"))[-5:]:
        with suppress(PerfgateError):  # a damaged or older run tells nothing
            captures = RunDirectory(file.parent).captures()
            taken += [one.wall_seconds for one in captures if one.complete and one.spec.device == device]
    return statistics.median(taken) if taken else None
