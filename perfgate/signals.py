"""What is suspicious in the figures themselves: modes, drift, changing kernels, impossible bandwidth, broken formulas. Pure.

Every function returns :class:`~perfgate.model.Reason` values whose text holds the figures. How they bear on a verdict is for
``judge``: kernels that change within an arm make it inconclusive; modes and drift widen the interval by what they may hide.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import special

from perfgate.estimate import Estimate
from perfgate.model import ArmFigures, Memory, Metric, ProcessSample, Reason
from perfgate.units import format_bytes, format_ns, format_percent

MIN_INSTANCES = 3  # per process
MIN_BLOCKS = 3  # of an arm held against itself
MIN_PROCESSES = 2  # per arm: with one, nothing is known of the noise between processes
DRIFT_LEAST = 0.01  # first against last third of a process's instances
DRIFT_ERRORS = 3.0
FORMULA_TOLERANCE = 0.10
CONTRADICTION_LEAST = 0.02
ROOFLINE_TOLERANCE = 1.02
MIXED = "mixed"


def noticed(default: ArmFigures, other: ArmFigures, metric: Metric, evidence: Estimate | None) -> tuple[Reason, ...]:
    """Everything about two arms that the ratio alone doesn't show: TOO_FEW_SAMPLES, MULTIMODAL, DRIFT."""
    found = [too_few(figures, metric) for figures in (default, other)]
    if metric in ("busy", "span"):
        found += [changing_kernels(figures) for figures in (default, other)]
    found += [drift(figures, metric) for figures in (default, other)]
    found.append(parted(evidence))
    return tuple(reason for reason in found if reason is not None)


def too_few(figures: ArmFigures, metric: Metric) -> Reason | None:
    """TOO_FEW_SAMPLES where an arm has fewer than two processes, or one of them fewer than three instances."""
    counts = [len(values) for values in _values(figures.samples, metric)]
    if not counts:  # nothing measured at all is another matter
        return None
    if len(counts) < MIN_PROCESSES:
        text = f"{figures.implementation}: 1 process measured {metric}, {MIN_PROCESSES} are needed to know the noise"
        return Reason("TOO_FEW_SAMPLES", text, "measure more blocks (--blocks 3) or give more captures per arm")
    if min(counts) < MIN_INSTANCES:
        text = f"{figures.implementation}: a process measured {min(counts)} instances, {MIN_INSTANCES} are needed"
        return Reason("TOO_FEW_SAMPLES", text, "raise --iterations")
    return None


def changing_kernels(figures: ArmFigures) -> Reason | None:
    """MULTIMODAL where names, grids, blocks or the number of launches differ between an arm's processes or instances."""
    seen = {one.kernels for one in figures.samples if one.kernels}
    if MIXED in seen:
        what = "launched different kernels in instances of one process"
    elif len(seen) > 1:
        what = f"launched {len(seen)} different lists of kernels in {len(figures.samples)} processes"
    else:
        return None
    text = f"{figures.implementation} {what}: its time, and maybe its bits, depend on which list a process picks"
    return Reason("MULTIMODAL", text, "pin its configuration (autotuning, heuristics), then measure again")


def parted(evidence: Estimate | None) -> Reason | None:
    """MULTIMODAL where mean and Hodges-Lehmann estimate part: some processes run in another mode than the rest."""
    if evidence is None or not evidence.parted:
        return None
    mean, robust = (format_percent(float(np.expm1(value))) for value in (evidence.log_ratio, evidence.hodges_lehmann))
    text = f"processes fall into more than one mode: {mean} by their mean, {robust} by their middle"
    return Reason("MULTIMODAL", text, "look for a second configuration or another process on the card, then measure again")


def drift(figures: ArmFigures, metric: Metric) -> Reason | None:
    """DRIFT where the last third of the instances differs from the first by 1 % or more, alike in all processes."""
    steps = np.asarray(_thirds(figures.samples, metric))
    if steps.size < MIN_PROCESSES:
        return None
    mean, error = float(steps.mean()), float(steps.std(ddof=1) / np.sqrt(steps.size))
    if abs(mean) <= max(DRIFT_LEAST, DRIFT_ERRORS * error):
        return None
    text = f"{figures.implementation}: the last third of its instances is {format_percent(np.expm1(mean))} against the first"
    return Reason("DRIFT", text, "raise --warmup until the first third is as fast as the last")


def drift_shift(default: Sequence[ProcessSample], other: Sequence[ProcessSample], metric: Metric) -> float:
    """How far the log ratio moves when only last thirds count; 0 where neither arm drifts."""
    arms = [ArmFigures("", samples=tuple(samples)) for samples in (default, other)]
    if all(drift(figures, metric) is None for figures in arms):
        return 0.0
    moved = [float(np.mean(steps)) if (steps := _last_against_all(one.samples, metric)) else 0.0 for one in arms]
    return moved[1] - moved[0]


