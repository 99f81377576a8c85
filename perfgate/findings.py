"""What a run's figures say beside its verdict: impossible bandwidth, wrong formulas, contradictions, arms unlike themselves.

None of it moves the exit code; each is worth a look before the verdict is believed. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from perfgate.model import Comparison, Reason
from perfgate.registry import Registry
from perfgate.signals import against_itself, contradiction, roofline, workspace_formula

# Memory bandwidth in bytes per second from the makers' data sheets, by the beginning of the card's name.
PEAK_BANDWIDTH = {
    "NVIDIA B200": 8.0e12,
    "NVIDIA H200": 4.8e12,
    "NVIDIA H100 80GB HBM3": 3.35e12,
    "NVIDIA H100 NVL": 3.9e12,
    "NVIDIA H100 PCIe": 2.0e12,
    "NVIDIA A100-SXM4-80GB": 2.04e12,
}


def findings(comparisons: Iterable[Comparison], registry: Registry, card: str) -> tuple[Reason, ...]:
    """ROOFLINE, MEMORY_FORMULA, CONTRADICTION and AA_DIFFERS of a run on ``card``, each once, its range named.

    Ops that ``registry`` lacks (ranges of foreign programs) have no formulas; the rest is looked at all the same.
    """
    peak = next((speed for name, speed in PEAK_BANDWIDTH.items() if card.startswith(name)), None)
    found: dict[Reason, None] = {}
    for one in comparisons:
        for reason in _of(one, _least_bytes(one, registry), peak):
            found[Reason(reason.code, f"{one.range}: {reason.text}", reason.next)] = None
    return tuple(found)


def _of(one: Comparison, least_bytes: int | None, peak: float | None) -> Iterable[Reason]:
    found = [workspace_formula(one.memory, one.implementation)]
    for figures in (one.default, one.deterministic):
        if figures is None:
            continue
        found += [roofline(figures, least_bytes, peak), against_itself(figures, one.metric)]
    if one.default is not None and one.deterministic is not None:
        found.append(contradiction(one.default, one.deterministic, one.metric, one.ratio))
    return [reason for reason in found if reason is not None]


def _least_bytes(one: Comparison, registry: Registry) -> int | None:
    op = next((known for known in registry if known.name == one.op), None)
    if op is None or op.bytes_moved is None or all(case.name != one.case for case in op.case_list):
        return None
    return op.bytes_moved(op.case(one.case), one.phase)
