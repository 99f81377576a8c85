"""``perfgate compare A B``: two traces, or two runs, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from perfgate.model import ArmFigures, Comparison, Metric, RunVerdict
    from perfgate.side_by_side import Row
    from perfgate.traces.summary import RangeSummary

WITHIN = "95 % within the two processes only: what another process would add is not in it"
OVER = "95 % over the processes of the two runs, which were not interleaved: clocks and temperature may differ too"
NONE = "none: tables of nsys stats hold no instances"


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command("compare")(compare)


def compare(
    a: Path = typer.Argument(..., metavar="A", help="The baseline: a trace, a folder of one report per rank, CSVs, or a run."),
    b: Path = typer.Argument(..., metavar="B", help="What is set against it."),
    match: str = typer.Option(None, "--match", metavar="REGEX", help="Only ranges whose domain:name it finds."),
    attribution: str = typer.Option("auto", "--attribution", help="auto, process or same-thread."),
    metric: str = typer.Option(None, "--metric", help="busy, span or host. [the first that both hold]"),
    top: int = typer.Option(
        20, "--top", min=0, help="Ranges shown and explained by kernels, the largest differences first; 0: all."
    ),
    strip_ids: bool = typer.Option(False, "--strip-ids", help="Without PyTorch's ', seq = N' and ', op_id = N'."),
    group: str = typer.Option(None, "--group", metavar="REGEX", help="Call each range what the pattern's first group finds."),
    buckets: bool = typer.Option(False, "--buckets", help="In three parts: forward, backward, op."),
    thresholds: Path = typer.Option(
        None, "--thresholds", metavar="FILE", help="Judge B against A by these budgets, and exit so."
    ),
    on_inconclusive: str = typer.Option("fail", "--on-inconclusive", help="fail (exit 4) or pass."),
    format_: str = typer.Option("table", "--format", help="table, json or csv."),
) -> None:
    """Set B against A: ratio, difference and kernels per NVTX range, and what only one side has.

    Without --thresholds exit code 0 is "answered", whatever the answer. With them it is that of `perfgate run`; one capture per
    side is one process per side, which can never pass or fail a budget: TOO_FEW_SAMPLES, exit code 4.
    """
    from perfgate.cli._comparison import Answer
    from perfgate.errors import UnusableError, UsageError
    from perfgate.side_by_side import METRICS, common_metric, rows

    if format_ not in ("table", "json", "csv"):
        raise UsageError(f"--format {format_}", "use table, json or csv")
    if on_inconclusive not in ("fail", "pass"):
        raise UsageError(f"--on-inconclusive {on_inconclusive}", "use fail or pass")
    if metric is not None and metric not in METRICS:
        raise UsageError(f"--metric {metric}", f"use {', '.join(METRICS)}")
    sides = _sides(a, b, match=match, attribution=attribution, group=group, strip=strip_ids)
    chosen: Metric = metric if metric is not None else common_metric(sides[0].rows, sides[1].rows)
    found = rows(sides[0].rows, sides[1].rows, chosen)
    if all(row.a is None or row.b is None for row in found):
        raise UnusableError(
            f"{a} and {b} have no range in common", "`perfgate ranges` lists each; --strip-ids or --group may join names"
        )
    limit = len(found) if top == 0 else top
    found = [_explained(row, sides, chosen) if place < limit else row for place, row in enumerate(found)]
    judged, verdict = _judged(found, sides, chosen, thresholds, on_inconclusive) if thresholds else ({}, None)
    answer = Answer(str(a), str(b), chosen, found, limit, (sides[0].about, sides[1].about), judged, verdict)
    if format_ == "json":
        import json

        print(json.dumps(answer.document(), indent=2))
    elif format_ == "csv":
        answer.write_csv()
    else:
        answer.show(in_buckets=buckets)
    raise typer.Exit(verdict.exit_code if verdict else 0)


class _Side:
    """A or B: its rows, and figures by name where it holds instances."""

    def __init__(self, label: str, path: Path, *, match: str | None, attribution: str, group: str | None, strip: bool) -> None:
        from perfgate.cli._comparison import About
        from perfgate.cli._trace_inputs import checked_attribution, load, summaries
        from perfgate.side_by_side import Arms, of_result, relabelled, summary_of
        from perfgate.store import load_result
        from perfgate.traces.names import compile_pattern

        self._of_run: Mapping[str, ArmFigures] | None = None
        self.environment: dict[str, Any] | None = None  # of a run
        self._arms: Arms | None = None
        self.complete = True  # a run that was cut short is not, and can never pass
        if (path / "result.json").is_file() or path.name == "result.json":
            pattern = compile_pattern(match or "")
            result = load_result(path)
            self.complete, self.environment = result.run.complete, result.environment
            arms = {name: relabelled(one, label) for name, one in of_result(result).items() if pattern.search(name)}
            self._of_run, self.about = arms, About(OVER)
            self.rows: list[RangeSummary] = [summary_of(name, one) for name, one in arms.items()]
            return
        reading = load(path, attribution=checked_attribution(attribution), match=match, detail=True)
        self.rows = summaries(reading, match=match, group=group, strip=strip)
        modes = frozenset(trace.graph_mode for trace in reading.traces if trace.graph_mode)
        self.about = About(NONE if reading.measurement is None else WITHIN, reading.notes, modes)
        if reading.measurement is not None:
            from perfgate.measure.summary import rename
            from perfgate.traces.names import grouping

            self._arms = Arms(label, rename(reading.measurement, grouping(group, strip=strip)))

    def figures(self, name: str) -> ArmFigures | None:
        if self._of_run is not None:
            return self._of_run.get(name)
        return self._arms.figures(name) if self._arms and name in self._arms else None


def _sides(a: Path, b: Path, **options: Any) -> tuple[_Side, _Side]:
    from perfgate.errors import UsageError

    sides = _Side("A", a, **options), _Side("B", b, **options)
    if (sides[0].about.interval == OVER) != (sides[1].about.interval == OVER):
        raise UsageError(f"{a} and {b}: one is a run, the other is not", "compare two runs, or two traces")
    return sides


def _explained(row: Row, sides: tuple[_Side, _Side], metric: Metric) -> Row:
    from perfgate.side_by_side import explained

    if row.a is None or row.b is None:
        return row
    a, b = (side.figures(row.name) for side in sides)
    return explained(row, a, b, metric) if a and b else row


def _refuse_unlike(sides: tuple[_Side, _Side]) -> None:
    """A difference between two runs is no program's where their machines differ: shown, but not judged."""
    from perfgate.environment import unlike
    from perfgate.errors import UnusableError

    a, b = (side.environment for side in sides)
    if a is None or b is None or not (different := unlike(a, b)):
        return
    raise UnusableError(
        f"ENVIRONMENT_CHANGED: A and B were made on unlike machines: {'; '.join(map(str, different))}",
        "run both with the same card, driver, torch, triton and nsys; without --thresholds they are shown side by side",
    )