def roofline(figures: ArmFigures, least_bytes: int | None, peak_bytes_per_second: float | None) -> Reason | None:
    """ROOFLINE where an arm moves its least bytes faster than the card's memory can: a bug of the workload, not a win."""
    if not least_bytes or not peak_bytes_per_second or not figures.busy_ns:
        return None
    reached = least_bytes / (figures.busy_ns * 1e-9)
    if reached <= ROOFLINE_TOLERANCE * peak_bytes_per_second:
        return None
    text = (
        f"{figures.implementation}: {format_bytes(least_bytes)} in {format_ns(figures.busy_ns)} would be"
        f" {reached / 1e12:.2f} TB/s, the card's memory does {peak_bytes_per_second / 1e12:.2f} TB/s"
    )
    return Reason("ROOFLINE", text, "inputs sit in the cache, or bytes_moved counts too much: enlarge the case or mend it")


def workspace_formula(memory: Memory, implementation: str) -> Reason | None:
    """MEMORY_FORMULA where the declared workspace and the measured one are more than 10 % (and 1 MiB) apart.

    Measured is the peak above what was allocated before the call, less the outputs.
    """
    if memory.declared_bytes is None or memory.deterministic_bytes is None or memory.output_bytes is None:
        return None
    measured = max(0, memory.deterministic_bytes - memory.output_bytes)
    apart = abs(measured - memory.declared_bytes)
    if apart <= max(FORMULA_TOLERANCE * memory.declared_bytes, 2**20):
        return None
    text = f"{implementation} declares a workspace of {format_bytes(memory.declared_bytes)}, measured: {format_bytes(measured)}"
    return Reason("MEMORY_FORMULA", text, "mend workspace= in the op's declaration, or the allocation")


def against_itself(figures: ArmFigures, metric: Metric) -> Reason | None:
    """AA_DIFFERS where an arm's first and second process of the blocks differ, by 1 % or more and at a level of 1 %.

    The two stand symmetrically in an ABBA block, so the ratio is not moved by it; but something changes while the run lasts.
    """
    blocks: dict[int, list[float]] = {}
    for one in sorted(figures.samples, key=lambda one: one.position):
        if values := getattr(one, f"{metric}_ns"):
            blocks.setdefault(one.block, []).append(float(np.median(values)))
    steps = np.log([pair[1] / pair[0] for pair in blocks.values() if len(pair) == 2 and min(pair) > 0])
    if steps.size < MIN_BLOCKS or abs(steps.mean()) < DRIFT_LEAST:
        return None
    error = steps.std(ddof=1) / np.sqrt(steps.size)
    if abs(steps.mean()) <= float(special.stdtrit(steps.size - 1, 0.995)) * error:
        return None
    text = f"{figures.implementation} against itself: {format_percent(float(np.expm1(steps.mean())))} within blocks"
    return Reason("AA_DIFFERS", text, "clocks or another process change while the run lasts: look at the environment")


def contradiction(default: ArmFigures, other: ArmFigures, metric: Metric, ratio: float | None) -> Reason | None:
    """CONTRADICTION where profiled and unprofiled figures disagree on which arm is slower, both by more than 2 %."""
    if ratio is None or not default.step_wall_ns or not other.step_wall_ns or metric == "step_wall":
        return None
    unprofiled = other.step_wall_ns / default.step_wall_ns - 1
    profiled = ratio - 1
    if min(abs(unprofiled), abs(profiled)) <= CONTRADICTION_LEAST or (unprofiled > 0) == (profiled > 0):
        return None
    text = (
        f"{other.implementation} costs {format_percent(profiled)} {metric} under the profiler but {format_percent(unprofiled)}"
        f" per step without it ({format_ns(default.step_wall_ns)} -> {format_ns(other.step_wall_ns)})"
    )
    return Reason("CONTRADICTION", text, "launches cost more than kernels here: look at ops, idle and host time")


def _values(samples: Sequence[ProcessSample], metric: Metric) -> list[tuple[int, ...]]:
    return [values for one in samples if (values := getattr(one, f"{metric}_ns"))]


def _usable(values: Sequence[int]) -> bool:
    return len(values) >= 3 * MIN_INSTANCES and min(values) > 0


def _thirds(samples: Sequence[ProcessSample], metric: Metric) -> list[float]:
    """log(last third's median / first third's) of each process with at least nine instances."""
    return [
        float(np.log(np.median(values[-(len(values) // 3) :]) / np.median(values[: len(values) // 3])))
        for values in _values(samples, metric)
        if _usable(values)
    ]


def _last_against_all(samples: Sequence[ProcessSample], metric: Metric) -> list[float]:
    return [
        float(np.log(np.median(values[-(len(values) // 3) :]) / np.median(values)))
        for values in _values(samples, metric)
        if _usable(values)
    ]
