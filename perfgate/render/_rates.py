"""Achieved rates: the least work that an op's formulas name, divided by the time that was measured."""

from __future__ import annotations

from perfgate import units
from perfgate.model import ArmFigures, Comparison, Metric, Work
from perfgate.render import _view


def bandwidth(work: Work, ns: float | None) -> str:
    """``3.91 TB/s``: the least bytes that must move, over the time; ``–`` where either is unknown."""
    return _rate(work.bytes, ns, "TB/s")


def throughput(work: Work, ns: float | None) -> str:
    """``512 TFLOP/s``: the least floating-point operations, over the time; ``–`` where either is unknown."""
    return _rate(work.flops, ns, "TFLOP/s")


def achieved(comparison: Comparison, arm: ArmFigures | None, metric: Metric) -> str:
    """What bounds the op, in one cell: TFLOP/s where the op declares them, else TB/s."""
    ns = _view.figure(arm, metric)
    rate = throughput if comparison.work.flops else bandwidth
    return rate(comparison.work, ns)


def _rate(amount: int | None, ns: float | None, unit: str) -> str:
    if not amount or not ns:
        return units.MISSING
    tera = amount / ns / 1e3  # per ns is giga per second
    return f"{tera:.3g} {unit}" if tera < 100 else f"{tera:.0f} {unit}"
