"""``perfgate merge``: the runs of a suite's shards become one run with one verdict.

All ranges are judged together, anew, from their samples, against the budgets that the shards were judged by. What a merge can't
vouch for it refuses: unlike machines, other code, other settings or budgets, the same range twice. A shard that is missing or
was cut short leaves the merged run incomplete, which can never pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perfgate.assemble import unproven
from perfgate.config import ON_INCONCLUSIVE
from perfgate.environment import unlike
from perfgate.errors import UnusableError, UsageError
from perfgate.gate import Finished, judged_again
from perfgate.history import find_runs
from perfgate.model import ArmFigures, Comparison, GateResult, MergedRun, Reason, RunInfo
from perfgate.render import FORMATS
from perfgate.shards import parse_shard
from perfgate.store import RunDirectory, load_result

SHOWN = 5  # ranges named where many are missing
FREE = ("shard", "out", "device", "keep_report", "timeout", "replay_from")  # settings that shards need not share
OF_BUDGET = ("metric", "overhead", "goal", "abs_floor_ns", "memory_ratio", "memory_bytes")


@dataclass(frozen=True)
class Part:
    """One shard's run: its result, its folder's name for messages, what it was asked for."""

    result: GateResult
    folder: Path
    number: int
    total: int
    settings: dict[str, Any]

    @property
    def name(self) -> str:
        return f"shard {self.result.run.shard} ({self.folder})"


def merge(
    paths: Iterable[Path],
    *,
    out: str,
    command: str,
    thresholds: str = "",
    on_inconclusive: str = "fail",
    workloads: Sequence[str] = (),
) -> Finished:
    """The merged run of all shards under ``paths`` (run directories, or folders of them), written to ``out``.

    ``thresholds`` names the budget file that the shards were judged by, where it was named to them; ``workloads`` likewise.
    Raises :class:`UnusableError` (exit code 5) for unlike machines, :class:`UsageError` for runs that are no shards of one
    suite at one commit with one set of budgets; nothing is written then.
    """
    if on_inconclusive not in ON_INCONCLUSIVE:
        raise UsageError(f"--on-inconclusive {on_inconclusive}", f"use {' or '.join(ON_INCONCLUSIVE)}")
    parts = sorted((_part(file.parent) for file in find_runs(paths)), key=lambda part: part.number)
    for other in parts[1:]:
        refuse_unlike(parts[0], other)
    _refuse_overlap(parts)
    joined = judged_again(_joined(parts, command), thresholds=thresholds, on_inconclusive=on_inconclusive, workloads=workloads)
    _refuse_other_budgets(parts, joined.comparisons)
    directory = RunDirectory.create(out, datetime.now(UTC))
    joined = replace(joined, run=replace(joined.run, id=directory.id))
    directory.write_run({"run": asdict(joined.run), "environment": joined.environment})
    for name, format_ in (("result.json", "json"), ("leaderboard.csv", "csv"), ("report.html", "html")):
        directory.write_text(name, FORMATS[format_](joined))
    return Finished(joined, directory)


def _part(folder: Path) -> Part:
    result = load_result(folder)
    if result.run.merged:
        raise UsageError(f"{folder} is a merged run already", "give the shards' own runs")
    if not result.run.shard:
        raise UsageError(f"{folder} is no shard: it holds a whole run", "only runs made with --shard i/n can be merged")
    number, total = parse_shard(result.run.shard)
    plan = RunDirectory.open(folder).read_run().get("plan")
    settings = plan.get("config") if isinstance(plan, dict) else None
    if not isinstance(settings, dict):
        raise UsageError(f"{folder / 'run.json'} lacks plan.config", "the file was edited; run that shard again")
    return Part(result, folder, number, total, {key: value for key, value in settings.items() if key not in FREE})


def refuse_unlike(a: Part, b: Part) -> None:
    """Raises where two shards' figures can't stand in one table: unlike machines (exit 5), other code or settings (exit 2)."""
    different = unlike(a.result.environment, b.result.environment)
    if different:
        told = "; ".join(map(str, different))
        raise UnusableError(
            f"ENVIRONMENT_CHANGED: {a.name} and {b.name} were made on unlike machines: {told}",
            "run all shards on machines of one kind: the same card, driver, torch, triton and nsys",
        )
    for what, one, other in _what_must_agree(a, b):
        if one != other:
            raise UsageError(
                f"{a.name} and {b.name} differ in {what}: {_short(one)} against {_short(other)}",
                "run all shards from one commit with the same options but --shard and --out",
            )


def _what_must_agree(a: Part, b: Part) -> Iterable[tuple[str, Any, Any]]:
    yield "the number of shards", a.total, b.total
    one, other = a.result, b.result
    code, others = one.environment.get("git") or {}, other.environment.get("git") or {}
    for field in ("commit", "changes"):
        yield f"the {field} of the checkout", code.get(field), others.get(field)
    for key in ("perfgate", "kernel_configs"):
        yield key, one.environment.get(key), other.environment.get(key)
    for field in ("mode", "profiler", "looks"):
        yield field, getattr(one.run, field), getattr(other.run, field)
    for key in sorted({*a.settings, *b.settings}):
        yield f"option {key}", a.settings.get(key), b.settings.get(key)
    yield "the planned ranges", one.run.planned, other.run.planned


def _refuse_overlap(parts: Sequence[Part]) -> None:
    """Two runs of one shard, or a range in two shards: which of them counts is not for us to choose."""
    by_number: dict[int, Part] = {}
    by_range: dict[str, Part] = {}
    for part in parts:
        twin = by_number.setdefault(part.number, part)
        if twin is not part:
            raise UsageError(
                f"shard {part.result.run.shard} is given twice: {twin.folder} and {part.folder}", "give the one that counts"
            )
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
    told = [*_incomplete(parts), *_findings(parts)]
    if first.environment.get("device") != "cpu":
        told += unproven(comparisons)
    warnings = dict.fromkeys(text for part in parts for text in part.result.environment.get("warnings") or ())
    run = replace(
        first.run,
        id="",
        started=min(part.result.run.started for part in parts),
        command=command,
        complete=not _incomplete(parts),
        seconds=round(sum(part.result.run.seconds for part in parts), 1),
        shard="",
        merged=tuple(_merged(part.result.run) for part in parts),
    )
    return replace(
        first,
        run=run,
        environment={**first.environment, "warnings": list(warnings)},
        comparisons=tuple(comparisons),
        exempt=tuple(dict.fromkeys(one for part in parts for one in part.result.exempt)),
        findings=tuple(told),
    )


def _merged(run: RunInfo) -> MergedRun:
    return MergedRun(run.id, run.started, run.shard, run.seconds, run.complete)


def _incomplete(parts: Sequence[Part]) -> list[Reason]:
    """INCOMPLETE for shards that are missing, for those that were cut short, and for planned ranges that no shard holds."""
    total, planned = parts[0].total, parts[0].result.run.planned
    found: list[Reason] = []
    held = {one.range for part in parts for one in part.result.comparisons}
    lost = [range_ for range_ in planned if range_ not in held]
    missing = [f"{number}/{total}" for number in range(1, total + 1) if number not in {part.number for part in parts}]
    if missing:
        text = f"shard {' and '.join(missing)} is missing, and with it {_listed(lost)}"
        found.append(
            Reason("INCOMPLETE", text, f"perfgate run --shard {missing[0]} with the others' options, then merge again")
        )
    elif lost:
        found.append(Reason("INCOMPLETE", f"no shard holds {_listed(lost)}", "run the shards again"))
    for part in parts:
        if not part.result.run.complete:
            why = next((one.text for one in part.result.findings if one.code == "INCOMPLETE"), "it never came to its end")
            found.append(Reason("INCOMPLETE", f"{part.name} was cut short: {why}", f"run it again: {part.result.run.command}"))
    return found


def _findings(parts: Sequence[Part]) -> Iterable[Reason]:
    """What the shards' findings say, once where all say it, else with the shard's name.

    Left out: INCOMPLETE, which is told anew, and UNPROVEN_SENSITIVITY, which another shard may have proven.
    """
    every = [[one for one in part.result.findings if one.code not in ("INCOMPLETE", "UNPROVEN_SENSITIVITY")] for part in parts]
    shared = set(every[0]).intersection(*every[1:])
    yield from (one for one in every[0] if one in shared)
    for part, told in zip(parts, every, strict=True):
        label = f"shard {part.result.run.shard}"
        yield from (replace(one, text=f"{label}: {one.text}") for one in told if one not in shared)


def _refuse_other_budgets(parts: Sequence[Part], again: Iterable[Comparison]) -> None:
    """Raises :class:`UsageError` where a range was judged by another budget in its shard than now."""
    before = {one.name: (part, one) for part in parts for one in part.result.comparisons if one.judged}
    for one in again:
        if not one.judged or one.name not in before:
            continue
        part, old = before[one.name]
        for key in OF_BUDGET:
            then, now = (getattr(budget, key, None) for budget in (old.budget, one.budget))
            if then != now:
                raise UsageError(
                    f"{one.range}: its budget's {key} was {then} in {part.name}, here it is {now}",
                    "merge with the budgets that the shards had (--thresholds FILE); `perfgate check` judges by others",
                )


def _relabelled(one: Comparison, part: Part) -> Comparison:
    """The same figures, their captures named after the shard that holds them."""

    def arm(figures: ArmFigures | None) -> ArmFigures | None:
        if figures is None:
            return None
        label = f"shard {part.result.run.shard} "
        return replace(figures, samples=tuple(replace(sample, capture=label + sample.capture) for sample in figures.samples))

    return replace(one, default=arm(one.default), deterministic=arm(one.deterministic))


def _listed(ranges: Sequence[str]) -> str:
    more = f" and {len(ranges) - SHOWN} more" if len(ranges) > SHOWN else ""
    return f"{len(ranges)} ranges: {', '.join(ranges[:SHOWN])}{more}" if ranges else "none of the planned ranges"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
