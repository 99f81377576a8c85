"""``leaderboard.csv``: one line per comparison, unrounded, units in the column names, safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
from typing import Any

from perfgate.model import ArmFigures, GateResult
from perfgate.render import _view
from perfgate.render._text import visible


def render(result: GateResult) -> str:
    """The comparisons in the leaderboard's order as RFC 4180 CSV with plain line feeds; empty means not measured."""
    rows = [_row(group, entry) for group in _view.groups(result) for entry in group.entries]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(rows[0] if rows else ("range", "implementation", "status"))
    writer.writerows([_safe(value) for value in row.values()] for row in rows)
    return buffer.getvalue()


def _row(group: _view.Group, entry: _view.Entry) -> dict[str, Any]:
    comparison = entry.comparison
    budget = comparison.budget
    return {
        "range": group.range,
        "op": comparison.op,
        "case": comparison.case,
        "phase": comparison.phase,
        "implementation": comparison.implementation,
        "role": comparison.role,
        "judged": comparison.judged,
        "status": comparison.status,
        "reasons": " ".join(reason.code for reason in comparison.reasons),
        "rank": entry.rank,
        "tied": entry.tied,
        "metric": comparison.metric,
        "ratio": comparison.ratio,
        "ratio_low": comparison.ratio_low,
        "ratio_high": comparison.ratio_high,
        "minimum_detectable_effect": comparison.mde,
        "blocks": comparison.blocks,
        "delta_ns": comparison.delta_ns,
        "budget_overhead": budget.overhead if budget else None,
        "budget_place": f"{budget.file}:{budget.line}" if budget else None,
        "default_implementation": comparison.default.implementation if comparison.default else None,
        **_arm("default", comparison.default),
        **_arm("deterministic", comparison.deterministic),
        "default_peak_bytes": comparison.memory.default_bytes,
        "deterministic_peak_bytes": comparison.memory.deterministic_bytes,
        "least_bytes": comparison.work.bytes,
        "least_flops": comparison.work.flops,
        "bits_replays": comparison.bits.replays,
        "bits_differing": comparison.bits.differing if comparison.bits.replays else None,
        "default_bits_differing": comparison.bits.default_differing,
        "default_error": comparison.accuracy.default,
        "deterministic_error": comparison.accuracy.deterministic,
    }


def _arm(name: str, arm: ArmFigures | None) -> dict[str, Any]:
    figures = ("busy_ns", "span_ns", "host_ns", "step_wall_ns", "ops")
    return {f"{name}_{figure}": getattr(arm, figure) if arm else None for figure in figures}


def _safe(value: Any) -> Any:
    """Text that a spreadsheet would run as a formula gets a leading apostrophe; numbers stay numbers."""
    if not isinstance(value, str):
        return {None: "", True: "true", False: "false"}.get(value, value) if value is None or isinstance(value, bool) else value
    text = visible(value)
    return "'" + text if text.lstrip(" ").startswith(tuple("=+-@|%＝＋－＠")) else text
