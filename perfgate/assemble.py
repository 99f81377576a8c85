"""Evidence -> Comparisons that wait for their verdict: which implementation is judged, and both arms side by side. Pure.

The effect between the arms is for :func:`perfgate.judge.judge`, which knows the metric and the level that decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from perfgate.determinism.controls import sensitivity_by_op
from perfgate.evidence import Evidence
from perfgate.model import Accuracy, ArmFigures, Bits, Comparison, Memory, Metric, Reason, Variant, Work
from perfgate.registry import Registry
from perfgate.signals import against_itself, contradiction, roofline, workspace_formula


def assemble(
    variants: Iterable[Variant],
    evidence: Mapping[str, Evidence],
    registry: Registry,
    metrics: Mapping[str, Metric],
    *,
    both_arms: bool = True,
) -> tuple[Comparison, ...]:
    """One comparison per non-default implementation, in the plan's order.

    ``metrics`` names the judged metric per ``op:case:phase``. Judged is the champion, or the stock deterministic
    implementation where there is no champion or it is unsupported on this device; nothing where only one arm runs.
    """
    by_range: dict[str, list[Variant]] = {}
    for variant in variants:
        by_range.setdefault(variant.range, []).append(variant)
    return tuple(
        comparison
        for range_, group in by_range.items()
        for comparison in _of_range(group, evidence, registry, metrics[range_], both_arms)
    )


def _of_range(
    group: list[Variant], evidence: Mapping[str, Evidence], registry: Registry, metric: Metric, both_arms: bool
) -> Iterable[Comparison]:
    default = next(one for one in group if one.role == "default")
    default_evidence = evidence[default.name]
    default_arm = default_evidence.figures(default)
    judged = _judged(group, evidence) if both_arms else None
    for variant in group:
        if variant is not default:
            yield _comparison(
                variant, evidence[variant.name], default_evidence, default_arm, registry, metric, judged=variant is judged
            )


def _judged(group: list[Variant], evidence: Mapping[str, Evidence]) -> Variant | None:
    """The champion unless it is unsupported here, then the stock deterministic path; where both are, the champion."""
    by_role = {one.role: one for one in group}
    wanted = [by_role[role] for role in ("champion", "stock_deterministic") if role in by_role]
    supported = [one for one in wanted if [problem.code for problem in evidence[one.name].problems] != ["UNSUPPORTED"]]
    return next(iter(supported), next(iter(wanted), None))


def _comparison(
    variant: Variant,
    own: Evidence,
    default: Evidence,
    default_arm: ArmFigures | None,
    registry: Registry,
    metric: Metric,
    *,
    judged: bool,
) -> Comparison:
    return Comparison(
        op=variant.op,
        case=variant.case,
        phase=variant.phase,
        implementation=variant.implementation,
        role=variant.role,
        judged=judged,
        racy=bool(registry.op(variant.op).racy),
        default=default_arm,
        deterministic=own.figures(variant),
        metric=metric,
        memory=_memory(variant, own, default, registry),
        work=_work(variant, registry),
        bits=_bits(own, default),
        accuracy=_accuracy(variant, own, default, registry),
        signals=tuple(own.problems) + tuple(_default_problems(default)),
    )


def _default_problems(default: Evidence) -> Iterable[Reason]:
    for problem in default.problems:
        yield replace(problem, text=f"the default implementation: {problem.text}")


def _work(variant: Variant, registry: Registry) -> Work:
    op = registry.op(variant.op)
    case = op.case(variant.case)
    return Work(
        bytes=None if op.bytes_moved is None else op.bytes_moved(case, variant.phase),
        flops=None if op.flops is None else op.flops(case, variant.phase),
    )


def _memory(variant: Variant, own: Evidence, default: Evidence, registry: Registry) -> Memory:
    op = registry.op(variant.op)
    formula = next(one.workspace for one in op.implementations if one.name == variant.implementation)
    return Memory(
        default_bytes=_first(default, "peak_bytes"),
        deterministic_bytes=_first(own, "peak_bytes"),
        default_reserved_bytes=_first(default, "peak_reserved_bytes"),
        deterministic_reserved_bytes=_first(own, "peak_reserved_bytes"),
        declared_bytes=None if formula is None else formula(op.case(variant.case)),
        output_bytes=_first(own, "output_bytes"),
    )


def _bits(own: Evidence, default: Evidence) -> Bits:
    """Replays over all processes; a process whose first run has other bits than the first process's counts as differing."""
    if not own.bits:
        return Bits()
    reference = own.bits[0]["digest"]
    others = [one for one in own.bits[1:] if one["digest"] != reference]
    differing = sum(one["differing"] for one in own.bits) + len(others)
    first = next((one["first_difference"] for one in own.bits if one["first_difference"]), "")
    if others and not first:
        first = f"a fresh process gave digest {others[0]['digest'][:16]}, the first one {reference[:16]}"
    return Bits(
        replays=sum(one["replays"] for one in own.bits) + len(own.bits) - 1,
        differing=differing,
        digest=reference,
        default_differing=sum(one["differing"] for one in default.bits) if default.bits else None,
        default_replays=sum(one["replays"] for one in default.bits),
        processes=len(own.bits),
        first_difference=first,
    )


def _accuracy(variant: Variant, own: Evidence, default: Evidence, registry: Registry) -> Accuracy:
    limit = registry.op(variant.op).max_error
    return Accuracy(default=_first(default, "error"), deterministic=_first(own, "error"), limit=limit)


def _first(evidence: Evidence, key: str) -> Any:
    return next((one[key] for one in evidence.bits if one.get(key) is not None), None)


def findings(comparisons: Iterable[Comparison], bytes_per_second: float | None) -> Iterable[Reason]:
    """What decides no verdict but must be looked at, each once and with its range.

    ROOFLINE, MEMORY_FORMULA, CONTRADICTION, AA_DIFFERS. ``bytes_per_second`` is the card's peak memory bandwidth (``None``
    unknown).
    """
    told: dict[Reason, None] = {}
    for one in comparisons:
        found = [workspace_formula(one.memory, one.implementation)]
        for figures in (one.default, one.deterministic):
            if figures is not None:
                found += [roofline(figures, one.work.bytes, bytes_per_second), against_itself(figures, one.metric)]
        if one.default is not None and one.deterministic is not None:
            found.append(contradiction(one.default, one.deterministic, one.metric, one.ratio))
        told |= dict.fromkeys(replace(reason, text=f"{one.range}: {reason.text}") for reason in found if reason is not None)
    return told


def unproven(comparisons: Iterable[Comparison]) -> Iterable[Reason]:
    """UNPROVEN_SENSITIVITY for every racy op whose control differed nowhere in this run: equal bits then say little."""
    for op, seen in sensitivity_by_op(one for one in comparisons if one.racy).items():
        if not seen.proven:
            yield Reason("UNPROVEN_SENSITIVITY", f"{op}: {seen}", f"perfgate bits control --op {op}, or more --replays")


def peak_bandwidth(environment: Mapping[str, Any]) -> float | None:
    """Bytes per second that the card's memory can move: clock (MHz) × 2 transfers × bus width; ``None`` unknown."""
    card = environment.get("gpu") or {}
    clock, bits = card.get("memory_max_mhz"), card.get("memory_bus_bits")
    return clock * 1e6 * 2 * bits / 8 if clock and bits else None
