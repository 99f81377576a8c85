"""``perfgate merge``: the runs of a suite's shards, or of a program's nodes, become one run with one verdict.

All ranges are judged together, anew, from their samples, against the budgets that the parts were judged by. What a merge can't
vouch for it refuses: unlike machines, other code, other settings or budgets, the same range twice. A part that is missing or
was cut short leaves the merged run incomplete, which can never pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from perfgate.assemble import unproven
from perfgate.config import ON_INCONCLUSIVE
from perfgate.errors import UsageError
from perfgate.gate import Finished, judged_again
from perfgate.model import ArmFigures, Comparison, GateResult, Reason
from perfgate.parts import Part, cut_short, load_parts, missing_parts, refuse_other_budgets, told_by
from perfgate.render import FORMATS
from perfgate.store import RunDirectory

SHOWN = 5  # ranges named where many are missing
TOLD_ANEW = ("INCOMPLETE", "UNPROVEN_SENSITIVITY")  # another shard may prove what this one could not


def merge(
    paths: Iterable[Path],
    *,
    out: str,
    command: str,
    thresholds: str = "",
    on_inconclusive: str = "fail",
    workloads: Sequence[str] = (),
) -> Finished:
    """The merged run of all parts under ``paths`` (run directories, or folders of them), written to ``out``.

    ``thresholds`` names the budget file that the parts were judged by, where it was named to them; ``workloads`` likewise.
    Raises :class:`UnusableError` (exit code 5) for unlike machines and nodes that don't show all ranks, :class:`UsageError` for
    runs that are no parts of one job at one commit with one set of budgets; nothing is written then.
    """
    if on_inconclusive not in ON_INCONCLUSIVE:
        raise UsageError(f"--on-inconclusive {on_inconclusive}", f"use {' or '.join(ON_INCONCLUSIVE)}")
    parts = load_parts(paths)
    if parts[0].of_program:
        from perfgate.program.merge import merge_nodes

        return merge_nodes(parts, out=out, command=command, thresholds=thresholds, on_inconclusive=on_inconclusive)
    _refuse_overlap(parts)
    joined = judged_again(_joined(parts, command), thresholds=thresholds, on_inconclusive=on_inconclusive, workloads=workloads)
    refuse_other_budgets(parts, joined.comparisons)
    directory = RunDirectory.create(out, datetime.now(UTC))
    joined = replace(joined, run=replace(joined.run, id=directory.id))
    directory.write_run({"run": asdict(joined.run), "environment": joined.environment})
    for name, format_ in (("result.json", "json"), ("leaderboard.csv", "csv"), ("report.html", "html")):
        directory.write_text(name, FORMATS[format_](joined))
    return Finished(joined, directory)


def _refuse_overlap(parts: Sequence[Part]) -> None:
    """A range in two shards: which of them counts is not for us to choose."""
    by_range: dict[str, Part] = {}
    for part in parts:
        for range_ in {one.range for one in part.result.comparisons}:
            twin = by_range.setdefault(range_, part)
            if twin is not part:
                raise UsageError(f"{range_} is in {twin.name} and in {part.name}", "these are no shards of one plan; run again")


def _joined(parts: Sequence[Part], command: str) -> GateResult:
    """All parts as one result that waits for its verdict."""
    first = parts[0].result
    place = {range_: number for number, range_ in enumerate(first.run.planned)}
    comparisons = [_relabelled(one, part) for part in parts for one in part.result.comparisons]
    comparisons.sort(key=lambda one: place.get(one.range, len(place)))
    incomplete = [*_missing(parts), *cut_short(parts)]
    told = [*incomplete, *told_by(parts, TOLD_ANEW)]
    if first.environment.get("device") != "cpu":
        told += unproven(comparisons)
    warnings = dict.fromkeys(text for part in parts for text in part.result.environment.get("warnings") or ())
    run = replace(
        first.run,
        id="",
        started=min(part.result.run.started for part in parts),
        command=command,
        complete=not incomplete,
        seconds=round(sum(part.result.run.seconds for part in parts), 1),
        shard="",
        merged=tuple(part.merged for part in parts),
    )
    return replace(
        first,
        run=run,
        environment={**first.environment, "warnings": list(warnings)},
        comparisons=tuple(comparisons),
        exempt=tuple(dict.fromkeys(one for part in parts for one in part.result.exempt)),
        findings=tuple(told),
    )


def _missing(parts: Sequence[Part]) -> list[Reason]:
    """INCOMPLETE for shards that are missing, and for planned ranges that no shard holds."""
    held = {one.range for part in parts for one in part.result.comparisons}
    lost = [range_ for range_ in parts[0].result.run.planned if range_ not in held]
    if missing := missing_parts(parts):
        text = f"shard {' and '.join(missing)} is missing, and with it {_listed(lost)}"
        again = f"perfgate run --shard {missing[0]} with the others' options, then merge again"
        return [Reason("INCOMPLETE", text, again)]
    return [Reason("INCOMPLETE", f"no shard holds {_listed(lost)}", "run the shards again")] if lost else []


def _relabelled(one: Comparison, part: Part) -> Comparison:
    """The same figures, their captures named after the shard that holds them."""

    def arm(figures: ArmFigures | None) -> ArmFigures | None:
        if figures is None:
            return None
        samples = tuple(replace(sample, capture=f"{part.label} {sample.capture}") for sample in figures.samples)
        return replace(figures, samples=samples)

    return replace(one, default=arm(one.default), deterministic=arm(one.deterministic))


def _listed(ranges: Sequence[str]) -> str:
    more = f" and {len(ranges) - SHOWN} more" if len(ranges) > SHOWN else ""
    return f"{len(ranges)} ranges: {', '.join(ranges[:SHOWN])}{more}" if ranges else "none of the planned ranges"