def _judged(
    found: Sequence[Row], sides: tuple[_Side, _Side], metric: Metric, thresholds: Path, on_inconclusive: str
) -> tuple[dict[str, Comparison], RunVerdict]:
    """The budgeted ranges judged, by name, and the verdict over them."""
    from dataclasses import replace
    from datetime import date

    from perfgate.budgets import read
    from perfgate.cli._comparison import modes_differ
    from perfgate.discover import load
    from perfgate.gate import ranges_of
    from perfgate.judge import judge, verdict
    from perfgate.model import Reason
    from perfgate.side_by_side import compared

    _refuse_unlike(sides)
    budgets = read(thresholds, date.today())
    named = {row.name: compared(row.name, None, None, metric) for row in found}
    budgeted = {
        name: replace(one, default=sides[0].figures(name), deterministic=sides[1].figures(name))
        for name, one in named.items()
        if budgets.find(one.range)
    }
    if modes_differ(sides[0].about, sides[1].about):
        changed = Reason(
            "ENVIRONMENT_CHANGED", "CUDA graphs were traced in different modes", "--cuda-graph-trace=node on both sides"
        )
        budgeted = {name: replace(one, signals=(*one.signals, changed)) for name, one in budgeted.items()}
    reasons = [
        reason
        for reason in budgets.findings(ranges_of(load([])), [one.range for one in named.values()])
        if reason.code == "UNMATCHED_BUDGET"
    ]
    judged = dict(zip(budgeted, judge(list(budgeted.values()), budgets, foreign=True), strict=True))
    complete = all(side.complete for side in sides)
    return judged, verdict(list(judged.values()), reasons, complete=complete, on_inconclusive=on_inconclusive)
